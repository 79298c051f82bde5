r"""Make what the GRPO example starts from: ``data/sums.jsonl`` and the small models ``bases/{sums,sums_teacher}``.

    python examples/make_sums.py [--models sums sums_teacher]

All sums of two numbers from 10 to 99, CC0, are shuffled and split: training rows of each model, validation rows that
decide when its training ends, and shipped rows. ``level`` is 1 plus the number of carries.

Both models answer `` \boxed{85}``. Small models learn addition all at once: another two epochs can take them from 6 to
30 %. So each is trained two epochs at a time until it reaches an accuracy on rows that it does not train on: the
student's base 28 % of answers drawn at temperature 1 (GRPO learns from answers that are right now and then), the
teacher 30 % of its greedy answers.
"""

import argparse
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.taught import write_pairs
from curation.config import AskConfig, DecodingConfig, InitConfig, SftConfig
from curation.domains.math import Math
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import Request
from curation.teachers.transformers import TransformersTeacher
from train.models import read_saved
from train.sft import fine_tune
from train.tokens import Pair

HERE = Path(__file__).resolve().parent
SEED = 40
NUM_VALIDATION = 600
MOST_ROUNDS = 40
DOMAIN = Math(instruction="")
RECIPE = SftConfig(
    preset="scratch",
    epochs=2,
    learning_rate=1e-3,
    schedule="constant",
    warmup_ratio=0,
    global_batch_size=32,
    micro_batch_size=32,
)

Sum = tuple[int, int]


class Made(NamedTuple):
    """The recipe of a model."""

    init: InitConfig
    num_rows: int
    temperature: float
    wanted: float
    """Accuracy on the validation rows at which training ends."""


MODELS = {
    "sums": Made(InitConfig(hidden_size=64, num_layers=2, num_heads=4, max_positions=96), 2_500, 1.0, 0.28),
    "sums_teacher": Made(InitConfig(hidden_size=48, num_layers=2, num_heads=3, max_positions=96), 1_500, 0.0, 0.30),
}


def row(left: int, right: int) -> dict[str, str]:
    """Return the row of a sum, as it is shipped."""
    carries = int(left % 10 + right % 10 > 9) + int(left + right > 99)
    return {"problem": f"{left} + {right} = ?", "answer": str(left + right), "level": str(1 + carries)}


def prompt(left: int, right: int) -> str:
    return DOMAIN.prompt(DOMAIN.read(row(left, right)))


def accuracy(model: ModelRef, sums: list[Sum], temperature: float) -> float:
    """Return the share of sums that the model answers rightly."""
    teacher = TransformersTeacher(AskConfig(states=("output_last",), dtype="float32"), model)
    requests = [Request(row_id=place, prompt=prompt(*pair)) for place, pair in enumerate(sums)]
    decoding = DecodingConfig(max_tokens=16, stop=(), temperature=temperature)
    answers = [
        answer for batch in teacher.label(requests, decoding, seed=SEED, states=False) for answer in batch.to_pylist()
    ]
    return sum(DOMAIN.parse(item["completion"], {}) == str(sum(sums[item["row_id"]])) for item in answers) / len(sums)


def make(name: str, made: Made, sums: list[Sum], validation: list[Sum]) -> None:
    """Train a model from random weights to the wanted accuracy, and save it as float16 to ``bases/<name>``."""
    pairs = [Pair(prompt(left, right), rf" \boxed{{{left + right}}}") for left, right in sums]
    words = DOMAIN.vocabulary()
    with TemporaryDirectory() as work:
        model = create(
            Path(work) / "start",
            family=made.init.family,
            shape=made.init.shape(),
            words=words.words,
            pattern=words.pattern,
            seed=SEED,
        )
        rows = write_pairs(pairs, Path(work) / "rows.lance")
        for number in range(1, MOST_ROUNDS + 1):
            output = Path(work) / f"round-{number}"
            fine_tune(model, rows, RECIPE, seed=SEED + number, output=output)
            model = read_saved(model, None, output).model
            found = accuracy(model, validation, made.temperature)
            print(f"{name}: {2 * number} epochs, {found:.1%} right at temperature {made.temperature:g}", flush=True)
            if found >= made.wanted:
                break
        path = HERE / "bases" / name
        load_model(model, dtype="float16").save_pretrained(path)
        load_tokenizer(model).save_pretrained(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    chosen = parser.parse_args().models
    sums = [(left, right) for left in range(10, 100) for right in range(10, 100)]
    random.Random(SEED).shuffle(sums)
    validation, rest = sums[:NUM_VALIDATION], sums[NUM_VALIDATION:]
    for name, made in MODELS.items():
        own, rest = rest[: made.num_rows], rest[made.num_rows :]
        if name in chosen:
            make(name, made, own, validation)
    with (HERE / "data" / "sums.jsonl").open("w") as file:
        file.writelines(json.dumps(row(*pair)) + "\n" for pair in rest)
    print(f"{len(rest):,} rows are shipped")


if __name__ == "__main__":
    main()
