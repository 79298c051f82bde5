"""One pass of a model over a table of examples: chunks in, written fragments out, each row exactly once.

Shared by the label stage and the signals. The actor of a pass is called with one chunk and emits one row, the
fragment's name (DESIGN: the *only* output of its task).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data
from pyroaring import BitMap64

from curation import store
from curation.config import ActorsConfig
from curation.errors import CommitError
from curation.refs import TableRef
from curation.row_ids import SCAN_ROWS, in_order, missing
from curation.stages.ray_errors import cause

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows ``start`` to ``stop`` of the examples table, less those whose bit in ``take`` is 0 (numpy packed bits)."""

    start: int
    stop: int
    take: bytes

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> "Chunk":
        """The chunk that Ray Data hands to an actor, a batch of one."""
        return cls(start=int(batch["start"][0]), stop=int(batch["stop"][0]), take=batch["take"][0])

    @property
    def offsets(self) -> Int64s:
        """The offsets in the table of the rows to work on."""
        bits = np.unpackbits(np.frombuffer(self.take, dtype=np.uint8), count=self.stop - self.start)
        offsets: Int64s = self.start + np.flatnonzero(bits)
        return offsets


class PassResult(NamedTuple):
    """The table of a pass, and what this run of it did: rows, seconds, and the notes of its actors."""

    table: TableRef
    rows: int
    seconds: float
    notes: list[dict[str, Any]]


def run_pass(
    actor: type,
    job: Any,
    *,
    name: str,
    uri: str,
    schema: pa.Schema,
    examples: TableRef,
    takes: Callable[[Int64s], Bools],
    chunk_rows: int,
    actors: ActorsConfig,
    calls: int,
    commit_seconds: float,
    progress: Progress | None = None,
) -> PassResult:
    """Have ``actor(job)`` work on the examples for which ``takes(row ids)`` holds, less those committed at ``uri``.

    An actor is called ``calls`` times at once. ``progress`` is told rows done and rows in all.

    Raises:
        RunFailedError: actors kept dying.
        CommitError: the store refused, or rows in and rows out differ.
    """
    store.create(uri, schema)
    committer = store.Committer(uri)
    num_done, total = len(committer.done), 0
    items: list[Any] = []
    for chunk, num_wanted in _chunks(examples, chunk_rows, takes, committer.done):
        total += num_wanted
        if chunk is not None:
            items.append(asdict(chunk))

    def committed(rows: Mapping[str, int]) -> None:
        if progress is not None:
            progress(num_done + rows.get(uri, 0), total)

    committed({})
    begun = time.monotonic()
    notes: list[dict[str, Any]] = []
    if items:
        written = _written(actor, job, items, actors, calls)
        try:
            store.commit_stream(written, [committer], seconds=commit_seconds, on_commit=committed, on_note=notes.append)
        except ray.exceptions.RayError as error:
            raise cause(error, name) from error
    ref = store.latest(uri)
    if not len(committer.done) == (num_rows := store.count(ref)) == total:
        known = len(committer.done)
        raise CommitError(f"{uri}: {total} rows in, {num_rows} rows out ({known} ids known to this driver)")
    return PassResult(ref, total - num_done, time.monotonic() - begun, notes)


def _written(actor: type, job: Any, items: list[Any], actors: ActorsConfig, calls: int) -> ray.data.Dataset:
    """The lazily written chunks: one block an item, so that a task has one chunk and one output."""
    return ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        actor,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            min_size=actors.min,
            max_size=actors.max,
            initial_size=actors.min,
            max_tasks_in_flight_per_actor=2 * calls,
            max_concurrent_calls_per_actor=calls,
            enable_true_multi_threading=calls > 1,
        ),
        num_cpus=actors.num_cpus,
        num_gpus=actors.num_gpus or None,
        max_restarts=actors.max_restarts,
        max_task_retries=actors.max_task_retries,
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
