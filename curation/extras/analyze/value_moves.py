"""The stage in which an engine values the weak and the gold moves of selected rows that differ, in Ray tasks.

The advantage gap of a row is the gold move's value minus the chosen move's (paper, section "Mechanisms", finding 2): if
it is below zero, the weak label is the stronger move. Our choices, where the paper gives none: a winning mate is worth
10,000 centipawns in any number of moves (a mate in two is not better than a mate in three), and being mated -10,000;
means and the histogram clip gaps at 10 pawns, so that one mate does not outweigh all other rows; shares are of
unclipped gaps.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Floats, Int64s
from curation.config import DomainConfig
from curation.domains import attempt, get_position_function, load_domain
from curation.errors import RowError, get_error_kind
from curation.extras.analyze.config import EngineConfig
from curation.extras.analyze.uci import UciEngine
from curation.hashing import draw_by_hash
from curation.json_types import Json, JsonView
from curation.metrics.estimates import average_over_seeds, compute_proportion
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage, setting
from curation.rundir.run import Task
from curation.stages.rows import compute_in_chunks
from curation.tables import io, schemas

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
        """Value the moves of all arms' rows together, and report how many rows could not be valued."""
        drawn = {arm: _draw_differing(self, ref) for arm, ref in self.selections.items() if ref is not None}
        every_N = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(drawn_M for drawn_M, _ in drawn.values())]))
        with task.progress() as update:
            table = compute_in_chunks(
                partial(_evaluate_rows, job=self),
                every_N,
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
        found = {
            "engine": ", ".join(names),
            "nodes": self.engine.nodes,
            "equal_within": self.engine.equal_within,
            "num_rows": num_rows,
            "num_failed": num_failed,
            "arms": {
                arm: {**counts, **_summarise_arm(table, drawn_M, self.engine.equal_within)}
                for arm, (drawn_M, counts) in drawn.items()
            },
        }
        return Done(outputs=self.Made(found=found, table=table), rows=num_rows)


def _summarise_arm(table: TableRef, drawn_M: Int64s, equal_within: int) -> Json:
    asked = io.take(table, drawn_M)
    kinds = [get_error_kind(error) for error in asked["error"].to_pylist() if error is not None]
    healthy = asked.filter(asked["error"].is_null())
    gold_N, chosen_N = (
        to_centipawns(*(healthy[f"{move}_{unit}"].cast(pa.float64()).to_numpy() for unit in ("cp", "mate")))
        for move in ("gold", "chosen")
    )
    errors = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    return {"errors": errors, **compare_moves(gold_N, chosen_N, equal_within=equal_within)}


def _draw_differing(job: ValueMoves, selection: TableRef) -> tuple[Int64s, Json]:
    """Return the ids of an arm's rows that the engine compares, at most ``engine.rows``, and counts of the arm's rows.

    The rows are drawn from those whose weak label is a move and differs from gold.
    """
    table = io.read(selection, columns=["row_id", "label"])
    ids_N, parsed_N = table["row_id"].to_numpy(), table["label"].is_valid().to_numpy()
    place_N = io.find_offsets(job.grades, ids_N)  # of a large pool only the selected rows' grades are held
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
    gold = io.take(job.audit, ids_M, ["gold"])["gold"].to_pylist()
    chosen = io.take(job.labels, ids_M, ["label"])["label"].to_pylist()
    rows = []
    with UciEngine(job.engine) as engine:
        for example, right, weak in zip(examples, gold, chosen, strict=True):
            row: Json = {"row_id": example["row_id"], "gold": right, "chosen": weak, "engine": engine.name}
            fen, problem = attempt(position, example)
            try:
                if fen is None:
                    raise RowError(problem)
                values = {"gold": engine.value(fen, right), "chosen": engine.value(fen, weak)}
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
    """Return statistics of the gaps of rows as JSON: shares with exact intervals, mean, median and histogram.

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
        "equal": np.abs(gap_N) <= equal_within,
        "equal_or_stronger": gap_N <= equal_within,
        "winning_mates": chosen_N == MATE,
        "gold_winning_mates": gold_N == MATE,
    }
    return {
        "n": n,
        **{name: compute_proportion(int(of_N.sum()), n).to_json() if n else None for name, of_N in shares.items()},
        "mean_gap": average_over_seeds(cut_N.tolist()).to_json() if n else None,
        "median_gap": float(np.median(gap_N)) if n else None,
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }
