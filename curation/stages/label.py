"""The label stage: a table of examples and a teacher become a labels table, each row exactly once."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import ray.data
from pyroaring import BitMap64

from curation import store, tables
from curation.config import ActorsConfig
from curation.errors import CommitError, RunFailedError
from curation.hashing import hash64
from curation.refs import TableRef
from curation.stages.label_actor import Chunk, LabelActor, LabelJob
from curation.stages.ray_errors import cause


@dataclass(frozen=True, kw_only=True)
class Share:
    """One of ``of`` parts of a table, drawn by a seeded hash of the row id; a chain's generations take one each."""

    index: int = 0
    of: int = 1
    seed: int = 0

    def takes(self, row_ids_N: "np.ndarray[Any, np.dtype[np.int64]]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which rows belong to the share, bool [N]."""
        taken: np.ndarray[Any, np.dtype[np.bool_]] = hash64(row_ids_N, self.seed) % np.uint64(self.of) == self.index
        return taken


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """What became of the rows."""

    rows: int
    unparsed: int
    """Labelled rows from whose completion no label could be read."""
    truncated: int
    prompt_tokens: int
    output_tokens: int
    errors: dict[str, int]
    """Error rows by kind."""


def label(
    job: LabelJob,
    *,
    state_size: int,
    share: Share,
    commit_seconds: float,
    progress: Callable[[int, int], None] | None = None,
) -> TableRef:
    """Label what is not labelled yet and commit it as it comes; ``progress`` is told rows done and rows in all.

    Raises:
        RunFailedError: actors kept dying, or more than ``max_error_rate`` of the rows failed.
        CommitError: the store refused, or rows in and rows out differ.
    """
    schema = tables.labels(job.teacher.states, job.teacher.state_dtype, state_size)
    store.create(job.labels_uri, schema)
    done = store.committed_ids(job.labels_uri)
    total = 0
    items: list[Any] = []
    for chunk, num_wanted in _chunks(job.examples, job.teacher.chunk_rows, share, done):
        total += num_wanted
        if chunk is not None:
            items.append(asdict(chunk))
    num_done = len(done)
    if progress is not None:
        progress(num_done, total)
    if items:
        written = _written(items, job, job.teacher.actors)

        def committed(rows: int) -> None:
            if progress is not None:
                progress(num_done + rows, total)

        try:
            store.commit_stream(written, seconds=commit_seconds, on_commit=committed)
        except ray.exceptions.RayError as error:
            raise cause(error, "labelling") from error
    ref = store.latest(job.labels_uri)
    if (num_rows := len(store.committed_ids(ref.uri))) != total:
        raise CommitError(f"{ref.uri}: {total} rows in, {num_rows} rows out")
    _check_errors(count_labels(ref), job.teacher.max_error_rate, ref)
    return ref


def count_labels(ref: TableRef) -> LabelCounts:
    """Counts over a labels table, streamed."""
    rows = unparsed = truncated = prompt_tokens = output_tokens = 0
    errors: Counter[str] = Counter()
    columns = ["label", "truncated", "num_prompt_tokens", "num_output_tokens", "error"]
    for batch in store.open_table(ref).scanner(columns=columns).to_batches():
        rows += batch.num_rows
        failed = batch.column("error").drop_null()
        errors.update(text.split(":", 1)[0] for text in failed.to_pylist())
        unparsed += batch.column("label").null_count - len(failed)
        truncated += pc.sum(batch.column("truncated")).as_py() or 0
        prompt_tokens += pc.sum(batch.column("num_prompt_tokens")).as_py() or 0
        output_tokens += pc.sum(batch.column("num_output_tokens")).as_py() or 0
    return LabelCounts(
        rows=rows,
        unparsed=unparsed,
        truncated=truncated,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        errors=dict(errors.most_common()),
    )


def _written(items: list[Any], job: LabelJob, actors: ActorsConfig) -> ray.data.Dataset:
    """The lazily written chunks: one block an item, so that a task has one chunk and one output."""
    return ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        LabelActor,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            min_size=actors.min,
            max_size=actors.max,
            initial_size=actors.min,
            max_tasks_in_flight_per_actor=2,
        ),
        num_cpus=actors.num_cpus,
        num_gpus=actors.num_gpus or None,
        max_restarts=actors.max_restarts,
        max_task_retries=actors.max_task_retries,
    )


def _chunks(examples: TableRef, chunk_rows: int, share: Share, done: BitMap64) -> Iterator[tuple[Chunk | None, int]]:
    """Per chunk of the table: what is left to label (None: nothing) and how many of its rows belong to the share."""
    start = 0
    scanner = store.open_table(examples).scanner(
        columns=["row_id"], batch_size=chunk_rows, scan_in_order=True, strict_batch_size=True
    )
    for batch in scanner.to_batches():
        ids_N = batch.column("row_id").to_numpy()
        wanted_N = share.takes(ids_N)
        open_ids = BitMap64(ids_N[wanted_N].astype(np.uint64)) - done
        stop = start + len(ids_N)
        if open_ids:
            take_N = wanted_N & np.isin(ids_N, np.fromiter(open_ids, dtype=np.int64, count=len(open_ids)))
            yield Chunk(start=start, stop=stop, take=np.packbits(take_N).tobytes()), int(wanted_N.sum())
        else:
            yield None, int(wanted_N.sum())
        start = stop


def _check_errors(counts: LabelCounts, max_error_rate: float, ref: TableRef) -> None:
    failed = sum(counts.errors.values())
    if counts.rows and failed / counts.rows > max_error_rate:
        kind, number = next(iter(counts.errors.items()))
        raise RunFailedError(
            f"{ref.uri}: {failed} of {counts.rows} rows failed ({number} of them {kind}), more than "
            f"teacher.max_error_rate {max_error_rate}; mend the rows or raise the limit, then run the same command"
        )
