"""Settings of the trust function on development splits: ``python -m benchmarks.trust_settings --seeds 10 11 12``.

Each seed (other than those of ``benchmarks.seeds``) splits the quickstart's puzzles anew, which are labelled once. Each
setting is then fitted on the same labels, without Ray, and ranks the same pool. Printed for each setting: purity of the
first n = 2,000 of the parsed pool rows, AUC on all parsed pool rows, Brier score beside that of the constant, and
seconds. The controls are a uniform draw of readable rows, and internal confidence.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curation import metrics, run
from curation.config import RunConfig, TrustConfig
from curation.config.load import load_config
from curation.domains.grading import read_grades
from curation.refs import TableRef
from curation.rundir.manifest import Manifest
from curation.tables import io
from train.trust import compute_logits_at, fit_rows, read_rows
from train.trust_loop import LabelledRows

CONFIG = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
N = 2_000
SMALL = {"depth": 2, "width": 128}
FAST = {"learning_rate": 1e-3, "max_steps": 800, "patience": 120}
SETTINGS: dict[str, dict[str, Any]] = {
    "2 x 128, 1e-3, fitted on all rows": {**SMALL, **FAST, "fit_on": "all"},
    "2 x 128, 1e-3": {**SMALL, **FAST},
    "2 x 128, 3e-5": {**SMALL, "learning_rate": 3e-5},
    "the preset: 4 x 512, 1e-5": {},
    "linear probe": {"kind": "linear_probe"},
    "boosted trees": {"kind": "boosted_trees"},
    "boosted trees, with the log-probability": {"kind": "boosted_trees", "columns": ["mean_logprob"]},
    "2 x 128, 3e-5, with the log-probability": {**SMALL, "learning_rate": 3e-5, "columns": ["mean_logprob"]},
    "5 nets of 2 x 128, 3e-5": {"kind": "deep_ensemble", **SMALL, "learning_rate": 3e-5},
    "5 nets of 2 x 128, 3e-5, with the log-probability": {
        "kind": "deep_ensemble",
        **SMALL,
        "learning_rate": 3e-5,
        "columns": ["mean_logprob"],
    },
}
"""Settings by name: keys of the section ``trust``, with ``kind``, ``neural`` by default."""


class Found(NamedTuple):
    """The results of a setting on one split."""

    purity: float
    auc: float
    brier: float
    constant: float
    seconds: float


def deal(seed: int) -> tuple[RunConfig, dict[str, TableRef]]:
    """Return the labels and grades of a deal; make them where they are missing."""
    config = load_config(CONFIG, [f"seed={seed}", f"name=dev-{seed}", "generations=[]"])
    run(config)
    outputs = {name: stage.outputs for name, stage in Manifest.load(config.directory).stages.items()}
    tables = {}
    for split in ("source", "pool"):
        tables[f"label-{split}"] = TableRef.from_json(outputs[f"gen-0/label-{split}"]["labels"])
        tables[f"grade-{split}"] = TableRef.from_json(outputs[f"gen-0/grade-{split}"]["grades"])
    return config, tables


def fitted(kind: str, config: TrustConfig, source: LabelledRows, pool: LabelledRows, seed: int) -> Found:
    """Fit a trust function of that kind with these settings."""
    start = time.monotonic()
    trust = fit_rows(kind, source, config, seed=seed, origin={})
    seconds = time.monotonic() - start
    raw_N, correct_N = compute_logits_at(trust, pool, np.arange(len(pool.correct_N))), pool.correct_N
    share = trust.fit["share_right_fit"]
    return Found(
        purity=float(correct_N[np.argsort(-raw_N, kind="stable")[:N]].mean()),
        auc=metrics.compute_auc_value(raw_N, correct_N),
        brier=metrics.brier(trust.to_trust(raw_N), correct_N).value,
        constant=float(np.mean((share - correct_N) ** 2)),
        seconds=seconds,
    )


def controls(tables: dict[str, TableRef], pool: LabelledRows) -> dict[str, str]:
    """Return the purity of a uniform draw of the parsed pool rows (its expectation), and of internal confidence."""
    labels = io.read(
        tables["label-pool"], columns=["row_id", "mean_logprob"], filter="error IS NULL AND label IS NOT NULL"
    )
    labels = labels.sort_by("row_id")
    graded = read_grades(tables["grade-pool"])
    keep_N = np.isin(labels["row_id"].to_numpy(), graded.row_ids_N)
    raw_N = labels["mean_logprob"].to_numpy()[keep_N]
    correct_N = graded.correct_N[np.isin(graded.row_ids_N, labels["row_id"].to_numpy())]
    first = correct_N[np.argsort(-raw_N, kind="stable")[:N]].mean()
    return {
        "naive among parsed": f"{100 * pool.correct_N.mean():.1f}",
        "internal confidence": f"{100 * first:.1f}, AUC {metrics.compute_auc_value(raw_N, correct_N):.3f}",
    }


def main() -> None:
    """Assign rows, fit every setting, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--nets", type=int, default=1, help="fits a deal, each with weights of its own")
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=SETTINGS)
    arguments = parser.parse_args()
    found: dict[str, list[Found]] = {name: [] for name in arguments.settings}
    for seed in arguments.seeds:
        config, tables = deal(seed)
        pool = read_rows(tables["label-pool"], tables["grade-pool"], config.trust, seed=seed)
        print(f"seed {seed}: {controls(tables, pool)}", flush=True)
        for name in arguments.settings:
            given = {"states": config.trust.states, **SETTINGS[name]}
            kind = given.pop("kind", "neural")
            trust = TrustConfig.model_validate(given)
            source, pool = (
                read_rows(tables[f"label-{split}"], tables[f"grade-{split}"], trust, seed=seed)
                for split in ("source", "pool")
            )
            num = 1 if kind in ("linear_probe", "boosted_trees") else arguments.nets  # those have no weights to draw
            found[name] += [fitted(kind, trust, source, pool, 1000 * net + seed) for net in range(num)]
            print(f"  {name}: {found[name][-1]}", flush=True)
    print("| setting | purity %, mean (each) | AUC | Brier | constant's | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, items in found.items():
        each = ", ".join(f"{100 * item.purity:.1f}" for item in items)
        auc, brier, constant, seconds = (statistics.mean(values) for values in list(zip(*items, strict=True))[1:])
        purity = statistics.mean(item.purity for item in items)
        print(f"| {name} | {100 * purity:.1f} ({each}) | {auc:.3f} | {brier:.4f} | {constant:.4f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
