"""Work of many stages on the rows of tables: reading ids, finding rows by their ids, computing a table in Ray tasks."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.errors import CommitError
from curation.refs import TableRef
from curation.storage.lease import Guard, guard_nothing
from curation.tables import commits, io, scans
from curation.tables.row_ids import find_missing_ids, include
from curation.tables.stream import commit_stream
from curation.tasks import run_in_tasks
from curation.telemetry.standing import Standing, Update

COMMIT_SECONDS = 2.0
PART_ROWS = 1 << 14
"""The number of rows that are rendered at a time."""
ONE_CPU: Mapping[str, float] = MappingProxyType({"num_cpus": 1})
NO_IDS: Int64s = np.zeros(0, dtype=np.int64)


def read_ids(ref: TableRef, filter: str | None = None) -> Int64s:
    """Return the ids of the rows of a table that match an SQL ``filter``, in the table's order, int64 [N]."""
    ids_N: Int64s = io.read(ref, ["row_id"], filter)["row_id"].to_numpy()
    return ids_N


def read_id_bitmap(ref: TableRef, filter: str | None = None) -> BitMap64:
    """Return the ids of the rows of a table that match an SQL ``filter``, read in streams."""
    found = BitMap64()
    for batch in scans.iter_table_batches(ref, {"row_id": "row_id"}, filter):
        include(found, batch.column("row_id").to_numpy())
    return found


@lru_cache(maxsize=8)
def read_sorted_ids(ref: TableRef | None) -> Int64s:
    """Return the ids of a table's rows, ascending, int64 [M]; empty without a table."""
    return NO_IDS if ref is None else np.sort(read_ids(ref))


def find_places(row_ids_N: Int64s, ids_M: Int64s) -> Int64s:
    """Return the position of each id in ``row_ids_N``, which has all of them in any order, int64 [M]."""
    order_N = np.argsort(row_ids_N)
    places_M: Int64s = order_N[np.searchsorted(row_ids_N, ids_M, sorter=order_N)]
    return places_M


def compute_in_chunks(
    compute: Callable[[Int64s], pa.Table],
    row_ids_N: Int64s,
    uri: str,
    schema: pa.Schema,
    *,
    chunk_rows: int,
    resources: Mapping[str, float] = ONE_CPU,
    guard: Guard = guard_nothing,
    progress: Update | None = None,
) -> TableRef:
    """Return the table at ``uri`` with the rows that ``compute(ids_M)`` returns, one per id, in Ray tasks.

    Rows committed before an interruption are not computed again; ``resources`` are those of a task.
    """
    io.create(uri, schema)
    done, expected = commits.read_committed_ids(uri), BitMap64(row_ids_N.astype(np.uint64))
    left_N = row_ids_N[find_missing_ids(row_ids_N, done)]

    def write(ids_M: Int64s) -> pa.Table:
        rows = compute(ids_M)
        assert np.array_equal(np.sort(rows["row_id"].to_numpy()), np.sort(ids_M)), "a row for each id"
        return commits.write_fragment(rows, uri, schema)

    def report(rows_of: Mapping[str, int]) -> None:
        if progress is not None:
            progress(Standing(rows=len(done) + sum(rows_of.values()), total=len(row_ids_N)))

    calls = ((left_N[start : start + chunk_rows],) for start in range(0, len(left_N), chunk_rows))
    cpus, gpus = resources.get("num_cpus", 1), resources.get("num_gpus", 0)
    written = run_in_tasks(write, calls, num_cpus=cpus, num_gpus=gpus)
    commit_stream(written, seconds=COMMIT_SECONDS, guard=guard, on_commit=report)
    if (found := commits.read_committed_ids(uri)) != expected:
        raise CommitError(f"{uri}: {len(expected)} rows in, {len(found)} rows out")
    return io.find_latest(uri)
