"""The stage in which an engine values the weak and the gold moves of selected rows if they differ, in Ray tasks."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import attempt, get_position_function, load_domain
from curation.errors import RowError, get_error_kind
from curation.extras.analyze.config import EngineConfig
from curation.extras.analyze.gaps import compare_moves, to_centipawns
from curation.extras.analyze.uci import UciEngine, Value
from curation.hashing import draw_by_hash
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage, setting
from curation.rundir.run import Task
from curation.stages.rows import compute_in_chunks
from curation.storage.lease import Guard, guard_nothing
from curation.tables import io, schemas
from curation.telemetry.standing import Update

CHUNK_ROWS = 32
"""Number of rows per task: about 20 seconds with the default number of nodes."""
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

    digests: InEach[str | None]
    """Digest of the selected rows, by arm; None for an arm that dropped out."""
    grades: In[TableRef]
    examples: In[TableRef]
    audit: In[TableRef]
    domain: DomainConfig
    engine: EngineConfig
    seed: int
    selections: InEach[TableRef | None] = setting()
    labels: In[TableRef] = setting()
    """The weak labels of the examples."""

    def run(self, task: Task) -> Done:
        """Value the moves, and report how many rows could not be valued."""
        uri = str(task.directory / "advantages.lance")
        with task.progress() as update:
            table, arms = measure_advantages(self, uri, guard=task.guard, progress=update)
        num_rows, num_failed = io.count(table), io.count(table, filter="error IS NOT NULL")
        if num_failed:
            task.say(f"{num_failed:,} of {num_rows:,} rows could not be valued; the table has their errors")
        names = sorted({name for name in io.read(table, columns=["engine"])["engine"].to_pylist() if name})
        found = {
            "engine": ", ".join(names),
            "nodes": self.engine.nodes,
            "equal_within": self.engine.equal_within,
            "num_rows": num_rows,
            "num_failed": num_failed,
            "arms": arms,
        }
        return Done(outputs=self.Made(found=found, table=table), rows=num_rows)


def _draw_differing(selection: TableRef, grades: TableRef, *, rows: int, seed: int) -> tuple[Int64s, Json]:
    """Return the ids of an arm's rows that the engine compares, at most ``rows``, and counts of the arm's rows.

    The rows are drawn from those whose weak label is a move and differs from gold.
    """
    table = io.read(selection, columns=["row_id", "label"])
    ids_N, parsed_N = table["row_id"].to_numpy(), table["label"].is_valid().to_numpy()
    place_N = io.find_offsets(grades, ids_N)  # of a large pool only the selected rows' grades are held
    wrong_N = place_N >= 0
    correct_M = io.take_offsets(grades, place_N[wrong_N], ["correct"])["correct"]
    wrong_N[wrong_N] = ~correct_M.to_numpy().astype(np.bool_)
    ids_M = ids_N[parsed_N & wrong_N]
    drawn_M = draw_by_hash(ids_M, rows, seed)
    return drawn_M, {
        "num_selected": len(ids_N),
        "num_unparsed": int((~parsed_N).sum()),
        "num_differing": len(ids_M),
        "num_asked": len(drawn_M),
    }


def measure_advantages(
    job: ValueMoves, uri: str, *, guard: Guard = guard_nothing, progress: Update | None = None
) -> tuple[TableRef, Json]:
    """Write the table (schema ``ADVANTAGES``) of all arms' rows together; return it and each arm's findings.

    Raises:
        ConfigError: the engine is not installed, or does not work as a UCI engine.
        CommitError: rows in and rows out differ.
    """
    found = {
        arm: _draw_differing(ref, job.grades, rows=job.engine.rows, seed=job.seed)
        for arm, ref in job.selections.items()
        if ref is not None
    }
    every_N = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(drawn_M for drawn_M, _ in found.values())]))
    table = compute_in_chunks(
        partial(_evaluate_rows, job=job),
        every_N,
        uri,
        ADVANTAGES,
        chunk_rows=CHUNK_ROWS,
        guard=guard,
        progress=progress,
    )
    return table, {arm: counts | _summarise_arm(table, drawn_M, job.engine) for arm, (drawn_M, counts) in found.items()}


def _summarise_arm(table: TableRef, drawn_M: Int64s, engine: EngineConfig) -> Json:
    asked = io.take(table, drawn_M)
    kinds = [get_error_kind(error) for error in asked["error"].to_pylist() if error is not None]
    healthy = asked.filter(asked["error"].is_null())
    gold_N, chosen_N = (
        to_centipawns(*(healthy[f"{move}_{unit}"].cast(pa.float64()).to_numpy() for unit in ("cp", "mate")))
        for move in ("gold", "chosen")
    )
    return {
        "errors": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        **compare_moves(gold_N, chosen_N, equal_within=engine.equal_within),
    }


def _evaluate_rows(ids_M: Int64s, job: ValueMoves) -> pa.Table:
    """Return a chunk's rows with the values of their moves; a row that cannot be valued is an error row."""
    domain = load_domain(job.domain)
    position = get_position_function(domain)
    assert position is not None, "a run whose labels are no moves has no such stage"
    examples = io.take(job.examples, ids_M, ["row_id", *domain.columns.names]).to_pylist()
    gold = io.take(job.audit, ids_M, ["gold"])["gold"].to_pylist()
    chosen = io.take(job.labels, ids_M, ["label"])["label"].to_pylist()
    rows = []
    with UciEngine(job.engine) as engine:
        for example, right, weak in zip(examples, gold, chosen, strict=True):
            row = {"row_id": example["row_id"], "gold": right, "chosen": weak, "engine": engine.name}
            fen, problem = attempt(position, example)
            try:
                if fen is None:
                    raise RowError(problem)
                row |= _make_columns("gold", engine.value(fen, right)) | _make_columns(
                    "chosen", engine.value(fen, weak)
                )
            except RowError as error:
                row["error"] = str(error)
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=ADVANTAGES)


def _make_columns(move: str, value: Value) -> dict[str, int | None]:
    return {f"{move}_cp": value.centipawns, f"{move}_mate": value.mate}
