r"""Arithmetic with steps: rows with long answers, for benchmarks of what answers cost. Made here, CC0.

A problem is ``47 + 3 * 23 = ?``; its solution counts the additions down, ``3: 70``, ``2: 93``, ``1: 116``, and ends in
``\boxed{116}``. The number of additions is in the prompt, and the more there are, the longer is the answer and the more
often is a small model wrong.
"""

import json
import random
from itertools import product
from pathlib import Path

SEED = 7
MOST_STEPS = 16


def row(start: int, times: int, step: int) -> dict[str, str]:
    """A row of the math domain, with its solution."""
    totals = [start + (place + 1) * step for place in range(times)]
    lines = [f"{times - place}: {total}" for place, total in enumerate(totals)]
    return {
        "problem": f"{start} + {times} * {step} = ?",
        "solution": "\n".join([*lines, rf"\boxed{{{totals[-1]}}}"]),
        "answer": str(totals[-1]),
        "level": str(times),
    }


def write(path: Path, num_rows: int) -> None:
    """So many different rows, drawn by a seed of our own; a file that is there stays."""
    if path.is_file():
        return
    every = list(product(range(10, 100), range(1, MOST_STEPS + 1), range(2, 100)))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    drawn = random.Random(SEED).sample(every, num_rows)
    partial.write_text("".join(json.dumps(row(*numbers)) + "\n" for numbers in drawn))
    partial.rename(path)
