"""Duration of the quickstart beside another checkout of this project: ``python -m benchmarks.quickstart_time DIR``.

The peer is ``curate run`` on the quickstart of the checkout at ``DIR`` (``git worktree add DIR COMMIT``), with the same
interpreter and packages. Both sides run from scratch in separate directories, in turn. Checked: both give the same
purities and test accuracies, to the last digit. Seconds are those from the first stage's start to the report.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]


def run(checkout: Path, directory: Path) -> tuple[float, dict[str, Any]]:
    """Run the quickstart of a checkout in a new directory: seconds and the report's numbers."""
    command = [sys.executable, "-m", "curation.cli", "run", "examples/quickstart.yaml", "--set", f"run_dir={directory}"]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    began = time.monotonic()
    subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    return time.monotonic() - began, json.loads((directory / "report.json").read_text())


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """Return what the table of a report shows: purity and test accuracy of every arm, with their intervals."""
    return {arm["name"]: (arm["purity"], arm["accuracy"]) for arm in report["arms"]}


def kinds(report: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of the stages by what they do."""
    found: dict[str, float] = {}
    for stage in report["stages"]:
        kind = stage["name"].rpartition("/")[2].partition("-")[0]
        found[kind] = found.get(kind, 0.0) + stage["seconds"]
    return found


def main() -> None:
    """Run the pairs and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, help="another checkout")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    ratios = []
    for pair in range(options.pairs):
        sides = {"ours": HERE, "peer": options.peer.resolve()}
        found: dict[str, tuple[float, dict[str, Any]]] = {}
        for name, checkout in list(sides.items())[:: 1 if pair % 2 else -1]:
            with tempfile.TemporaryDirectory() as directory:
                found[name] = run(checkout, Path(directory) / "run")
        (ours, report), (peer, other) = found["ours"], found["peer"]
        assert numbers(report) == numbers(other), f"other numbers: {numbers(report)} and {numbers(other)}"
        ratios.append(ours / peer)
        print(f"pair {pair}: ours {ours:.0f} s, peer {peer:.0f} s, ratio {ours / peer:.3f}; the same table", flush=True)
        for side, told in (("ours", report), ("peer", other)):
            parts = ", ".join(f"{kind} {seconds:.0f}" for kind, seconds in kinds(told).items())
            print(f"  seconds of stages, {side}: {parts}", flush=True)
        starts = sum(labelling["starts"] for labelling in report["passes"])
        print(f"  {starts} starts for {len(report['passes'])} passes", flush=True)
    print(f"quickstart: ratio {statistics.median(ratios):.3f} ({len(ratios)} pairs; to reach 0.65)")


if __name__ == "__main__":
    main()
