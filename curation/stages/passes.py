"""One pass of a model over a table of examples: chunks in, written fragments out, each row exactly once.

Shared by the label stage and the signals.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data
from pyroaring import BitMap64

from curation import nodes, store
from curation.config import ActorsConfig
from curation.errors import CommitError
from curation.lease import Guard, unguarded
from curation.refs import TableRef
from curation.row_ids import SCAN_ROWS, in_order, missing
from curation.stages.actors import ActorBook
from curation.stages.chunk_actor import Chunk, ChunkActor, Job, Pass
from curation.stages.memory import forget
from curation.stages.ray_errors import cause
from curation.stages.tally import Tally
from curation.standing import Update
from curation.store import commits
from curation.store.stream import commit_stream
from curation.teachers import concurrent_calls

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class PassResult(NamedTuple):
    """The table of a pass, and what this run of it did."""

    table: TableRef
    rows: int
    seconds: float
    deaths: int
    """Of processes, in the middle of a chunk."""
    teachers: list[dict[str, Any]]
    """``Teacher.facts``, one for each start of a teacher."""


def run_pass(
    actor: type[ChunkActor[Any]],
    job: Job,
    *,
    name: str,
    uri: str,
    schema: pa.Schema,
    takes: Callable[[Int64s], Bools],
    commit_seconds: float,
    guard: Guard = unguarded,
    progress: Update | None = None,
) -> PassResult:
    """Have ``actor(job, pass)`` work on the examples that ``takes`` (of ids) names, less those at ``uri``.

    ``progress`` is told where the pass stands.

    Raises:
        RunFailedError: an actor kept dying without getting anything done.
        CommitError: the store refused, or rows in and rows out differ.
    """
    store.create(uri, schema)
    committer = commits.Committer(uri, guard)
    num_done, total = len(committer.done), 0
    items: list[Any] = []
    for chunk, num_wanted in _chunks(job.examples, job.teacher.chunk_rows, takes, committer.done):
        total += num_wanted
        if chunk is not None:
            items.append(asdict(chunk))

    begun, calls = time.monotonic(), concurrent_calls(job.teacher.backend)
    this = Pass(id=f"pass-{uuid.uuid4().hex}", table=uri, versions=nodes.installed()())
    # Ray knows actors by the name of their class, and passes of the same one may go on side by side.
    actor = type(f"{actor.__name__}_{this.id[-8:]}", (actor,), {"__module__": "__main__"})
    tally = Tally(
        uri,
        ActorBook(actor),
        done=num_done,
        total=total,
        chunks=len(items),
        calls=calls,
        told=job.told,
        update=progress,
    )
    with tally:
        if items:
            written = _written(actor, job, this, items, job.teacher.actors, calls)
            try:
                commit_stream(
                    written,
                    [committer],
                    seconds=commit_seconds,
                    guard=guard,
                    on_commit=tally.committed,
                    on_written=tally.wrote,
                )
            except ray.exceptions.RayError as error:
                raise cause(error, name) from error
            finally:
                forget(uri, this.id)
    ref = store.latest(uri)
    if not len(committer.done) == (num_rows := store.count(ref)) == total:
        known = len(committer.done)
        raise CommitError(f"{uri}: {total} rows in, {num_rows} rows out ({known} ids known to this driver)")
    forget(uri)
    return PassResult(
        table=ref,
        rows=total - num_done,
        seconds=time.monotonic() - begun,
        deaths=tally.deaths,
        teachers=tally.teachers,
    )


def _written(
    actor: type[ChunkActor[Any]], job: Job, this: Pass, items: list[Any], actors: ActorsConfig, calls: int
) -> ray.data.Dataset:
    """The lazily written chunks: one block an item, so that a task has one chunk and one output.

    An actor is called ``calls`` times at once. Ray Data has actors restarted and their calls replayed without end; the
    actors themselves bound that.
    """
    return ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        actor,
        fn_constructor_args=(job, this),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            min_size=actors.min,
            max_size=actors.max,
            initial_size=max(actors.min, min(actors.initial or actors.min, len(items))),
            max_tasks_in_flight_per_actor=2 * calls,
            max_concurrent_calls_per_actor=calls,
            enable_true_multi_threading=calls > 1,
        ),
        num_cpus=actors.num_cpus,
        num_gpus=actors.num_gpus or None,
    )


def _chunks(
    examples: TableRef, chunk_rows: int, takes: Callable[[Int64s], Bools], done: BitMap64
) -> Iterator[tuple[Chunk | None, int]]:
    """Per chunk of the table: what is left to do (None: nothing) and how many of its rows are taken."""
    start = 0
    for ids_N in in_order(store.open_table(examples), chunk_rows * max(1, SCAN_ROWS // chunk_rows)):
        wanted_N = takes(ids_N)
        open_N = wanted_N & missing(ids_N, done)
        firsts = np.arange(0, len(ids_N), chunk_rows)
        num_wanted, num_open = (np.add.reduceat(mask_N, firsts, dtype=np.int64) for mask_N in (wanted_N, open_N))
        for first, wanted, left in zip(firsts.tolist(), num_wanted.tolist(), num_open.tolist(), strict=True):
            take_N = open_N[first : first + chunk_rows]
            chunk = Chunk(start=start + first, stop=start + first + len(take_N), take=np.packbits(take_N).tobytes())
            yield chunk if left else None, wanted
        start += len(ids_N)
