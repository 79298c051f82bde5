"""Numbers that differ between two reports: ``python -m benchmarks.same_numbers OLD/report.json NEW/report.json``.

For code changes that should keep results: two checkouts run the same configuration on the same rows and models. Numbers
in both reports are compared by their path; entries of a list are matched by ``name``. Three kinds are omitted or
counted separately: rates and times, bounds of intervals and p-values (which are random), and the rows that a report
shows as examples. Other numbers that differ by more than ``--relative`` are printed, and the exit code is then 1.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMES = re.compile(r"\b(created|rate|seconds|spent|\w+_per_second|starts|versions|forecast)\b|\.(passes|stages)\[")
DRAWN = re.compile(r"\.(low|high|p_value)$|interval\[\d\]$")
EXAMPLES = re.compile(r"\.rows\.")


def iter_numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON value with their places."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from iter_numbers(item, f"{place}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            name = item.get("name", index) if isinstance(item, dict) else index
            yield from iter_numbers(item, f"{place}[{name}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs=2, type=Path)
    parser.add_argument("--relative", type=float, default=1e-5, help="largest difference, as a share of the number")
    options = parser.parse_args()
    old, new = (dict(iter_numbers(json.loads(path.read_text()))) for path in options.reports)
    both = [place for place in old if place in new and not TIMES.search(place)]
    held = [place for place in both if not DRAWN.search(place) and not EXAMPLES.search(place)]
    equal = [place for place in held if old[place] == new[place]]
    bounds = {place: abs(new[place] - old[place]) for place in both if DRAWN.search(place)}
    differ = [
        place
        for place in held
        if abs(new[place] - old[place]) > options.relative * max(1e-3, abs(old[place]), abs(new[place]))
    ]
    print(f"{len(held):,} numbers that both have, {len(equal):,} of them equal, {len(differ):,} differ by more than")
    print(f"{options.relative:g} of themselves; {len(old.keys() - new.keys()):,} only in the old one, ", end="")
    print(f"{len(new.keys() - old.keys()):,} only in the new one;")
    print(f"bounds of intervals and p-values differ by at most {max(bounds.values(), default=0):.3g}")
    for place in differ:
        print(f"{place.lstrip('.')}: {old[place]:g}, now {new[place]:g}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
