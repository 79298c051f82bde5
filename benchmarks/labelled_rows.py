"""The value of more labelled rows: ``python -m benchmarks.labelled_rows RUN_DIR --rows 100 300 1000 --plot curve.svg``.

RUN_DIR is a finished run with an audit set. Nothing is labelled and no student is trained: trust functions are fitted
anew on growing parts of the run's labelled source rows (``trust.source_share``), in this process, and rank the run's
labelled pool. Rows with an unreadable label count as labelled, since people label them too, but no fit uses them.

The seed of a draw determines which rows are used (a larger number includes those of a smaller one), which of them a fit
holds out, and the initial weights. Printed for each number: the number of rows in a fit, the number of draws without a
fit because too few rows were right or wrong, and for each kind the purity of the first n rows of the pool (n as in the
run; mean, lowest and highest draw) and the mean AUC on the pool's parsed rows. ``--results`` keeps the fits, so that
the same command resumes.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from benchmarks.recorded import recorded
from benchmarks.trust_quality import graded
from curation import metrics
from curation.arms import ARMS
from curation.config import TrustConfig
from curation.errors import DegenerateSourceError
from curation.refs import TableRef
from train.trust import compute_logits_at, fit_rows, read_rows

ROWS = (100, 200, 300, 500, 1_000, 2_000, 4_000, 7_500)
KINDS = ("linear_probe", "neural", "deep_ensemble")


class Found(NamedTuple):
    """The result of a fit on some labelled rows; the numbers are ``None`` if the fit was refused."""

    kind: str
    rows: int
    seed: int
    purity: float | None = None
    auc: float | None = None
    num_fit: int | None = None
    """Number of rows on which the function was fitted."""


class Run:
    """The labels of a finished run."""

    def __init__(self, directory: Path) -> None:
        stages = recorded(directory)
        self.outputs = {name: stage["outputs"] for name, stage in stages.items()}
        raw = yaml.safe_load((directory / "config.yaml").read_text())["trust"]
        self.trust = TrustConfig.model_validate({**raw, "source_share": 1.0})
        self.n: int = self.outputs["gen-0/select"]["budget"]["n"]
        self.num_source = graded(self.outputs, "label", "source", ["row_id"])[0].num_rows
        self.pool = read_rows(*self._tables("pool"), self.trust, seed=0)
        labels, self.correct_N = graded(self.outputs, "label", "pool", ["row_id", "label", "mean_logprob"])
        parsed_N = labels["label"].is_valid().to_numpy()
        self.confidence_N, self.correct_N = labels["mean_logprob"].to_numpy()[parsed_N], self.correct_N[parsed_N]
        assert np.array_equal(self.correct_N, self.pool.correct_N)

    def _tables(self, split: str) -> tuple[TableRef, TableRef]:
        labels, grades = self.outputs[f"gen-0/label-{split}"]["labels"], self.outputs[f"gen-0/grade-{split}"]["grades"]
        return TableRef.from_json(labels), TableRef.from_json(grades)

    def purity(self, raw_N: np.ndarray) -> float:
        """Return the share of right labels among the first n."""
        return float(self.correct_N[np.argsort(-raw_N, kind="stable")[: self.n]].mean())

    def fitted(self, kind: str, rows: int, seed: int) -> Found:
        """Return a fit on about ``rows`` labelled rows."""
        config = self.trust.model_copy(update={"kind": kind, "source_share": min(1.0, rows / self.num_source)})
        try:
            source = read_rows(*self._tables("source"), config, seed=seed)
            trust = fit_rows(kind, source, config, seed=seed, origin={})
        except DegenerateSourceError:
            return Found(kind, rows, seed)
        raw_N = compute_logits_at(trust, self.pool, np.arange(len(self.pool.correct_N)))
        auc = metrics.compute_auc_value(raw_N, self.correct_N)
        return Found(kind, rows, seed, self.purity(raw_N), auc, trust.fit["num_fit"])


def cell(draws: Sequence[Found]) -> str:
    """Return the purity and AUC of a kind at a number of rows."""
    found = [item for item in draws if item.purity is not None]
    if not found:
        return ""
    shares, aucs = [100 * item.purity for item in found], [item.auc for item in found]
    return f"{np.mean(shares):.1f} ({min(shares):.1f} to {max(shares):.1f}); {np.mean(aucs):.3f}"


def row(rows: int, by_kind: Mapping[str, Sequence[Found]]) -> str:
    """Return a line of the table."""
    used = [item.num_fit for draws in by_kind.values() for item in draws if item.num_fit is not None]
    refused = max(sum(item.purity is None for item in draws) for draws in by_kind.values())
    counts = f"| {rows:,} | {f'{np.mean(used):,.0f}' if used else ''} | {refused} |"
    return f"{counts} {' | '.join(cell(draws) for draws in by_kind.values())} |"


def plot(run: Run, found: Sequence[Found], path: Path) -> None:
    """Plot purity by labelled rows: one line per kind, with a band from the lowest to the highest draw."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "labelled rows"
    figure, axis = plt.subplots(figsize=(7, 3.6))
    for place, kind in enumerate(dict.fromkeys(item.kind for item in found)):
        mine = [item for item in found if item.kind == kind]
        sizes = sorted({item.rows for item in mine})
        values = [[100 * item.purity for item in mine if item.rows == rows] for rows in sizes]
        axis.plot(sizes, [np.mean(each) for each in values], "o-", color=f"C{place}", label=ARMS[kind].words)
        axis.fill_between(sizes, [min(each) for each in values], [max(each) for each in values], alpha=0.15)
    for words, value, style in (
        ("internal confidence", run.purity(run.confidence_N), "--"),
        ("uniform draw of parsed labels", float(run.correct_N.mean()), ":"),
    ):
        axis.axhline(100 * value, color="0.4", linestyle=style, label=words)
    axis.set(xscale="log", xlabel="labelled rows", ylabel=f"purity of the first {run.n:,} rows, %")
    sizes = sorted({item.rows for item in found})
    axis.set_xticks(sizes, [f"{rows:,}" for rows in sizes], minor=False)
    axis.set_xticks([], minor=True)
    axis.legend(frameon=False, fontsize=8, loc="upper left")
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Fit, print a table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[*ROWS])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("labelled_rows.json"))
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    run = Run(given.run)
    auc = metrics.compute_auc_value(run.confidence_N, run.correct_N)
    print(
        f"{len(run.correct_N):,} parsed pool rows, {100 * run.correct_N.mean():.1f} % right; internal confidence: "
        f"purity {100 * run.purity(run.confidence_N):.1f} %, AUC {auc:.3f}\n"
    )
    kept = [Found(*item) for item in json.loads(given.results.read_text())] if given.results.is_file() else []
    done = {item[:3]: item for item in kept}
    print(f"| labelled rows | fitted on | refused | {' | '.join(ARMS[kind].words for kind in given.kinds)} |")
    print("| ---: | ---: | ---: |" + " --- |" * len(given.kinds))
    for rows in given.rows:
        for kind in given.kinds:
            for seed in range(given.draws):
                if (kind, rows, seed) not in done:
                    done[kind, rows, seed] = run.fitted(kind, rows, seed)
                    given.results.write_text(json.dumps(list(done.values())))
        found = {kind: [done[kind, rows, seed] for seed in range(given.draws)] for kind in given.kinds}
        print(row(rows, found), flush=True)
    if given.plot is not None:
        plot(run, [item for item in done.values() if item.purity is not None], given.plot)


if __name__ == "__main__":
    main()
