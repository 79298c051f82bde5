"""The rank of every row that passes a cut, among all rows from which the cut was made.

Ranks order raw scores, larger first, and equal ones by the seeded hash of the row id by which the cut breaks ties. The
table of ranks has one column. Its rows have the order of the rows that pass in the labels tables, one table after the
other, so tasks that write rows read a slice and look up no ids. One process holds 16 bytes for each row that passes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import ray.exceptions

from curation.arrays import Float32s, Int64s, Uint64s
from curation.errors import CommitError
from curation.filter.stages.cut import ThresholdCut
from curation.hashing import hash64
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.selection.external_sort import iter_sorted
from curation.tables import io, schemas
from curation.tasks import make_driver_error, run_in_tasks

BATCH_ROWS = 8192
RANK = pa.field("rank", pa.int64())
"""Rank of a row, 0 for the best; null for a row that was added after the cut was made."""
_WRITTEN_ROWS = 1 << 17


class Rank(Stage):
    """A stage that ranks the rows that pass, in the rounds from which the cut was made."""

    class Made(NamedTuple):
        ranks: TableRef
        starts: dict[str, int]
        """Position of each round's first row in the table."""

    tables: InEach[TableRef]
    threshold: In[Json]
    function: str
    seed: int

    @property
    def inputs(self) -> Json:
        """The arguments on which the ranks depend."""
        return {**super().inputs, "tables": list(self.tables.values()), "rounds": list(self.tables)}

    def run(self, task: Task) -> Done:
        """Rank the rows."""
        threshold, uri = ThresholdCut.from_json(self.threshold), str(task.directory / "ranks.lance")
        made = rank_rows(self.tables, threshold, self.function, uri, seed=self.seed)
        return Done(outputs=made, rows=io.count(made.ranks))


def rank_rows(
    tables: Mapping[str, TableRef], threshold: ThresholdCut, function: str, uri: str, *, seed: int
) -> Rank.Made:
    """Rank the rows of labels tables, by round, that pass a threshold, by the raw scores of the trust ``function``."""
    raw = schemas.get_raw_column(function)
    fragments = [[fragment.fragment_id for fragment in io.open_table(ref).get_fragments()] for ref in tables.values()]
    calls = (
        (ref, threshold, fragment, raw, seed)
        for ref, found in zip(tables.values(), fragments, strict=True)
        for fragment in found
    )
    begins = [0]

    def placed() -> Iterator[tuple[Int64s, Float32s, Uint64s]]:
        for score_B, tie_B in run_in_tasks(_read_keys, calls):
            begins.append(begins[-1] + len(score_B))
            yield np.arange(begins[-2], begins[-1]), score_B, tie_B

    try:
        places = list(iter_sorted(placed()))
    except ray.exceptions.RayError as error:
        raise make_driver_error(error, "ranking") from error
    starts = [begins[number] for number in itertools.accumulate(map(len, fragments[:-1]), initial=0)]
    rank_n = np.empty(begins[-1], dtype=np.int64)
    ends = itertools.accumulate(map(len, places))
    for end, place_B in zip(ends, places, strict=True):
        rank_n[place_B] = np.arange(end - len(place_B), end)
    schema = pa.schema([RANK])
    batches = (
        pa.record_batch([pa.array(rank_n[start : start + _WRITTEN_ROWS])], schema=schema)
        for start in range(0, len(rank_n), _WRITTEN_ROWS)
    )
    return Rank.Made(io.write_batches(batches, schema, uri), dict(zip(tables, starts, strict=True)))


def iter_passing(
    ref: TableRef, threshold: ThresholdCut, fragment: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fragment that pass, in the fragment's order, at most ``BATCH_ROWS`` at a time."""
    dataset = io.open_table(ref)
    found = dataset.get_fragment(fragment)
    if found is None:
        raise CommitError(f"{ref.uri}: fragment {fragment} is not in version {ref.version}")
    wanted = list(dict.fromkeys([*threshold.columns, *columns]))
    scanner = dataset.scanner(
        columns=wanted, filter=threshold.near, fragments=[found], batch_size=BATCH_ROWS, scan_in_order=True
    )
    for batch in scanner.to_batches():
        yield batch.filter(pa.array(threshold.passes(batch)))


def _read_keys(ref: TableRef, threshold: ThresholdCut, fragment: int, raw: str, seed: int) -> tuple[Float32s, Uint64s]:
    """Return the scores and hashes of the rows of a fragment that pass, both [n]."""
    scores, ties = [np.zeros(0, dtype=np.float32)], [np.zeros(0, dtype=np.uint64)]
    for batch in iter_passing(ref, threshold, fragment, [raw]):
        scores.append(batch.column(raw).to_numpy(zero_copy_only=False).astype(np.float32))
        ties.append(hash64(batch.column("row_id").to_numpy(), seed))
    return np.concatenate(scores), np.concatenate(ties)
