"""The long form: ``python -m benchmarks.fuzz --seed 0``, or ``--only directories --inputs 1000``.

It prints how many inputs were read and refused by kind, and the smallest input of a failure.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.fuzz.oracle import COUNTS
from benchmarks.fuzz.runs import KINDS, LONG, fuzz


def main() -> None:
    """Try each kind of input and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, help="of each kind (default: many of the fast ones)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, help="one kind of input")
    parser.add_argument("--no-shrink", action="store_true", help="show a failing input as it was found")
    asked = parser.parse_args()
    kinds = [asked.only] if asked.only else list(KINDS)
    for kind in kinds:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            fuzz(kind, Path(folder), num=asked.inputs or LONG[kind], seed=asked.seed, shrink=not asked.no_shrink)
        print(f"{kind}: seed {asked.seed}, {time.perf_counter() - begun:.0f} s, no failure", flush=True)
    for name, number in sorted(COUNTS.items()):
        print(f"{name:<28}{number:>8,}")


if __name__ == "__main__":
    main()
