"""Computation of a table by Ray tasks, chunk by chunk, without repeating rows committed before an interruption."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.errors import CommitError
from curation.refs import TableRef
from curation.storage.lease import Guard, guard_nothing
from curation.tables import commits, io
from curation.tables.row_ids import find_missing_ids
from curation.tables.stream import CommitRound, commit_stream
from curation.tasks import run_in_tasks
from curation.telemetry.standing import Standing, Update

COMMIT_SECONDS = 2.0
ONE_CPU: Mapping[str, float] = MappingProxyType({"num_cpus": 1})


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
    """Return the table at ``uri`` with the rows that ``compute(ids_M)`` returns, one per id.

    ``compute`` and its arguments are pickled to every task. ``resources``: ``num_cpus`` and ``num_gpus`` of a task.

    Raises:
        UserError: raised by ``compute``.
        CommitError: the store refused, or rows in and rows out differ.
        ray.exceptions.RayError: another error in a task, or its process or node died too often.
    """
    io.create(uri, schema)
    done, wanted = commits.read_committed_ids(uri), BitMap64(row_ids_N.astype(np.uint64))
    left_N = row_ids_N[find_missing_ids(row_ids_N, done)]

    def calls() -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(left_N), chunk_rows):
            yield compute, left_N[start : start + chunk_rows], uri, schema

    def committed(round_: CommitRound) -> None:
        if progress is not None:
            progress(Standing(rows=len(done) + sum(round_.rows.values()), total=len(row_ids_N)))

    num_cpus, num_gpus = resources.get("num_cpus", 1), resources.get("num_gpus", 0)
    written = run_in_tasks(_write, calls(), num_cpus=num_cpus, num_gpus=num_gpus)
    commit_stream(written, seconds=COMMIT_SECONDS, guard=guard, on_commit=committed)
    if (found := commits.read_committed_ids(uri)) != wanted:
        raise CommitError(f"{uri}: {len(wanted)} rows in, {len(found)} rows out")
    return io.find_latest(uri)


def _write(compute: Callable[[Int64s], pa.Table], ids_M: Int64s, uri: str, schema: pa.Schema) -> pa.Table:
    rows = compute(ids_M)
    assert np.array_equal(np.sort(rows["row_id"].to_numpy()), np.sort(ids_M)), "a row for each id"
    return commits.write_fragment(rows, uri, schema)
