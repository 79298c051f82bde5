"""The rows of the evidence, made once into ``examples/evidence/data``: ``python -m examples.evidence.data``.

| file | rows | what |
| --- | --- | --- |
| ``mates/bases`` | 150,000 | what the bases learn from |
| ``mates/deal`` | 117,000 | adapt, source and pool of every seed |
| ``mates/test``, ``mates/development`` | 15,000 and 3,000 | tests of every seed, and of the gates |
| ``mates/puzzles`` | what is found | shipped Lichess puzzles with a mate in one |
| ``mates/best_moves`` | 3,000 | shipped Lichess puzzles without |
| ``equations/...`` | likewise | the same parts; ``longer`` and ``differences`` instead of puzzles |

The parts of ``mates`` share no game, those of ``equations`` no problem.
"""

import argparse
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from curation.domains.chess import ChessMate
from curation.errors import RowError
from examples.evidence.make_equations import SCHEMA as EQUATIONS
from examples.evidence.make_equations import SHARES, problems, row
from examples.evidence.make_mates import engine_path, make_mates

logger = logging.getLogger(__name__)

HERE = Path(__file__).resolve().parent
PARTS = {"bases": 150_000, "deal": 117_000, "test": 15_000, "development": 3_000}
"""Number of rows of each part, in the order in which the parts are cut."""
SEED = 0
PUZZLES = ("puzzles", "puzzles_hard")
NUM_PROBES = 3_000
OTHER_LEVELS = {"longer": 4, "differences": 5}


def make_data(output: Path, *, workers: int, engine: str | None, parts: dict[str, int] = PARTS) -> None:
    """Write the data files that are missing in ``output``."""
    mates, equations = output / "mates", output / "equations"
    if not all((mates / f"{part}.parquet").is_file() for part in parts):
        whole = mates / "all.parquet"
        if not whole.is_file():
            spare = 8 * len(parts)  # a part begins with a new game, so up to a game's rows are left out
            make_mates(whole, num_rows=sum(parts.values()) + spare, seed=SEED, engine=engine, workers=workers)
        cut(pq.read_table(whole), mates, parts)
    if not all((mates / f"{part}.parquet").is_file() for part in ("puzzles", "best_moves")):
        from_puzzles(mates)
    if not all((equations / f"{part}.parquet").is_file() for part in (*parts, *OTHER_LEVELS)):
        make_problems(equations, parts)


def cut(rows: pa.Table, output: Path, parts: dict[str, int]) -> None:
    """Cut the positions into parts that share no game."""
    games, at = rows["game"].to_pylist(), 0
    for part, num_rows in parts.items():
        while at and games[at] == games[at - 1]:
            at += 1
        write(rows.slice(at, num_rows), output / f"{part}.parquet")
        at += num_rows


def from_puzzles(output: Path) -> None:
    """Sort the shipped Lichess puzzles by whether a move mates."""
    domain, found = ChessMate(), {"puzzles": [], "best_moves": []}
    for name in PUZZLES:
        for puzzle in pq.read_table(HERE.parent / f"data/{name}.parquet").to_pylist():
            try:
                domain.gold(puzzle)
                found["puzzles"].append(puzzle)
            except RowError:
                found["best_moves"].append(puzzle)
    found["best_moves"] = found["best_moves"][:NUM_PROBES]
    for name, rows in found.items():
        write(pa.Table.from_pylist(rows), output / f"{name}.parquet")


def make_problems(output: Path, parts: dict[str, int]) -> None:
    """Draw the problems of all parts at once, so that no two parts share one."""
    drawn = problems(SHARES, seed=SEED)
    for part, num_rows in parts.items():
        rows = [row(*next(drawn)) for _ in range(num_rows)]
        write(pa.Table.from_pylist(rows, schema=EQUATIONS), output / f"{part}.parquet")
    for name, level in OTHER_LEVELS.items():
        drawn = problems({level: 1.0}, seed=SEED)
        rows = [row(*next(drawn)) for _ in range(NUM_PROBES)]
        write(pa.Table.from_pylist(rows, schema=EQUATIONS), output / f"{name}.parquet")


def write(table: pa.Table, path: Path) -> None:
    """Write a table as a Parquet file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    pq.write_table(table, part, compression="zstd")
    part.rename(path)
    logger.info("%s: %d rows", path, len(table))


def main() -> None:
    """Make the data files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "data")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make_data(given.output, workers=given.workers, engine=engine_path())


if __name__ == "__main__":
    main()
