r"""Arithmetic with steps: generated rows with long answers, and a small teacher of them, for their cost. CC0.

    python -m benchmarks.worked_sums      # some 2 minutes on two cores; what is there is not made again

A problem is ``470 + 3 * 7 = ?``; its solution counts the additions down, ``3: 477``, ``2: 484``, ``1: 491``, and ends
in ``\boxed{491}``. The number of additions is in the prompt: the more there are, the longer the answer is, and the more
often a small model is wrong.
"""

import json
import random
from itertools import product
from pathlib import Path

import torch

from benchmarks.taught import write_pairs
from curation.config import InitConfig, SftConfig
from curation.domains.math import Math
from curation.models import create
from train.models import read_saved
from train.sft import fine_tune
from train.tokens import Pair

SEED = 7
MOST_STEPS = 12
NUM_TAUGHT, NUM_ROWS = 8_000, 17_000
"""Number of rows on which the teacher is trained, and of other rows."""
ROWS, TEACHER = "rows.jsonl", "teacher"
INIT = InitConfig(hidden_size=96, num_layers=3, num_heads=3, max_positions=256)
RECIPE = SftConfig(
    preset="scratch", epochs=4, learning_rate=1.5e-3, global_batch_size=32, micro_batch_size=32, warmup_ratio=0.05
)
DOMAIN = Math(instruction="")


def row(start: int, times: int, step: int) -> dict[str, str]:
    """Return a row of the math domain, with its solution."""
    totals = [start + (place + 1) * step for place in range(times)]
    lines = [f"{times - place}: {total}" for place, total in enumerate(totals)]
    return {
        "problem": f"{start} + {times} * {step} = ?",
        "solution": "\n".join([*lines, rf"\boxed{{{totals[-1]}}}"]),
        "answer": str(totals[-1]),
        "level": str(times),
    }


def make(directory: Path) -> None:
    """Make the rows (``ROWS``) and the teacher (``TEACHER``), as far as they are missing."""
    every = list(product(range(10, 1_000), range(1, MOST_STEPS + 1), range(2, 10)))
    drawn = [row(*numbers) for numbers in random.Random(SEED).sample(every, NUM_TAUGHT + NUM_ROWS)]
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / ROWS).is_file():
        partial = directory / f"{ROWS}.partial"
        partial.write_text("".join(json.dumps(item) + "\n" for item in drawn[NUM_TAUGHT:]))
        partial.rename(directory / ROWS)
    if (directory / TEACHER / "config.json").is_file():
        return
    torch.set_num_threads(2)
    words = DOMAIN.vocabulary()
    model = create(
        directory / "start",
        family=INIT.family,
        shape=INIT.shape(),
        words=words.words,
        pattern=words.pattern,
        seed=SEED,
    )
    pairs = [Pair(DOMAIN.prompt(DOMAIN.read(item)), f" {item['solution']}") for item in drawn[:NUM_TAUGHT]]
    rows = write_pairs(pairs, directory / "taught.lance")
    fine_tune(model, rows, RECIPE, seed=SEED, output=directory / TEACHER)
    read_saved(model, None, directory / TEACHER)


if __name__ == "__main__":
    make(Path("runs/worked_sums"))
