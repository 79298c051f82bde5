"""Make the small data of the multiple-choice and math examples: ``data/{mcqa,mcqa_other,math}.jsonl``.

    python examples/make_rows.py

All are made here, from a seed and the words below, and are CC0. No two rows of a file have the same question, and
``mcqa_other`` asks other kinds of questions than ``mcqa``: a benchmark of its own, for trust out of distribution. Some
kinds are easy and some are hard for a small model from random weights. Fields are those of the domains:
``question``, ``choices`` and ``answer`` (the place of the right choice, from 0); ``problem``, ``answer`` and ``level``
("1" to "5", by the size of the numbers and the operation).
"""

import json
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import gcd
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SEED = 30
WORDS = {
    "animal": ("ant", "bear", "cat", "cow", "crab", "deer", "dog", "duck", "fox", "goat", "hen", "horse", "wolf"),
    "colour": ("black", "blue", "brown", "green", "grey", "mauve", "pink", "red", "violet", "white", "yellow"),
    "fruit": ("apple", "cherry", "fig", "grape", "kiwi", "lemon", "mango", "melon", "peach", "pear", "plum"),
    "tool": ("axe", "chisel", "drill", "file", "hammer", "knife", "rake", "ruler", "saw", "spade", "wrench"),
}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Row = dict[str, Any]


def parity(rng: random.Random) -> Row:
    number = rng.randrange(1_000)
    return {"question": f"Is {number} odd or even?", "choices": ["odd", "even"], "answer": int(number % 2 == 0)}


def category(rng: random.Random) -> Row:
    kinds = rng.sample(sorted(WORDS), rng.choice((2, 3, 4)))
    words = [rng.choice(WORDS[kind]) for kind in kinds]
    answer = rng.randrange(len(kinds))
    return {"question": f"Find the {kinds[answer]}: {', '.join(words)}", "choices": words, "answer": answer}


def extreme(rng: random.Random) -> Row:
    numbers = rng.sample(range(10 ** rng.choice((1, 1, 2, 3))), rng.choice((2, 2, 3, 4)))
    name, choose = rng.choice((("largest", max), ("smallest", min)))
    question = f"Find the {name}: {', '.join(map(str, numbers))}"
    return {"question": question, "choices": [str(n) for n in numbers], "answer": numbers.index(choose(numbers))}


def total(rng: random.Random) -> Row:
    limit = rng.choice((10, 10, 50))
    left, right = rng.randrange(limit), rng.randrange(limit)
    return _near(rng, f"{left} + {right} = ?", left + right, (-10, -2, -1, 1, 2, 10))


def series(rng: random.Random) -> Row:
    start, step = rng.randrange(60), rng.choice((1, 2, 3, 5, 10))
    question = f"Next: {start}, {start + step}, {start + 2 * step}, ?"
    return _near(rng, question, start + 3 * step, (-step, -1, 1, step, 2 * step + 1))


def alphabet(rng: random.Random) -> Row:
    step = rng.choice((1, 1, 2, 3))
    start = rng.randrange(len(LETTERS) - 3 * step)
    right = start + 3 * step
    wrong = rng.sample([place for place in range(len(LETTERS)) if place != right], 3)
    places = rng.sample([right, *wrong], 4)
    shown = ", ".join(LETTERS[start + step * place] for place in range(3))
    choices = [LETTERS[place] for place in places]
    return {"question": f"Next: {shown}, ?", "choices": choices, "answer": places.index(right)}


def _near(rng: random.Random, question: str, right: int, offsets: tuple[int, ...]) -> Row:
    wrong = sorted({right + offset for offset in offsets if right + offset >= 0} - {right})
    numbers = rng.sample([right, *rng.sample(wrong, 3)], 4)
    return {"question": question, "choices": [str(number) for number in numbers], "answer": numbers.index(right)}


def trivial(rng: random.Random) -> Row:
    number = rng.randrange(1, rng.choice((100, 1_000)))
    texts = {f"{number} + 0": number, f"{number} - {number}": 0, f"{number} * 1": number, f"{number} * 10": number * 10}
    return _computed(*rng.choice(list(texts.items())), level=1)


def round_sums(rng: random.Random) -> Row:
    unit = rng.choice((10, 100, 100))
    left, right = rng.sample((rng.randrange(1, 10) * unit, rng.randrange(unit)), 2)
    return _computed(f"{left} + {right}", left + right, level=2)


def sums(rng: random.Random) -> Row:
    digits = rng.choice((1, 2, 3))
    left, right = (rng.randrange(10**digits) for _ in range(2))
    if rng.random() < 0.5:
        return _computed(f"{left} + {right}", left + right, level=1 + digits)
    return _computed(f"{left} - {right}", left - right, level=(2, 4, 5)[digits - 1])


def products(rng: random.Random) -> Row:
    left, right = rng.randrange(2, 10), rng.randrange(2, rng.choice((10, 10, 50)))
    if rng.random() < 0.5:
        return _computed(f"{left} * {right}", left * right, level=3 if right < 10 else 5)
    return _computed(f"{left * right} / {left}", right, level=3 if right < 10 else 4)


def fractions(rng: random.Random) -> Row:
    low = rng.randrange(3, 20)
    high = low if rng.random() < 0.8 else rng.randrange(3, 20)
    left, right = (Fraction(rng.choice([n for n in range(1, 10) if n < d and gcd(n, d) == 1]), d) for d in (low, high))
    return _computed(f"{left} + {right}", left + right, level=3 if low == high else 5)


def _computed(text: str, answer: int | Fraction, *, level: int) -> Row:
    return {"problem": f"{text} = ?", "answer": str(answer), "level": str(level)}


Kinds = Mapping[Callable[[random.Random], Row], int]
MCQA: Kinds = {category: 3_000, extreme: 2_800, parity: 200}
MCQA_OTHER: Kinds = {total: 450, series: 100, alphabet: 50}
MATH: Kinds = {trivial: 2_000, round_sums: 1_400, sums: 1_400, products: 400, fractions: 800}


def rows(kinds: Kinds, key: str, rng: random.Random) -> list[Row]:
    """Return shuffled rows with the given number of each kind, no two with the same ``key``."""
    made: dict[str, Row] = {}
    for kind, count in kinds.items():
        wanted = len(made) + count
        while len(made) < wanted:
            row = kind(rng)
            made.setdefault(row[key], row)
    return rng.sample(list(made.values()), len(made))


def main() -> None:
    """Write the files."""
    for name, kinds, key in (
        ("mcqa", MCQA, "question"),
        ("mcqa_other", MCQA_OTHER, "question"),
        ("math", MATH, "problem"),
    ):
        lines = [json.dumps(row) + "\n" for row in rows(kinds, key, random.Random(SEED))]
        path = HERE / f"data/{name}.jsonl"
        path.write_text("".join(lines))
        print(f"{path}: {len(lines)} rows, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
