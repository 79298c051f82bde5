"""A configuration over several seeds, as in the README's tables: ``python -m benchmarks.seeds [CONFIG] --seeds 0 1 2``.

A seed determines the splits of the rows and all other random choices; each run is ``curate run`` on the configuration,
by default the quickstart's, in ``runs/<name>-seed-<seed>``. A finished run is not repeated.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from curation import run
from curation.config.load import load_config

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.yaml"


def table(reports: list[dict[str, Any]]) -> str:
    """Return the arms as Markdown: the mean over the seeds, and each seed's estimate with its interval."""
    by_seed = [{arm["name"]: arm for arm in report["arms"]} for report in reports]
    lines = [
        f"| arm | purity %, mean of {len(reports)} seeds | each (95 % interval) | test accuracy %, mean | each |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, estimates in (("base of the student", "base"), ("weak teacher", "teacher")):
        found = [_estimate(report[estimates]) for report in reports]
        lines.append(f"| {label} | | | {_mean(found)} | {_each(found)} |")
    for name in by_seed[0]:
        purity, accuracy = ([arms[name][key] for arms in by_seed] for key in ("purity", "accuracy"))
        lines.append(f"| {name} | {_mean(purity)} | {_each(purity)} | {_mean(accuracy)} | {_each(accuracy)} |")
    return "\n".join(lines)


def _estimate(value: dict[str, Any]) -> dict[str, Any]:
    """Return the estimate on the test split, of a model that has one on the pool as well."""
    estimate: dict[str, Any] = value.get("test", value)
    return estimate


def _mean(estimates: list[dict[str, Any]]) -> str:
    return f"{100 * statistics.mean(estimate['value'] for estimate in estimates):.1f}"


def _each(estimates: list[dict[str, Any]]) -> str:
    return ", ".join(f"{100 * e['value']:.1f} ({100 * e['low']:.1f}-{100 * e['high']:.1f})" for e in estimates)


def main() -> None:
    """Run the seeds that are not done, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=QUICKSTART)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    reports = []
    for seed in given.seeds:
        reports.append(run(load_config(given.config, [f"seed={seed}", f"name={given.config.stem}-seed-{seed}"])))
        print(table(reports), flush=True)


if __name__ == "__main__":
    main()
