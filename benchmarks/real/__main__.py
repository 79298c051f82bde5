"""Trust on a real model: what each arm is worth by the number of labelled rows.

    python -m benchmarks.real --model FOLDER --data FOLDER [--work build/real] [--sets sciq,irony]

The teacher is a pretrained causal model in a folder of Hugging Face's format, which answers the sets of
``benchmarks.real.tasks`` once each (resumable; ``--no-label`` takes those that are there). Then every arm is fitted on
100, 300, 1,000 and all source rows, five draws each (of all rows, five deals into folds), and measured on the pool:
AUC, purity of the best 10 and 25 %, Brier score against a constant's, and of trust above .9 the promise less the share
right. Results go to ``results.json`` beside this file and, with ``--write-docs``, into docs/log/real-models.md.
``--run NAME=DIR`` adds any finished run with an audit set. The peer is a logistic regression of ten numbers and an
out-of-fold probe, by scikit-learn.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.real.arms import BASELINE, Arm, Scored, arms, drawn, free, paper
from benchmarks.real.promises import promises
from benchmarks.real.tasks import TASKS, configuration
from benchmarks.recorded import recorded
from curation.arms import FREE, PAPER_TRUST
from curation.config import TrustConfig
from curation.metrics import compute_auc_value
from curation.refs import TableRef
from curation.tables import io, schemas
from curation.trust.stacked import list_stored_numbers
from train.probes import ClosedLabels, with_classes
from train.trust import read_labelled_rows
from train.trust_loop import LabelledRows

SIZES, DRAWS, NTF_DRAWS = (100, 300, 1_000), 5, 2
"""Labelled rows, and draws of them; a fit of the paper's network takes minutes, so that it has fewer."""
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "log" / "real-models.md"
MARK = "<!-- tables: python -m benchmarks.real --write-docs -->"


def label(name: str, data: Path, model: Path, work: Path, *, dtype: str) -> None:
    """Run the stages of a set up to its grades."""
    from curation.pipeline.running import run_part

    config = configuration(name, data, model, work, dtype=dtype)
    for stage in ("gen-0/grade-source", "gen-0/grade-pool"):
        run_part(config, stage)


def labelled(directory: Path) -> bool:
    """Return whether both splits of a run are graded."""
    manifest = directory / "manifest.json"
    stages = json.loads(manifest.read_text())["stages"] if manifest.exists() else {}
    return all(stages.get(f"gen-0/grade-{split}", {}).get("outputs") for split in ("source", "pool"))


def rows_of(directory: Path, split: str) -> tuple[LabelledRows, tuple[str, ...]]:
    """Return the graded, parsed rows of a split of a finished run, one a question, and the states that they have."""
    stages = recorded(directory)
    uri = stages[f"gen-0/label-{split}"]["outputs"]["labels"]["uri"]
    labels = io.find_latest(uri)
    grades = TableRef.from_json(stages[f"gen-0/grade-{split}"]["outputs"]["grades"])
    schema = io.open_table(labels).schema
    states = tuple(name.removeprefix(schemas.get_state_column("")) for name in schema.names if schemas.is_state(name))
    rows = read_labelled_rows(labels, grades, TrustConfig(states=states), seed=0, numbers=list_stored_numbers(schema))
    domain = yaml.safe_load((directory / "config.yaml").read_text())["domain"]
    classes = tuple(domain.get("labels") or domain.get("classes") or ())
    if not classes:
        return rows, states
    tables = stages["prepare"]["outputs"]["tables"]
    gold = TableRef.from_json(tables["source" if split == "source" else "audit"])
    return with_classes(rows, labels, ClosedLabels(classes, gold)), states


def measured(scored: Scored, pool: LabelledRows, constant: float) -> dict[str, float]:
    """Return the numbers of one score of the pool."""
    right_N = pool.correct_N
    order = np.argsort(-scored.raw_N, kind="stable")
    found = {"auc": compute_auc_value(scored.raw_N, right_N)}
    for share in (10, 25):
        found[f"purity_{share}"] = float(right_N[order[: len(order) * share // 100]].mean())
    if scored.trust_N is not None:
        found["brier"] = float(np.mean((scored.trust_N - right_N) ** 2))
        found["brier_constant"] = float(np.mean((constant - right_N) ** 2))
        sure_N = scored.trust_N > 0.9
        found["num_sure"] = int(sure_N.sum())
        if sure_N.any():
            found["promise_less_right"] = float(scored.trust_N[sure_N].mean() - right_N[sure_N].mean())
            share = float(right_N[sure_N].mean())
            found["promise_error"] = float(np.sqrt(max(share * (1 - share), 0.25 / sure_N.sum()) / sure_N.sum()))
    return found


def bench(name: str, directory: Path, *, ntf: bool, deals: int) -> dict[str, Any]:
    """Return results of all arms at all sizes on one set; means over the draws, with their standard deviations.

    With ``deals``, the promise of the surest rows over as many deals of the set's rows.
    """
    (source, states), (pool, _) = (rows_of(directory, split) for split in ("source", "pool"))
    usable = int((source.part_N >= 0).sum())
    config = yaml.safe_load((directory / "config.yaml").read_text())
    found: dict[str, Any] = {
        "dtype": config["teacher"]["dtype"],
        "source_rows": usable,
        "pool_rows": len(pool.correct_N),
        "share_right": float(pool.correct_N.mean()),
        "sizes": {},
    }
    for size in (*(size for size in SIZES if size < usable), None):
        lines: dict[str, Any] = {}
        for arm, score in arms(states, config["trust"]["preset"] if ntf and size is None else None).items():
            lines[arm] = over_draws(
                score, source, pool, size, draws=1 if arm in FREE else NTF_DRAWS if arm == PAPER_TRUST else DRAWS
            )
        found["sizes"][str(size or usable)] = lines
        best = max(lines[arm]["auc"] for arm in FREE)
        own, peer = lines["stacked"], lines[BASELINE]["auc"]
        print(
            f"{name} {size or usable}: stacked {own['auc']:.3f} (best free signal {best:.3f}, peer {peer:.3f}; ratio "
            f"{own['auc'] / max(best, peer):.3f}), purity {100 * own['purity_25']:.1f}, Brier {own['brier']:.3f} "
            f"(constant {own['brier_constant']:.3f})",
            flush=True,
        )
    if deals:
        found["promises"] = promises(source, pool, states, deals=deals)
    return found


def over_draws(score: Arm, source: LabelledRows, pool: LabelledRows, size: int | None, *, draws: int) -> dict[str, Any]:
    """Return the numbers of one arm with ``size`` labelled rows: means over draws of them, with the AUC's deviation."""
    of_draws, taken, start = [], Counter[str](), time.monotonic()
    for seed in range(draws):
        part = drawn(source, size, seed)
        constant = float(part.correct_N[part.part_N >= 0].mean())
        scored = score(part, pool, seed)
        of_draws.append(measured(scored, pool, constant))
        taken.update([scored.taken] if scored.taken else [])
    names = {key for draw in of_draws for key in draw}
    line: dict[str, Any] = {
        key: float(np.nanmean([draw.get(key, np.nan) for draw in of_draws])) for key in sorted(names)
    }
    line["auc_deviation"] = float(np.std([draw["auc"] for draw in of_draws]))
    line["seconds"] = (time.monotonic() - start) / draws
    return line | ({"taken": dict(taken)} if taken else {})


def add_ntf(found: dict[str, Any], directory: Path) -> None:
    """Measure the paper's network on all labelled rows and add its line to a set that was measured before.

    The free signals are measured again: they say how near these labels are to the ones that the other lines have.
    """
    (source, states), (pool, _) = (rows_of(directory, split) for split in ("source", "pool"))
    lines = by_size(found)[str(found["source_rows"])]
    preset = yaml.safe_load((directory / "config.yaml").read_text())["trust"]["preset"]
    now = {arm: over_draws(free(arm), source, pool, None, draws=1)["auc"] for arm in FREE}
    apart = max(abs(auc - lines[arm]["auc"]) for arm, auc in now.items())
    lines[PAPER_TRUST] = line = over_draws(paper(states, preset), source, pool, None, draws=NTF_DRAWS)
    print(f"{directory.name}: ntf {line['auc']:.3f}; free signals within {apart:.4f} of those on record", flush=True)


def by_size(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the lines of a set's arms by the number of labelled rows, the fewest first."""
    return {size: found["sizes"][size] for size in sorted(found["sizes"], key=int)}


def rule(lines: dict[str, Any], size: str) -> tuple[float, bool, float]:
    """Return the AUC of the default less that of the best other arm, if it is enough, and Brier less a constant's."""
    own = lines["stacked"]
    ahead = own["auc"] - max(lines[BASELINE]["auc"], *(lines[arm]["auc"] for arm in FREE))
    return ahead, ahead >= (-0.015 if size == "100" else -0.005), own["brier"] - own["brier_constant"]


def summary(results: dict[str, Any]) -> str:
    """Return the differences that the rule on AUC and Brier score covers, a line a set, as Markdown; bold: fails."""
    lines = [
        "AUC of `stacked` less that of the better of best free signal and peer, and its Brier score less a constant's:",
        "",
        "| set | 100 rows | 300 rows | 1,000 rows | all rows |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    held = total = 0
    for name, found in results.items():
        cells = {}
        for size, of_size in by_size(found).items():
            ahead, enough, brier = rule(of_size, size)
            held, total = held + (enough and brier < 0), total + 1
            shown = (f"{ahead:+.4f}", enough), (f"{brier:+.4f}", brier < 0)
            cells[size] = ", ".join(text if good else f"**{text}**" for text, good in shown)
        *_, last = cells
        columns = [*(cells.get(size, "") if size != last else "" for size in ("100", "300", "1000")), cells[last]]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return "\n".join([*lines, "", f"Both hold in {held} of {total} cells.", ""])


def tables(results: dict[str, Any]) -> str:
    """Return the results as Markdown: a table a set."""
    lines: list[str] = []
    for name, found in results.items():
        of_sizes = by_size(found)
        first, last = (of_sizes[size] for size in (min(of_sizes, key=int), max(of_sizes, key=int)))
        lines += [
            f"### {name}",
            "",
            f"{found['source_rows']:,} source rows, {found['pool_rows']:,} pool rows, "
            f"{100 * found['share_right']:.1f} % right, teacher in {found['dtype']}. "
            "AUC, and purity of the best quarter in per cent:",
            "",
            "| arm | "
            + " | ".join(f"{size} rows" for size in of_sizes)
            + " | Brier, fewest rows | Brier, all rows | promise above .9, all rows |",
            "| --- |" + " ---: |" * (len(of_sizes) + 3),
        ]
        for arm in last:
            cells = []
            for of_size in of_sizes.values():
                line = of_size.get(arm)
                cells.append("" if line is None else f"{line['auc']:.3f}, {100 * line['purity_25']:.1f}")
            for line in (first.get(arm, {}), last[arm]):
                shown = f"{line['brier']:.3f} (constant {line['brier_constant']:.3f})" if "brier" in line else ""
                cells.append(shown)
            line, sure = last[arm], ""
            if "promise_less_right" in line:
                promise, error = 100 * line["promise_less_right"], 196 * line["promise_error"]
                sure = f"{promise:+.1f} ± {error:.1f} of {line['num_sure']:.0f}"
            label = f"**{arm}**" if arm == "stacked" else arm
            lines.append(f"| {label} | {' | '.join([*cells, sure])} |")
        lines += ["", *_promised(found.get("promises")), ""]
    return "\n".join(lines)


def _promised(found: dict[str, Any] | None) -> list[str]:
    """Return a sentence on the promise over many deals, if it was measured."""
    if found is None:
        return []
    deals = f"Over {found['deals']} deals of these rows, {found['labelled']:,} labelled,"
    if found["rows"] < 1:
        return [f"{deals} {'no' if not found['rows'] else 'hardly a'} row's trust is above .9."]
    if "mean" not in found:
        return [f"{deals} trust is above .9 in one alone, which says nothing of the promise."]
    by_deals, by_rows = (
        f"{100 * found[of]:+.1f} ± {196 * found[error]:.1f}"
        for of, error in (("mean", "error"), ("of_rows", "of_rows_error"))
    )
    return [
        f"{deals} trust above .9 promises {by_deals} points more than is right, each deal as much as another, and "
        f"{by_rows} of all such rows together ({found['rows']:.0f} rows a deal)."
    ]


def main() -> None:
    """Label, measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the teacher's folder")
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("build/real"), help="where labels are kept")
    parser.add_argument("--dtype", default="float32", help="of the teacher: bfloat16 where the processor has it")
    parser.add_argument("--sets", default=",".join(TASKS), help="names, joined by commas")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=DIR", help="a finished run beside the sets")
    parser.add_argument("--no-label", action="store_true", help="only what is labelled already")
    parser.add_argument("--deals", type=int, default=0, help="deals of each set's rows that judge trust above .9")
    parser.add_argument("--ntf", action="store_true", help="fit the paper's network too, on all rows")
    parser.add_argument("--only-ntf", action="store_true", help="fit it alone, for sets that are measured already")
    parser.add_argument("--write-docs", action="store_true", help="write docs/log/real-models.md again")
    given = parser.parse_args()
    names = [name for name in given.sets.split(",") if name]
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"--sets: {unknown[0]!r} is none of {', '.join(TASKS)}")
    if names and not given.no_label and (given.model is None or given.data is None):
        parser.error("--model and --data are needed to label; --no-label takes what is labelled already")
    directories = {name: given.work.absolute() / name for name in names}
    if not given.no_label:
        from curation import session

        with session():
            for name in names:
                label(name, given.data.absolute(), given.model.absolute(), given.work.absolute(), dtype=given.dtype)
    directories |= {name: Path(path) for name, _, path in (item.partition("=") for item in given.run)}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, directory in directories.items():
        if not labelled(directory):
            print(f"{name}: not labelled to the end, left out ({directory})")
            continue
        if given.only_ntf:
            add_ntf(results[name], directory)
        else:
            results[name] = bench(name, directory, ntf=given.ntf, deals=given.deals)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    if given.write_docs:
        head = PAGE.read_text().partition(MARK)[0]
        PAGE.write_text(f"{head}{MARK}\n\n{summary(results)}\n{tables(results)}")


if __name__ == "__main__":
    main()
