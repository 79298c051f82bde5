r"""Make graded arithmetic: ``python -m examples.evidence.make_equations OUT.parquet --rows N``.

A problem is a sum of two numbers, ``347 + 058 = ?``; its solution is `` \boxed{0405}``. Numbers are written with three
digits and results with four, so that all rows have one length: a training whose steps are of rows of one length learns
sums of mixed lengths much more slowly. ``level`` is the difficulty:

| level | numbers | share of the rows |
| --- | --- | --- |
| 1 | 2 digits and 2 digits | 3 % |
| 2 | 3 digits and 2 digits | 37 % |
| 3 | 3 digits and 3 digits | 60 % |
| 4 | 4 digits and 3 digits | only where asked for (``--levels``) |
| 5 | a difference of two numbers of 3 digits | only where asked for |

Gold labels are exact by construction. No two rows have the same problem; there are 160,000 of level 2 and 810,000 of
level 3.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DIGITS = {1: (2, 2), 2: (3, 2), 3: (3, 3), 4: (4, 3), 5: (3, 3)}
"""Digits of the two numbers, by level."""
DIFFERENCE = 5
SHARES = {1: 0.03, 2: 0.37, 3: 0.6}
SCHEMA = pa.schema(
    [("problem", pa.string()), ("answer", pa.string()), ("solution", pa.string()), ("level", pa.string())]
)

Problem = tuple[str, int]
"""The text before the equals sign, and the value."""


def problem(level: int, rng: random.Random) -> Problem:
    """Return a random problem of the given level."""
    numbers = [rng.randrange(10 ** (digits - 1), 10**digits) for digits in DIGITS[level]]
    rng.shuffle(numbers)
    first, second = numbers
    if level == DIFFERENCE:
        return f"{first:03} - {second:03}", first - second
    return f"{first:03} + {second:03}", first + second


def problems(shares: dict[int, float], *, seed: int) -> Iterator[tuple[int, Problem]]:
    """Yield levels and distinct problems without end."""
    rng, seen = random.Random(f"equations-{seed}"), set()
    while True:
        level = rng.choices(list(shares), weights=list(shares.values()))[0]
        found = problem(level, rng)
        if found[0] not in seen:
            seen.add(found[0])
            yield level, found


def row(level: int, found: Problem) -> dict[str, str]:
    """Return a problem's row of the file."""
    text, value = found
    return {
        "problem": f"{text} = ?",
        "answer": f"{value:04}",
        "solution": rf"\boxed{{{value:04}}}",
        "level": str(level),
    }


def make_equations(output: Path, *, num_rows: int, seed: int, shares: dict[int, float]) -> None:
    """Write ``num_rows`` problems.

    Args:
        output: the Parquet file.
        num_rows: number of problems.
        seed: seed of the draw.
        shares: relative shares of the rows, by level.
    """
    drawn = problems(shares, seed=seed)
    rows = [row(*next(drawn)) for _ in range(num_rows)]
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), part, compression="zstd")
    part.rename(output)


def main() -> None:
    """Make the problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, default=320_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--levels", type=int, nargs="+", choices=DIGITS, help="equal shares of these levels")
    given = parser.parse_args()
    shares = {level: 1.0 for level in given.levels} if given.levels else SHARES
    make_equations(given.output, num_rows=given.rows, seed=given.seed, shares=shares)


if __name__ == "__main__":
    main()
