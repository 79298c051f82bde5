"""Make what the quickstart starts from: ``data/puzzles.parquet`` and the small bases ``bases/{teacher,student}``.

    python examples/make_bases.py PUZZLES.parquet [--bases student teacher]

PUZZLES is a Parquet file of Lichess puzzles (CC0): puzzle_id, fen, moves, rating. Rows rated below MAX_RATING are
shuffled and dealt: first those that are shipped, then a development split that nothing trains on; all the rest, with
the rows up to MAX_BASE_RATING, is what the bases learn from. Of the rows above, which no base knows, the first are
shipped as hard puzzles. The shipped files keep the first two moves of a row.

- The student's base learns most positions of the solver in the rows left, once, and answers in score-sheet notation,
  the side before the move, `White: h5f7`: it knows the moves, but not the task's notation, UCI alone, in which it
  scores nothing until it is trained.
- The teacher's base is smaller, sees the few positions that the student's does not, and answers in UCI.

As shipped: 32,000 puzzles (1.0 MB) and 3,000 hard ones; student 2.1 M parameters, 138,699 positions once, 4.2 MB;
teacher 0.6 M parameters, 40,000 positions twice, 1.2 MB. On two cores that did other work as well, 1,184 s and 655 s
(the student's reached 190 rows/s while the cores were free), after some 90 s to render positions. On the development
split the student's base answers 25 % of 1,000 puzzles right in its own notation and none in UCI, the teacher's 12 % of
2,000.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.taught import write_pairs
from curation.config import InitConfig, SftConfig
from curation.domains.chess import Chess
from curation.models import create, load_model, load_tokenizer
from train.models import read_saved
from train.sft import fine_tune
from train.tokens import Pair

HERE = Path(__file__).resolve().parent
SEED = 20
MAX_RATING = 1200
MAX_BASE_RATING = 1500
NUM_SHIPPED = 32_000
NUM_DEVELOPMENT = 9_000
NUM_HARD = 3_000
STUDENT = InitConfig(hidden_size=192, num_layers=4, num_heads=6, max_positions=128)
TEACHER = InitConfig(hidden_size=96, num_layers=4, num_heads=3, max_positions=128)
NUM_TEACHER_ROWS = 40_000
STUDENT_SFT = SftConfig(
    preset="scratch", epochs=1, global_batch_size=64, micro_batch_size=64, learning_rate=1.5e-3, warmup_ratio=0.05
)
TEACHER_SFT = SftConfig(
    preset="scratch", epochs=2, global_batch_size=32, micro_batch_size=32, learning_rate=1.5e-3, warmup_ratio=0.05
)

DOMAIN = Chess()


def deal(puzzles: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each part, ``shipped``, ``hard``, ``development`` and ``bases``; all prompts differ."""
    rows, seen = [], set()
    for row in puzzles.select(["puzzle_id", "fen", "moves", "rating"]).to_pylist():
        position = DOMAIN.read(row)["fen"]  # all that a prompt shows
        if position not in seen:
            seen.add(position)
            rows.append(row)
    rows = [rows[index] for index in np.random.default_rng(SEED).permutation(len(rows))]
    easy = [row for row in rows if row["rating"] < MAX_RATING]
    cut = NUM_SHIPPED + NUM_DEVELOPMENT
    return {
        "shipped": easy[:NUM_SHIPPED],
        "hard": [row for row in rows if row["rating"] >= MAX_BASE_RATING][:NUM_HARD],
        "development": easy[NUM_SHIPPED:cut],
        "bases": easy[cut:] + [row for row in rows if MAX_RATING <= row["rating"] < MAX_BASE_RATING],
    }


def positions(row: Mapping[str, Any]) -> Iterator[tuple[str, chess.Board, chess.Move]]:
    """Yield every prompt to a puzzle's solver, with its position and the move to find there."""
    board = chess.Board(row["fen"])
    moves = [chess.Move.from_uci(move) for move in row["moves"].split()]
    for reply, move in zip(moves[::2], moves[1::2], strict=True):
        board.push(reply)
        yield DOMAIN.prompt({"fen": board.fen(en_passant="fen")}), board, move
        board.push(move)


def on_score_sheet(board: chess.Board, move: chess.Move) -> str:
    """Return the side and the move, `` White: h5f7``."""
    return f" {'White' if board.turn else 'Black'}: {move.uci()}"


def in_uci(board: chess.Board, move: chess.Move) -> str:
    """Return the move in the task's notation."""
    return DOMAIN.answer(move.uci(), {})


def make_base(name: str, init: InitConfig, pairs: list[Pair], config: SftConfig) -> None:
    """Train a base from random weights and save it as float16 to ``bases/<name>``."""
    vocabulary = DOMAIN.vocabulary()
    with TemporaryDirectory() as work:
        start = create(
            Path(work) / "start",
            family=init.family,
            shape=init.shape(),
            words=vocabulary.words,
            pattern=vocabulary.pattern,
            seed=SEED,
        )
        output = Path(work) / name
        record = fine_tune(start, write_pairs(pairs, Path(work) / "rows.lance"), config, seed=SEED, output=output)
        path, model = HERE / "bases" / name, read_saved(start, config.lora, output).model
        load_model(model, dtype="float16").save_pretrained(path)
        load_tokenizer(model).save_pretrained(path)
    size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
    print(f"{path}: {record.num_rows} rows, {record.seconds:.0f} s, last loss {record.losses[-1]:.3f}, {size:.1f} MB")


def main() -> None:
    """Write the puzzles and the requested bases."""
    parser = argparse.ArgumentParser(description="Make the quickstart's puzzles and bases.")
    parser.add_argument("puzzles", help="a Parquet file of Lichess puzzles")
    parser.add_argument("--bases", nargs="*", default=["student", "teacher"], choices=["student", "teacher"])
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("train").setLevel(logging.INFO)
    torch.set_num_threads(2)

    parts = deal(pq.read_table(asked.puzzles))
    for part, name in (("shipped", "puzzles"), ("hard", "puzzles_hard")):
        rows = pa.Table.from_pylist([{**row, "moves": " ".join(row["moves"].split()[:2])} for row in parts[part]])
        pq.write_table(rows, HERE / f"data/{name}.parquet", compression="zstd", compression_level=19)
    if not asked.bases:
        return
    reserved = {next(positions(row))[0] for part in ("shipped", "development") for row in parts[part]}
    known = [item for row in parts["bases"] for item in _answers(row) if item[0] not in reserved]
    known = [known[index] for index in np.random.default_rng(SEED).permutation(len(known))]
    print({name: len(rows) for name, rows in parts.items()}, f"{len(known)} positions", flush=True)
    if "student" in asked.bases:
        sheet = [Pair(prompt, line) for prompt, line, _ in known[:-NUM_TEACHER_ROWS]]
        make_base("student", STUDENT, sheet, STUDENT_SFT)
    if "teacher" in asked.bases:
        uci = [Pair(prompt, uci) for prompt, _, uci in known[-NUM_TEACHER_ROWS:]]
        make_base("teacher", TEACHER, uci, TEACHER_SFT)


def _answers(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(prompt, on_score_sheet(board, move), in_uci(board, move)) for prompt, board, move in positions(row)]


if __name__ == "__main__":
    main()
