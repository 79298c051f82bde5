"""Counts what optional features cost a reader: ``python docs/feature_cost.py [--at REV ...] [--list FEATURE]``.

For each feature, the Python files of the product that name it outside its own folder, and their packages, at each
revision (a commit or tag; the one that is checked out, unless given), as a table in Markdown.
"""

import argparse
import subprocess
from pathlib import Path
from typing import NamedTuple

PRODUCT = ("curation", "train", "tune")


class Pattern(NamedTuple):
    """How a file names a feature, and the beginning of the path of the feature's own folder or module."""

    names: str
    home: str | None = None


FEATURES = {
    "labels made elsewhere": Pattern(r"given_labels|GivenConfig|is_given\b|teacher\.given\b|== GIVEN"),
    "reader": Pattern(r"teacher\.reader\b|helpers\.reader|ReaderConfig|ReadConfig|\bReadJob\b|\bReadWorker\b"),
    "endpoint": Pattern(r"(?i)endpoint", "curation/teachers/endpoint"),
    "judge": Pattern(r"(?i)\bjudges?\b|Judge[A-Z]|judge_|_judge"),
    "signals": Pattern(r"SignalsConfig|MeasureSignal|signals_of\b|curation\.signals", "curation/signals"),
    "first cut": Pattern(r"(?i)first_?cut|cascade", "curation/extras/first_cut"),
    "class quotas": Pattern(
        r"(?<!curation\.selection\.)\b[qQ]uotas?\b|(?<!insufficient)_quota|\bquota_|Quota[A-Z]|QUOTAS",
        "curation/extras/quotas",
    ),
    "caps": Pattern(
        r"max_per_label|\bCapped\b|[._]capped\b|\bcapped\s*[:=]|CapKeys|LabelKeys|cap_keys|extras\.caps",
        "curation/extras/caps",
    ),
    "check of the best rows": Pattern(
        r"selection\.verify|stages\.verify|is_verified|\bverified\b|check_best|CheckBest", "curation/extras/check_best"
    ),
    "risk": Pattern(r"budget\.risk|RiskConfig|selection\.risk", "curation/selection/risk"),
    "chain": Pattern(r"ChainConfig|config\.chain\b|ChainRecord|pipeline\.chain"),
    "rollouts": Pattern(r"(?i)rollout"),
    "label sets": Pattern(r"(?i)label_?sets?\b", "curation/domains/label_sets"),
    "both orders": Pattern(r"both_orders|BothOrders|\bORDER_[A-Z]|order_agreement|other_order"),
    "content-free calibration": Pattern(
        r"(?i)content.?free|\bblanks\b|FIRST_BLANK|is_calibrated|domain\.calibrate\b",
    ),
    "analysis": Pattern(r"AnalyzeConfig|extras\.analyze|\banalyze\.", "curation/extras/analyze"),
}
"""What a run can do without."""


def find_files(root: Path, pattern: Pattern, revision: str) -> list[str]:
    """Return the files that name a feature at a revision, outside its own folder.

    Raises:
        ValueError: the revision is none of the repository.
    """
    paths = [f"{folder}/*.py" for folder in PRODUCT]
    call = ["git", "-C", str(root), "grep", "-lP", pattern.names, revision, "--", *paths]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise ValueError(f"--at {revision}: {done.stderr.strip()}; give a commit or tag of this repository")
    found = [line.removeprefix(f"{revision}:") for line in done.stdout.splitlines()]
    return [path for path in found if pattern.home is None or not path.startswith(pattern.home)]


def draw(root: Path, revisions: list[str]) -> str:
    """Return the table: a row for each feature, a column for each revision."""
    lines = [f"| feature | {' | '.join(revisions)} |", "| --- |" + " ---: |" * len(revisions)]
    for name, pattern in FEATURES.items():
        found = [find_files(root, pattern, revision) for revision in revisions]
        cells = [f"{len(paths)} files of {len(set(map(name_package, paths)))} packages" for paths in found]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def name_package(path: str) -> str:
    """Return the package of a file as docs/size.py counts them: ``curation/stages``, ``train``."""
    return "/".join(path.split("/")[:-1][:2])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", nargs="+", default=["HEAD"], metavar="REV", help="revisions, side by side")
    parser.add_argument("--list", choices=FEATURES, help="print the files that name a feature at the first revision")
    given = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    print("\n".join(find_files(root, FEATURES[given.list], given.at[0])) if given.list else draw(root, given.at))
