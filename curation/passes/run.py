"""One pass of a model over a table of examples: chunks in, written fragments out, every row exactly once.

Shared by the label stage and the signals.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
from pyroaring import BitMap64

from curation.cluster import nodes
from curation.config import AskConfig
from curation.errors import CommitError
from curation.passes.actor import Chunk, Job
from curation.passes.monitor import ChunkSpent, Tally
from curation.passes.pool import ActorPool
from curation.passes.recovery import forget
from curation.refs import TableRef
from curation.storage.lease import Guard, unguarded
from curation.tables import commits, io
from curation.tables.row_ids import SCAN_ROWS, in_order, missing
from curation.tables.stream import commit_stream
from curation.tasks import cause
from curation.teachers import concurrent_calls
from curation.telemetry.standing import Spent, Update

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class PassResult(NamedTuple):
    """The table that a pass filled, and what this run of the pass did."""

    table: TableRef
    rows: int
    seconds: float
    deaths: int
    """Processes that died while they worked on a chunk."""
    teachers: list[dict[str, Any]]
    """``Teacher.facts`` of each start of a teacher."""
    spent: Spent = Spent()
    of_chunks: Sequence[ChunkSpent] = ()
    """In the order in which they came."""


class PassOptions(TypedDict, total=False):
    """How a pass is done; no value in its table depends on it."""

    commit_seconds: Required[float]
    """The time between two commits."""
    pool: ActorPool
    """The actors; unset, the pass starts its own."""
    guard: Guard
    """Called before each commit."""
    progress: Update
    """Receives progress updates."""


def run_pass(
    job: Job,
    *,
    name: str,
    uri: str,
    schema: pa.Schema,
    takes: Callable[[Int64s], Bools],
    **how: Unpack[PassOptions],
) -> PassResult:
    """Let the actors of ``pool`` do ``job`` for each example that ``takes`` (a mask of ids) and that is not at ``uri``.

    Raises:
        RunFailedError: an actor kept dying without getting anything done.
        CommitError: the store refused, or rows in and rows out differ.
    """
    io.create(uri, schema)
    guard = how.get("guard", unguarded)
    committer = commits.Committer(uri, guard)
    num_done, total = len(committer.done), 0
    items: list[Any] = []
    for chunk, num_wanted in _chunks(job.examples, job.teacher.chunk_rows, takes, committer.done):
        total += num_wanted
        if chunk is not None:
            items.append(asdict(chunk))

    begun = time.monotonic()
    with ExitStack() as stack:
        if (pool := how.get("pool")) is None:
            pool = make_pool(job.teacher)
            stack.callback(pool.close)
        tally = Tally(
            uri,
            pool,
            done=num_done,
            total=total,
            chunks=len(items),
            calls=concurrent_calls(job.teacher.backend),
            told=job.told,
            update=how.get("progress"),
        )
        with tally:
            if items:
                written = pool.run(uri, job, nodes.installed()(), items, tally.charge)
                try:
                    commit_stream(
                        _rows(written),
                        [committer],
                        seconds=how["commit_seconds"],
                        guard=guard,
                        on_commit=tally.committed,
                        on_written=tally.wrote,
                    )
                except ray.exceptions.RayError as error:
                    raise cause(error, name) from error
    ref = io.latest(uri)
    if not len(committer.done) == (num_rows := io.count(ref)) == total:
        known = len(committer.done)
        raise CommitError(f"{uri}: {total} rows in, {num_rows} rows out ({known} ids known to this driver)")
    forget(uri)
    return PassResult(
        table=ref,
        rows=total - num_done,
        seconds=time.monotonic() - begun,
        deaths=tally.deaths,
        teachers=tally.teachers,
        spent=tally.spent,
        of_chunks=tally.of_chunks,
    )


def _rows(written: Iterable[pa.Table | None]) -> Iterator[dict[str, Any] | None]:
    for table in written:
        yield from [None] if table is None else table.to_pylist()


def make_pool(asked: AskConfig, *, hold_cpus: bool = True) -> ActorPool:
    """A pool of actors as the configuration of a model asks."""
    of_nodes = [node["Resources"].get("CPU", 0) for node in nodes.living()]
    actors = asked.actors
    cpus = actors.cpus(asked.backend, of_nodes)
    if not hold_cpus:  # then Ray would start more than there is room for
        actors = actors.model_copy(update={"max": max(1, min(actors.max, int(sum(of_nodes) // cpus)))})
    return ActorPool(actors, num_cpus=cpus, num_calls=concurrent_calls(asked.backend), hold_cpus=hold_cpus)


def _chunks(
    examples: TableRef, chunk_rows: int, takes: Callable[[Int64s], Bools], done: BitMap64
) -> Iterator[tuple[Chunk | None, int]]:
    """Each chunk of the table with the rows left to do (None: nothing is left), and the number of rows it takes."""
    start = 0
    for ids_N in in_order(io.open_table(examples), chunk_rows * max(1, SCAN_ROWS // chunk_rows)):
        wanted_N = takes(ids_N)
        open_N = wanted_N & missing(ids_N, done)
        firsts = np.arange(0, len(ids_N), chunk_rows)
        num_wanted, num_open = (np.add.reduceat(mask_N, firsts, dtype=np.int64) for mask_N in (wanted_N, open_N))
        for first, wanted, left in zip(firsts.tolist(), num_wanted.tolist(), num_open.tolist(), strict=True):
            take_N = open_N[first : first + chunk_rows]
            chunk = Chunk(start=start + first, stop=start + first + len(take_N), take=np.packbits(take_N).tobytes())
            yield chunk if left else None, wanted
        start += len(ids_N)
