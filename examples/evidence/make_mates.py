"""Make positions of chess with a mate in one, by play: ``python -m examples.evidence.make_mates OUT.parquet --rows N``.

A game starts from a random endgame: two kings, three or four pieces of the hunter and one to four of the other, who
moves at random. When the hunter can mate, the position is kept, and in nine of ten cases the hunter spares its opponent
and plays on, so that a game gives up to MOST_A_GAME positions. There are three hunters:

- ``random`` moves at random too;
- ``greedy`` takes the most valuable piece that it can take, else moves at random;
- ``engine`` plays the move of a UCI engine (Stockfish) at NODES nodes, and every third move at random. Without an
  engine its share of the games is played by ``greedy``, and the rows say so (``origin``).

Rows: ``fen``, ``origin`` (the hunter), ``game``, ``ply``, and ``mates`` (all mating moves). No two rows have the same
board, side to move, castling rights and en-passant square. Every game has a seed of its own, so the rows depend on the
seed and the engine, not on the number of workers.
"""

import argparse
import logging
import random
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, Self

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from curation.domains.chess import ChessMate, find_mating_moves

logger = logging.getLogger(__name__)

SHARES = {"random": 0.1, "greedy": 0.6, "engine": 0.3}
"""Shares of the games, by kind of the side that hunts the mate."""
MOST_A_GAME = 8
MOST_PLIES = 40
HUNTERS, OTHERS = "QQRRBBNN", "RBNPPP"
"""The pieces from which the two sides are drawn, beside their kings."""
SPARED = 0.9
NODES = 60
ENGINE_BLUNDERS = 1 / 3
GAMES_A_TASK = 200
VALUES = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}
SCHEMA = pa.schema(
    [
        ("fen", pa.string()),
        ("origin", pa.string()),
        ("game", pa.int64()),
        ("ply", pa.int32()),
        ("mates", pa.string()),
    ]
)


class Engine:
    """A UCI engine with one thread that forgets between games, so that its moves are the same every time."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        self._tell("setoption name Threads value 1", "setoption name Hash value 1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell("quit")
        self._process.wait(timeout=10)

    def new_game(self) -> None:
        """Clear the engine's memory of earlier searches."""
        self._tell("ucinewgame", "isready")
        self._answer("readyok")

    def move(self, board: chess.Board) -> chess.Move:
        """Return the engine's move."""
        self._tell(f"position fen {board.fen()}", f"go nodes {NODES}")
        return chess.Move.from_uci(self._answer("bestmove").split()[1])

    def _tell(self, *lines: str) -> None:
        assert self._process.stdin is not None, "opened with a pipe"
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def _answer(self, start: str) -> str:
        assert self._process.stdout is not None, "opened with a pipe"
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        raise RuntimeError(f"the engine ended without a line {start!r}")


def endgame(hunter: chess.Color, rng: random.Random) -> chess.Board:
    """Return a random position with the hunter to move, in which the game is not over."""
    while True:
        board = chess.Board(None)
        board.turn = hunter
        drawn = [(symbol, hunter) for symbol in ("K", *rng.sample(HUNTERS, rng.randint(3, 4)))]
        drawn += [(symbol, not hunter) for symbol in ("K", *rng.sample(OTHERS, rng.randint(1, 4)))]
        squares = rng.sample(chess.SQUARES, len(drawn))
        for square, (symbol, colour) in zip(squares, drawn, strict=True):
            board.set_piece_at(square, chess.Piece(chess.Piece.from_symbol(symbol).piece_type, colour))
        if board.is_valid() and not board.is_game_over():
            return board


def greedy(board: chess.Board, rng: random.Random) -> chess.Move:
    """Return the capture that gains most, less the own piece if the square is defended, or a random move."""
    moves = list(board.legal_moves)
    best, gained = rng.choice(moves), 0
    for move in moves:
        taken = board.piece_type_at(move.to_square)
        if taken is None:
            continue
        moved = board.piece_type_at(move.from_square)
        assert moved is not None, "a legal move moves a piece"
        gain = VALUES[taken] - (VALUES.get(moved, 0) if board.is_attacked_by(not board.turn, move.to_square) else 0)
        if gain > gained:
            best, gained = move, gain
    return best


def play(game: int, *, seed: int, engine: Engine | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of one game."""
    rng = random.Random(f"{seed}-{game}")
    origin = rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
    if origin == "engine" and engine is None:
        origin = "greedy"
    if engine is not None:
        engine.new_game()
    hunter, kept = rng.choice(chess.COLORS), 0
    board = endgame(hunter, rng)
    for _ in range(MOST_PLIES):
        if board.is_game_over():
            return
        mates = find_mating_moves(board)
        if mates and board.turn == hunter:
            yield {
                "fen": board.fen(en_passant="fen"),
                "origin": origin,
                "game": game,
                "ply": board.ply(),
                "mates": " ".join(sorted(move.uci() for move in mates)),
            }
            kept += 1
            others = [move for move in board.legal_moves if move not in mates]
            if kept == MOST_A_GAME or not others or rng.random() >= SPARED:
                return
            board.push(rng.choice(others))
        elif board.turn == hunter and origin == "greedy":
            board.push(greedy(board, rng))
        elif board.turn == hunter and origin == "engine" and rng.random() >= ENGINE_BLUNDERS:
            assert engine is not None, "without one greedy plays"
            board.push(engine.move(board))
        else:
            board.push(rng.choice(list(board.legal_moves)))


def _games(first: int, seed: int, path: str | None) -> list[dict[str, Any]]:
    """Return the rows of one task's games."""
    games = range(first, first + GAMES_A_TASK)
    if path is None:
        return [row for game in games for row in play(game, seed=seed, engine=None)]
    with Engine(path) as engine:
        return [row for game in games for row in play(game, seed=seed, engine=engine)]


def make_mates(output: Path, *, num_rows: int, seed: int, engine: str | None, workers: int) -> None:
    """Write ``num_rows`` distinct positions.

    Args:
        output: the Parquet file.
        num_rows: number of positions.
        seed: seed of the games.
        engine: path of a UCI engine, or None to play without one.
        workers: number of processes.
    """
    domain, seen, rows, started = ChessMate(), set(), [], monotonic()
    with ProcessPoolExecutor(workers) as pool:
        first, tasks = 0, []
        while len(rows) < num_rows:
            while len(tasks) < 2 * workers:
                tasks.append(pool.submit(_games, first, seed, engine))
                first += GAMES_A_TASK
            for row in tasks.pop(0).result():
                identity = domain.identity(row)
                if identity not in seen:
                    seen.add(identity)
                    rows.append(row)
            if first % (50 * GAMES_A_TASK) == 0:
                logger.info("%d positions, %.0f/s", len(rows), len(rows) / (monotonic() - started))
        for task in tasks:
            task.cancel()
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(rows[:num_rows], schema=SCHEMA), part, compression="zstd")
    part.rename(output)
    logger.info("%s: %d positions in %.0f s", output, num_rows, monotonic() - started)


def engine_path() -> str | None:
    """Return the path of Stockfish, or None if it is not installed."""
    return shutil.which("stockfish") or shutil.which("stockfish", path="/usr/games:/usr/local/bin")


def main() -> None:
    """Make the positions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, default=320_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default=engine_path())
    parser.add_argument("--no-engine", dest="engine", action="store_const", const=None)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logger.info("engine: %s", given.engine or "none, greedy plays its games")
    make_mates(given.output, num_rows=given.rows, seed=given.seed, engine=given.engine, workers=given.workers)


if __name__ == "__main__":
    main()
