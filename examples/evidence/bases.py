r"""The models that the evidence starts from, trained from random weights: ``python -m examples.evidence.bases mates``.

Every model learns from rows of its own (the first of the task's file), which no split of a run contains.

- **Students' bases** (``small``, for a chain also ``medium`` and ``large``: 0.6, 1.0 and 1.5 million parameters) learn
  the skill in another notation than the task's, so that they know more than the teacher and score next to nothing when
  they are asked: chess from score sheets, `` White: h5f7``; arithmetic from results as `` \text{0405}``, with a box in
  one row of five (GRPO learns from answers that are right now and then).
- **The teacher's base** is smaller. In chess it learns from score sheets too, and a run teaches it the task's notation
  (``teacher.adapt``); in arithmetic it learns the task itself, from few labelled rows.
"""

import argparse
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks.taught import write_pairs
from curation.config import AskConfig, DecodingConfig, InitConfig, SftConfig
from curation.domains import Domain
from curation.domains.chess import ChessMate
from curation.domains.math import Math
from curation.hashing import derive
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import Request
from curation.teachers.transformers import TransformersTeacher
from train.models import read_saved
from train.sft import fine_tune
from train.tokens import Pair

logger = logging.getLogger(__name__)

HERE = Path(__file__).resolve().parent
SEED = 50
BOX, TEXT = r"\boxed", r"\text"
NUM_VALIDATION, MOST_ROUNDS = 1_000, 30
MATES, EQUATIONS = ChessMate(), Math(instruction="")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Made:
    """The recipe of a model."""

    init: InitConfig
    rows: tuple[int, int]
    """Start and end of the model's rows in the task's file, the end excluded."""
    epochs: int
    pairs: Callable[[list[Row]], Iterator[Pair]]
    """Function that makes training pairs from the rows."""
    until: float | None = None
    """Small models learn addition all at once, so ``epochs`` are repeated, at a constant learning rate, until this
    share of ``NUM_VALIDATION`` rows that it does not learn from is right."""

    @property
    def cost(self) -> int:
        """Relative training time, by which the longest training is started first."""
        first, last = self.rows
        return (last - first) * self.epochs * self.init.hidden_size


def score_sheet(rows: list[Row]) -> Iterator[Pair]:
    """Yield pairs that answer with the side to move and the mating move, `` White: h5f7``."""
    for row in rows:
        example = MATES.read(row)
        side = "White" if " w " in example["fen"] else "Black"
        yield Pair(MATES.prompt(example), f" {side}:{MATES.answer(row['mates'], example)}")


def mixed(rows: list[Row]) -> Iterator[Pair]:
    r"""Yield pairs that answer with the result in `` \text{}``, or in one row of five in the task's box."""
    for row in rows:
        text = row["solution"] if derive(SEED, row["problem"]) % 5 == 0 else as_text(row["solution"])
        yield Pair(EQUATIONS.prompt(EQUATIONS.read(row)), f" {text}")


def as_text(solution: str) -> str:
    """Return a boxed solution in the notation of the students' bases."""
    return solution.replace(BOX, TEXT)


def boxed(rows: list[Row]) -> Iterator[Pair]:
    """Yield pairs that answer in the task's own notation."""
    return (Pair(EQUATIONS.prompt(EQUATIONS.read(row)), f" {row['solution']}") for row in rows)


def shape(hidden: int, layers: int) -> InitConfig:
    """Return the shape of a model with the given width and depth, and with heads of 32 numbers."""
    return InitConfig(hidden_size=hidden, num_layers=layers, num_heads=hidden // 32, max_positions=128)


SFT = SftConfig(
    preset="scratch", epochs=1, global_batch_size=32, micro_batch_size=32, learning_rate=2e-3, warmup_ratio=0.05
)
BASE_ROWS = (30_000, 150_000)
SMALL = shape(96, 4)
TASKS: dict[str, tuple[Domain, dict[str, Made]]] = {
    "mates": (
        MATES,
        {
            "teacher": Made(init=shape(64, 3), rows=(0, 18_000), epochs=3, pairs=score_sheet),
            "small": Made(init=SMALL, rows=BASE_ROWS, epochs=2, pairs=score_sheet),
            "medium": Made(init=shape(128, 4), rows=BASE_ROWS, epochs=2, pairs=score_sheet),
            "large": Made(init=shape(160, 4), rows=BASE_ROWS, epochs=2, pairs=score_sheet),
        },
    ),
    "equations": (
        EQUATIONS,
        {
            "teacher": Made(init=shape(64, 3), rows=(0, 4_000), epochs=1, pairs=boxed, until=0.42),
            "small": Made(init=SMALL, rows=(10_000, 31_000), epochs=1, pairs=mixed, until=0.85),
        },
    ),
}


def make_base(domain: Domain, made: Made, rows: list[Row], output: Path, *, recipe: SftConfig = SFT) -> None:
    """Train a model and save it as float16 to ``output``, atomically."""
    words = domain.vocabulary()
    held_out = rows[:NUM_VALIDATION] if made.until is not None else []
    with TemporaryDirectory() as work:
        model = create(
            Path(work) / "start",
            family=made.init.family,
            shape=made.init.shape(),
            words=words.words,
            pattern=words.pattern,
            seed=SEED,
        )
        pairs = write_pairs(list(made.pairs(rows[len(held_out) :])), Path(work) / "rows.lance")
        recipe = recipe.model_copy(update={"epochs": made.epochs})
        if made.until is not None:
            recipe = recipe.model_copy(update={"schedule": "constant", "warmup_ratio": 0.0})
        for number in range(MOST_ROUNDS):
            trained = Path(work) / f"trained-{number}"
            record = fine_tune(model, pairs, recipe, seed=SEED + number, output=trained)
            model = read_saved(model, None, trained).model
            logger.info("%s: %d rows, %.0f s, loss %.3f", output, record.num_rows, record.seconds, record.losses[-1])
            if made.until is None:
                break
            right = accuracy(domain, model, held_out)
            logger.info("%s: %.1f %% right", output, 100 * right)
            if right >= made.until:
                break
        part = output.with_name(f"{output.name}.part")
        load_model(model, dtype="float16").save_pretrained(part)
        load_tokenizer(model).save_pretrained(part)
        part.rename(output)


def accuracy(domain: Domain, model: ModelRef, rows: list[Row]) -> float:
    """Return the share of greedy answers that are right, in either notation."""
    teacher = TransformersTeacher(AskConfig(states=("output_last",), dtype="float32"), model)
    examples = [domain.read(row) for row in rows]
    requests = [Request(row_id=place, prompt=domain.prompt(example)) for place, example in enumerate(examples)]
    right = 0
    for batch in teacher.label(requests, DecodingConfig(max_tokens=16, stop=()), seed=SEED, states=False):
        for answer in batch.to_pylist():
            place = answer["row_id"]
            gold = domain.gold(rows[place])
            assert gold is not None, "rows have answers"
            said = answer["completion"].replace(TEXT, BOX)
            right += domain.is_correct(domain.parse(said, examples[place]), gold)
    return right / len(rows)


def make_bases(wanted: Mapping[str, Collection[str]], data: Path, output: Path, *, workers: int) -> None:
    """Train the models that are missing.

    Args:
        wanted: names of models, by task.
        data: the folder with ``TASK/bases.parquet``, the rows to learn from.
        output: the folder for ``TASK/NAME``.
        workers: number of processes, each with one thread: models this small train hardly faster with two.
    """
    missing = [(task, name) for task, names in wanted.items() for name in names if not (output / task / name).is_dir()]
    missing.sort(key=lambda key: -TASKS[key[0]][1][key[1]].cost)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        trained = [pool.submit(_make, task, name, data, output) for task, name in missing]
        for one in trained:
            one.result()


def _one_thread() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)


def _make(task: str, name: str, data: Path, output: Path) -> None:
    domain, models = TASKS[task]
    made, (first, last) = models[name], models[name].rows
    rows = pq.read_table(data / task / "bases.parquet").slice(first, last - first).to_pylist()
    (output / task).mkdir(parents=True, exist_ok=True)
    make_base(domain, made, rows, output / task / name)


def main() -> None:
    """Train the requested models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--output", type=Path, default=HERE / "bases")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    names = given.only or TASKS[given.task][1]
    make_bases({given.task: names}, given.data, given.output, workers=given.workers)


if __name__ == "__main__":
    main()
