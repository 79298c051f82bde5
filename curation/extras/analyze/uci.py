"""A UCI chess engine in a child process: it values moves reproducibly and within a time limit."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from curation.errors import ConfigError, RowError
from curation.escaping import quote_text
from curation.extras.analyze.config import EngineConfig
from curation.heavy import Lazy

if TYPE_CHECKING:
    import chess
    from chess import engine
else:  # its tables take half a second, which looks at runs without chess do not pay
    chess, engine = Lazy("chess"), Lazy("chess.engine")

GAMES = "/usr/games"
"""Folder in which Debian and Ubuntu install ``stockfish``; not every ``PATH`` has it."""
START_SECONDS = 60.0
"""Time limit for the start of an engine, which may read a network of weights from a busy disk."""
MOST_FAILURES = 3
"""Number of consecutive failed searches after which the engine is not asked about the rest of a chunk."""


class Value(NamedTuple):
    """The value of a move to the side that makes it; exactly one field is None."""

    centipawns: int | None
    """Centipawns of an undecided game; 0 for a draw."""
    mate: int | None
    """Moves until mate: positive, the mover mates; negative, the mover is mated; 0, the move itself is mate."""


def find_engine(path: str) -> str:
    """Return the absolute path of an engine's program on this node; a ``ConfigError`` if there is none."""
    found = shutil.which(path) or (shutil.which(path, path=GAMES) if "/" not in path else None)
    if found is None:
        raise ConfigError(
            f"analyze.engine.path: no program {path!r} is executable on this machine, neither in PATH nor in {GAMES}; "
            "install one on every node (Debian: apt-get install stockfish), name its path, or turn the comparison off "
            "by analyze.engine: null"
        )
    return str(Path(found).absolute())


class UciEngine:
    """An engine process. A search that times out or ends the process fails its row; the next row starts another."""

    def __init__(self, config: EngineConfig) -> None:
        """Start the engine; a ``ConfigError`` if it is not installed, gives no answer in time, or lacks an option."""
        self._config, self._path, self._failures = config, find_engine(config.path), 0
        self._process: engine.SimpleEngine | None = self._start()
        self.name = str(self._process.id.get("name", Path(self._path).name))
        """Name and version that the engine reports."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def value(self, fen: str, move: str) -> Value:
        """Return the value of a move (UCI) in a position (FEN) to its mover, by a search of the position after it.

        A move that ends the game is not searched. A ``RowError`` is of kind ``illegal_move``, ``engine_timeout``,
        ``engine_failed`` or ``engine_given_up``.
        """
        board = chess.Board(fen)
        mover = board.turn
        try:
            board.push(board.parse_uci(move))
        except ValueError as error:
            raise RowError(f"illegal_move: {quote_text(move)} in {quote_text(fen, 100)}") from error
        if (outcome := board.outcome()) is not None:
            return Value(None, 0) if outcome.winner is not None else Value(0, None)
        score = self._search(board).pov(mover)
        return Value(score.score(), score.mate())

    def _search(self, board: "chess.Board") -> "engine.PovScore":
        if self._failures >= MOST_FAILURES:
            raise RowError(f"engine_given_up: the engine failed on each of the last {MOST_FAILURES} rows before")
        try:
            process = self._process = self._process or self._start()
            searched = process.protocol.analyse(board, engine.Limit(nodes=self._config.nodes), game=object())
            # Not asyncio's own timeout: it would wait for a hung engine to say that it has stopped.
            found = asyncio.run_coroutine_threadsafe(searched, process.protocol.loop).result(
                self._config.timeout_seconds
            )
            score = found["score"]
        except (engine.EngineError, ConfigError, KeyError, RuntimeError, OSError) as error:  # some are TimeoutErrors
            self._kill()
            self._failures += 1
            if isinstance(error, TimeoutError):
                raise RowError(f"engine_timeout: no answer within {self._config.timeout_seconds:g} s") from error
            raise RowError(f"engine_failed: {type(error).__name__}: {str(error)[:200]}") from error
        self._failures = 0
        return score

    def _start(self) -> "engine.SimpleEngine":
        config = self._config
        process: engine.SimpleEngine | None = None
        try:
            process = engine.SimpleEngine.popen_uci(self._path, timeout=START_SECONDS)
            fixed = {"Threads": 1, "Hash": config.hash_mb}
            known = {name: value for name, value in fixed.items() if name in process.options}
            process.configure({**config.options, **known})
        except (TimeoutError, engine.EngineError, OSError) as error:
            if process is not None:
                process.close()
            why = f"does not work as a UCI engine ({str(error)[:200]})"
            if isinstance(error, TimeoutError):
                why = f"gave no answer to `uci` within {START_SECONDS:g} s"
            raise ConfigError(
                f"analyze.engine: {self._path} {why}; name an engine in analyze.engine.path, or mend "
                "analyze.engine.options"
            ) from error
        return process

    def _kill(self) -> None:
        """End the process at once, since it may hang."""
        if self._process is not None:
            with suppress(engine.EngineError):
                self._process.close()
            self._process = None
