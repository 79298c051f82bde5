"""The stage in which a UCI engine values the weak and the gold moves of selected rows that differ, in Ray tasks.

The advantage gap of a row is the gold move's value minus the chosen move's (paper, section "Mechanisms", finding 2): if
it is below zero, the weak label is the stronger move. Our choices, where the paper gives none: a winning mate is worth
10,000 centipawns in any number of moves (a mate in two is not better than a mate in three), and being mated -10,000;
means and the histogram clip gaps at 10 pawns, so that one mate does not outweigh all other rows; shares are of
unclipped gaps.
"""

import asyncio
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa

from curation.arrays import Floats, Int64s
from curation.config import DomainConfig
from curation.domains import attempt, get_position_function, load_domain
from curation.errors import ConfigError, RowError, get_error_kind
from curation.escaping import quote_text
from curation.extras.analyze.config import EngineConfig
from curation.hashing import draw_by_hash
from curation.heavy import Lazy
from curation.json_types import Json, JsonView
from curation.metrics.estimates import average_over_seeds, compute_proportion
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage, setting
from curation.rundir.run import Task
from curation.stages.rows import compute_in_chunks
from curation.tables import io, schemas

if TYPE_CHECKING:
    import chess
    from chess import engine
else:  # its import takes half a second, which commands without chess need not spend
    chess, engine = Lazy("chess"), Lazy("chess.engine")

GAMES = "/usr/games"
"""Folder in which Debian and Ubuntu install ``stockfish``; not every ``PATH`` has it."""
START_SECONDS = 60.0
"""Time limit for the start of an engine, which may read a network of weights from a busy disk."""
MOST_FAILURES = 3
"""Number of consecutive failed searches after which the engine is not asked about the rest of a chunk."""
CHUNK_ROWS = 32
"""Number of rows per task: about 20 seconds with the default number of nodes."""
MATE = 10_000
"""Value of a mate, in centipawns."""
CUT = 1_000
"""Value at which means and the histogram clip gaps, in centipawns."""
BIN = 100
"""Width of a bin of the histogram, in centipawns."""
ADVANTAGES = pa.schema(
    [
        schemas.ROW_ID,
        pa.field("gold", pa.string()),
        pa.field("chosen", pa.string()),  # the weak label
        pa.field("gold_cp", pa.int32()),  # centipawns to the side that moves, after the move; null for a mate
        pa.field("gold_mate", pa.int32()),  # moves until mate: 0 the move is mate, negative the mover is mated
        pa.field("chosen_cp", pa.int32()),
        pa.field("chosen_mate", pa.int32()),
        pa.field("engine", pa.string()),  # the name that the engine gives itself
        schemas.ERROR,
    ]
)
"""Schema of an engine's values of gold and weak moves, for selected rows in which the two differ."""


class ValueMoves(Stage):
    """A stage that lets an engine compare weak labels of selected rows with gold ones if they differ."""

    class Made(NamedTuple):
        found: Json
        """Statistics that the report shows, with those of each arm in ``arms``."""
        table: TableRef
        """Schema ``ADVANTAGES``."""

    digests: InEach[str]
    """Digest of the selected rows, by arm."""
    grades: In[TableRef]
    examples: In[TableRef]
    audit: In[TableRef]
    domain: DomainConfig
    engine: EngineConfig
    seed: int
    selections: InEach[TableRef] = setting()
    labels: In[TableRef] = setting()
    """The weak labels of the examples."""

    def run(self, task: Task) -> Done:
        """Value the moves of all arms' rows together, and report how many rows could not be valued."""
        drawn = {arm: _draw_differing(self, ref) for arm, ref in self.selections.items()}
        all_N = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(drawn_M for drawn_M, _ in drawn.values())]))
        with task.progress() as update:
            table = compute_in_chunks(
                partial(_evaluate_rows, job=self),
                all_N,
                str(task.directory / "advantages.lance"),
                ADVANTAGES,
                chunk_rows=CHUNK_ROWS,
                guard=task.guard,
                progress=update,
            )
        num_rows, num_failed = io.count(table), io.count(table, filter="error IS NOT NULL")
        if num_failed:
            task.say(f"{num_failed:,} of {num_rows:,} rows could not be valued; the table has their errors")
        names = sorted({name for name in io.read(table, columns=["engine"])["engine"].to_pylist() if name})
        arms: Json = {}
        for arm, (drawn_M, counts) in drawn.items():
            rows = io.take(table, drawn_M)
            kinds = Counter(get_error_kind(error) for error in rows["error"].to_pylist() if error is not None)
            valued = rows.filter(rows["error"].is_null())
            gold_N, chosen_N = (
                to_centipawns(*(valued[f"{move}_{unit}"].cast(pa.float64()).to_numpy() for unit in ("cp", "mate")))
                for move in ("gold", "chosen")
            )
            compared = compare_moves(gold_N, chosen_N, equal_within=self.engine.equal_within)
            arms[arm] = {**counts, "errors": dict(sorted(kinds.items())), **compared}
        found = {
            "engine": ", ".join(names),
            "nodes": self.engine.nodes,
            "equal_within": self.engine.equal_within,
            "num_rows": num_rows,
            "num_failed": num_failed,
            "arms": arms,
        }
        return Done(outputs=self.Made(found=found, table=table), rows=num_rows)


def _draw_differing(job: ValueMoves, selection: TableRef) -> tuple[Int64s, Json]:
    """Return at most ``engine.rows`` ids of rows whose weak label is a move unlike gold's, and counts of all."""
    table = io.read(selection, columns=["row_id", "label"])
    ids_N, parsed_N = table["row_id"].to_numpy(), table["label"].is_valid().to_numpy()
    place_N = io.find_offsets(job.grades, ids_N)  # only grades of selected rows are held in memory
    wrong_N = place_N >= 0
    correct_M = io.take_offsets(job.grades, place_N[wrong_N], ["correct"])["correct"]
    wrong_N[wrong_N] = ~correct_M.to_numpy().astype(np.bool_)
    ids_M = ids_N[parsed_N & wrong_N]
    drawn_M = draw_by_hash(ids_M, job.engine.rows, job.seed)
    return drawn_M, {
        "num_selected": len(ids_N),
        "num_unparsed": int((~parsed_N).sum()),
        "num_differing": len(ids_M),
        "num_asked": len(drawn_M),
    }


def _evaluate_rows(ids_M: Int64s, job: ValueMoves) -> pa.Table:
    """Return a chunk's rows with the values of their moves; a row that cannot be valued is an error row."""
    domain = load_domain(job.domain)
    position = get_position_function(domain)
    assert position is not None, "a run whose labels are no moves has no such stage"
    examples = io.take(job.examples, ids_M, ["row_id", *domain.columns.names]).to_pylist()
    golds = io.take(job.audit, ids_M, ["gold"])["gold"].to_pylist()
    weak_labels = io.take(job.labels, ids_M, ["label"])["label"].to_pylist()
    rows = []
    with UciEngine(job.engine) as player:
        for example, gold, weak in zip(examples, golds, weak_labels, strict=True):
            row: Json = {"row_id": example["row_id"], "gold": gold, "chosen": weak, "engine": player.name}
            fen, problem = attempt(position, example)
            try:
                if fen is None:
                    raise RowError(problem)
                values = {"gold": player.value(fen, gold), "chosen": player.value(fen, weak)}
                for move, (centipawns, mate) in values.items():
                    row |= {f"{move}_cp": centipawns, f"{move}_mate": mate}
            except RowError as error:
                row["error"] = str(error)
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=ADVANTAGES)


def to_centipawns(centipawns_N: Floats, mate_N: Floats) -> Int64s:
    """Return the value of each move in centipawns, int64 [N]; exactly one of the two inputs is NaN for each move.

    ``mate_N``: moves until mate, negative if the mover is mated, 0 if the move itself is mate.
    """
    is_mate_N = ~np.isnan(mate_N)
    decided_N = np.where(mate_N >= 0, MATE, -MATE)
    value_N: Int64s = np.where(is_mate_N, decided_N, np.nan_to_num(centipawns_N)).astype(np.int64)
    return np.clip(value_N, -MATE, MATE)


def compare_moves(gold_N: Int64s, chosen_N: Int64s, *, equal_within: int) -> JsonView:
    """Return statistics of the gaps of rows as JSON: shares with exact intervals, mean and histogram.

    ``gold_N``, ``chosen_N``: centipawns by :func:`to_centipawns`. ``stronger`` is the paper's "optimal alternatives",
    any gap below 0; ``equal_or_stronger`` is a gap of at most ``equal_within``; ``winning_mates`` are chosen moves that
    force mate or are mate.
    """
    gap_N, n = gold_N - chosen_N, len(gold_N)
    cut_N = np.clip(gap_N, -CUT, CUT)
    edges = np.arange(-CUT, CUT + BIN, BIN)
    counts, _ = np.histogram(cut_N, edges)
    shares = {
        "stronger": gap_N < 0,
        "equal_or_stronger": gap_N <= equal_within,
        "winning_mates": chosen_N == MATE,
        "gold_winning_mates": gold_N == MATE,
    }
    return {
        "n": n,
        **{name: compute_proportion(int(of_N.sum()), n).to_json() if n else None for name, of_N in shares.items()},
        "mean_gap": average_over_seeds(cut_N.tolist()).to_json() if n else None,
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


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
            supported = {name: value for name, value in fixed.items() if name in process.options}
            process.configure({**config.options, **supported})
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
