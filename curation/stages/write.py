"""Writes the rows of a labels table that pass a threshold, with what was asked, as files of equal numbers of rows.

Ray tasks first count the rows of each fragment that pass, then each writes one file: it streams its part of the labels,
takes the examples of the rows that pass, and renders their prompts. Neither a task nor the driver ever holds more than
a batch of rows. Names follow from the stage's inputs and the number of the part, and a file appears whole under its
name. A note beside the stage's other records says that a part is done. So a task that is repeated writes the same file
again, and a driver that resumes skips parts with a note. A Lance table is filled by fragments, which the driver commits
(:mod:`curation.tables.commits`): a part is one fragment, so its first row id tells whether it is committed.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.exceptions
from lance.fragment import write_fragments
from pyroaring import BitMap64

from curation.config.filter import Format
from curation.domains import get_domain
from curation.errors import CommitError
from curation.hashing import Int64s
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, In, Stage, setting
from curation.rundir.run import Task
from curation.stages.cut import ThresholdCut
from curation.stages.partitions import check_number, folders_of
from curation.stages.pool import PoolRows
from curation.stages.ranking import RANK, passing
from curation.storage.lease import Guard, unguarded
from curation.storage.paths import Place, place, write_atomically
from curation.tables import commits, io, schemas
from curation.tables.files import WrittenFile, write_file
from curation.tables.stream import CommitRound, commit_stream
from curation.tasks import cause, in_tasks
from curation.telemetry.standing import Standing, Update


class Write(Stage):
    """Writes the rows of a round that pass."""

    class Made(NamedTuple):
        """The outputs."""

        files: list[dict[str, Any]]
        """:func:`write_rows`."""
        columns: list[str]

    labels: In[TableRef]
    examples: In[TableRef]
    threshold: In[dict[str, Any]]
    cut: In[str]
    """The id of the cut."""
    form: Format
    rows_per_file: int
    partition_by: list[str]
    with_rank: bool
    ranks: In[TableRef | None]
    first_rank: In[int]
    """Where the rows of the round begin in the ranks."""
    rows: PoolRows = setting()
    function: str = setting()
    """The trust function."""
    output: str = setting()
    """The folder of the data files."""
    commit_seconds: float = setting()

    def run(self, task: Task) -> Done:
        """Write the rows."""
        # Files of a round carry its own digest; a Lance table takes all rounds of a cut.
        table = fingerprint([self.cut, self.rows_per_file, self.rows.columns, self.with_rank])[:8]
        stem = f"rows-{table}" if self.form == "lance" else f"part-{task.directory.name[-8:]}"
        job = WriteJob(
            labels=self.labels,
            examples=self.examples,
            rows=self.rows,
            threshold=ThresholdCut.from_json(self.threshold),
            trust=schemas.trust_column(self.function),
            output=self.output,
            stem=stem,
            form=self.form,
            partition_by=tuple(self.partition_by),
            with_rank=self.with_rank,
            ranks=self.ranks,
        )
        place(self.output).mkdir(parents=True, exist_ok=True)
        with task.progress() as update:
            files = write_rows(
                job,
                task.directory / "notes",
                rows_per_file=self.rows_per_file,
                first_rank=self.first_rank,
                commit_seconds=self.commit_seconds,
                guard=task.guard,
                progress=update,
            )
        return Done(outputs=self.Made(files=files, columns=job.columns.names), rows=sum(file["rows"] for file in files))


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """Rows to write and their places; pickled to every task."""

    labels: TableRef
    examples: TableRef
    rows: PoolRows
    threshold: ThresholdCut
    trust: str
    """The labels column of the trust."""
    output: str
    """The folder of the data files."""
    stem: str
    """The first part of the files' names; of Lance the name of the table."""
    form: Format
    partition_by: tuple[str, ...] = ()
    """Columns whose values divide the rows into folders (:mod:`curation.stages.partitions`)."""
    with_rank: bool = False
    ranks: TableRef | None = None
    """The ranks of the rows that pass (:mod:`curation.stages.ranking`); None for rows that came after the cut."""
    starts: Mapping[int, int] = field(default_factory=dict)
    """The start of each fragment's rows in ``ranks``."""

    @property
    def columns(self) -> pa.Schema:
        """Columns of a row: id, the pool's own columns, prompt, completion, label, trust, rank and file."""
        own = [field for field in self.rows.schema() if field.name not in ("row_id", "error", *_MADE.names)]
        made = [field for field in _MADE if field != RANK or self.with_rank]
        return pa.schema([schemas.ROW_ID, *own, *made])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files."""
        return pa.schema([field for field in self.columns if field.name not in self.partition_by])

    @property
    def table_uri(self) -> str:
        """Address of the Lance table."""
        return str(place(self.output) / f"{self.stem}.lance")


_MADE = pa.schema(
    [
        pa.field("prompt", pa.string()),
        pa.field("completion", pa.string()),
        pa.field("label", pa.string()),
        pa.field("trust", pa.float32()),
        RANK,
        pa.field("source_file", pa.string()),
    ]
)


class Span(NamedTuple):
    """Rows of a fragment that pass and belong to a part's folder: ``take`` of them, after the first ``skip``."""

    fragment: int
    skip: int
    take: int


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """The rows of one file."""

    number: int
    spans: tuple[Span, ...]
    folder: str = ""
    """Within the output, where that is partitioned."""

    @property
    def num_rows(self) -> int:
        """How many."""
        return sum(span.take for span in self.spans)


def write_rows(
    job: WriteJob,
    notes: Place,
    *,
    rows_per_file: int,
    first_rank: int = 0,
    commit_seconds: float = 2.0,
    guard: Guard = unguarded,
    progress: Update | None = None,
) -> list[dict[str, Any]]:
    """Write the rows that pass and are not written yet; the files as JSON (``path``, ``rows``, ``bytes``, ``sha256``).

    Of Lance the table, with its ``version`` in place of bytes and digest. ``first_rank`` is where the rows begin in
    ``job.ranks``.

    Raises:
        ConfigError: the columns to partition by have too many values, or one that is too long.
        CommitError: the store refused, or rows that pass and rows written differ.
        RunFailedError: Ray gave up.
    """
    try:
        shared = ray.put(job)
        fragments = [fragment.fragment_id for fragment in io.open_table(job.labels).get_fragments()]
        counts = list(in_tasks(_count, zip(fragments, itertools.repeat(shared))))
        check_number(folders := sorted({folder for found in counts for folder in found}))
        parts: list[FilePart] = []
        for folder in folders:
            of_folder = [(fragment, found[folder]) for fragment, found in zip(fragments, counts, strict=True)]
            parts += divide(of_folder, rows_per_file, folder=folder, number=len(parts))
        totals = [found.total() for found in counts]
        starts = itertools.accumulate([first_rank, *totals])
        job = replace(job, starts=dict(zip(fragments, starts, strict=False)))
        update = _WriteProgress(progress, total=sum(totals))
        if not parts:
            return []
        if job.form == "lance":
            return [_table(job, parts, update, commit_seconds=commit_seconds, guard=guard)]
        return _files(job, parts, notes, update, guard=guard)
    except ray.exceptions.RayError as error:
        raise cause(error, "writing") from error


def divide(
    counts: Sequence[tuple[int, int]], rows_per_file: int, *, folder: str = "", number: int = 0
) -> Iterator[FilePart]:
    """Parts of ``rows_per_file`` rows each, the last one of the rest, from the rows that pass by fragment."""
    spans: list[Span] = []
    held = 0
    for fragment, count in counts:
        skip = 0
        while skip < count:
            take = min(count - skip, rows_per_file - held)
            spans.append(Span(fragment, skip, take))
            skip, held = skip + take, held + take
            if held == rows_per_file:
                yield FilePart(number=number, spans=tuple(spans), folder=folder)
                spans, number, held = [], number + 1, 0
    if spans:
        yield FilePart(number=number, spans=tuple(spans), folder=folder)


class _WriteProgress:
    """Rows written so far."""

    def __init__(self, update: Update | None, total: int) -> None:
        self._update, self._total, self._rows = update, total, 0

    def add(self, rows: int) -> None:
        self._rows += rows
        if self._update is not None:
            self._update(Standing(rows=self._rows, total=self._total))


def _files(
    job: WriteJob, parts: Sequence[FilePart], notes: Place, update: _WriteProgress, *, guard: Guard
) -> list[dict[str, Any]]:
    noted = {path.name for path in notes.iterdir()} if notes.is_dir() else set()
    there = set(data_files(place(job.output)))  # a file that a later cut removed has a note still
    parts_noted = {part.number: _note(notes, part) for part in parts if _name(part) in noted}
    done = {number: written for number, written in parts_noted.items() if written.path in there}
    update.add(sum(written.rows for written in done.values()))
    left = [part for part in parts if part.number not in done]
    for part, written in zip(left, in_tasks(_write_part, zip(left, itertools.repeat(ray.put(job)))), strict=True):
        if written.rows != part.num_rows:
            raise CommitError(f"{job.output}/{written.path}: {part.num_rows} rows in, {written.rows} rows out")
        guard()
        write_atomically(notes / _name(part), json.dumps(written.to_json()))
        done[part.number] = written
        update.add(written.rows)
    return [done[part.number].to_json() for part in parts]


def _table(
    job: WriteJob, parts: Sequence[FilePart], update: _WriteProgress, *, commit_seconds: float, guard: Guard
) -> dict[str, Any]:
    io.create(job.table_uri, job.schema)
    committer = commits.Committer(job.table_uri, guard)
    done = ray.put(committer.done.serialize())
    before, total = _of_round(job), sum(part.num_rows for part in parts)
    update.add(before)
    added = 0

    def committed(done: CommitRound) -> None:
        nonlocal added
        rows = sum(done.rows.values())
        update.add(rows - added)
        added = rows

    written = in_tasks(_write_fragment, zip(parts, itertools.repeat(ray.put(job)), itertools.repeat(done)))
    commit_stream(
        (row for table in written for row in table.to_pylist()),
        [committer],
        seconds=commit_seconds,
        guard=guard,
        on_commit=committed,
    )
    if (found := _of_round(job)) != total:
        raise CommitError(f"{job.table_uri}: {total} rows pass, {found} are written")
    return {"path": f"{job.stem}.lance", "rows": total, "version": io.latest(job.table_uri).version}


def _of_round(job: WriteJob) -> int:
    """The committed rows of the job's files, whose numbers follow each other."""
    first, last = job.rows.files[0].index, job.rows.files[-1].index
    within = f"row_id >= {first << schemas.FILE_SHIFT} AND row_id < {(last + 1) << schemas.FILE_SHIFT}"
    return io.count(io.latest(job.table_uri), filter=within)


def data_files(folder: Place, within: str = "") -> Iterator[str]:
    """The paths, relative to an output's folder of data, of the files and tables in it and in its partitions."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if "=" in path.name:
            yield from data_files(path, f"{within}{path.name}/")
        else:
            yield f"{within}{path.name}"


def _count(fragment: int, job: WriteJob) -> Counter[str]:
    """How many rows of a fragment pass, by folder."""
    counts: Counter[str] = Counter()
    for labels in passing(job.labels, job.threshold, fragment, []):
        if job.partition_by:
            counts.update(_folders(labels, job).to_pylist())
        elif labels.num_rows:
            counts[""] += labels.num_rows
    return counts


def _folders(labels: pa.RecordBatch, job: WriteJob) -> pa.Array:
    """The folder of each row, string [N]."""
    row_ids_N = labels.column("row_id").to_numpy()
    own = [name for name in job.partition_by if name not in _MADE.names]
    taken = io.take_offsets(job.examples, job.rows.offsets(row_ids_N), own).combine_chunks() if own else None
    values = {"label": labels.column("label"), "source_file": job.rows.paths(row_ids_N)}
    for name in own:
        assert taken is not None, "read where a column of the pool is asked for"
        values[name] = taken[name].combine_chunks()
    return folders_of({name: values[name] for name in job.partition_by})


def _write_part(part: FilePart, job: WriteJob) -> WrittenFile:
    name = f"{job.stem}-{part.number:05}.{job.form}"
    path = f"{part.folder}/{name}" if part.folder else name
    return replace(write_file(_batches(part, job), job.schema, place(job.output) / path, job.form), path=path)


def _write_fragment(part: FilePart, job: WriteJob, done: bytes) -> pa.Table:
    """Write a part as a fragment; nothing where it is committed."""
    batches = _batches(part, job)
    first = next(batches)
    if first.column("row_id")[0].as_py() in BitMap64.deserialize(done):
        return commits.WRITTEN.empty_table()
    ids: list[bytes] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in itertools.chain([first], batches):
            ids.append(batch.column("row_id").to_numpy().tobytes())
            yield batch

    reader = pa.RecordBatchReader.from_batches(job.schema, noted())
    fragments = write_fragments(reader, job.table_uri, schema=job.schema, mode="append")
    return commits.written(job.table_uri, fragments, b"".join(ids))


def _batches(part: FilePart, job: WriteJob) -> Iterator[pa.RecordBatch]:
    """The rows of a part, at most ``ranking.BATCH_ROWS`` at a time."""
    domain, examples = get_domain(job.rows.domain), io.open_table(job.examples)
    own = [name for name in job.schema.names if name not in _MADE.names]
    asked = list(dict.fromkeys(["row_id", *own, *domain.columns.names]))
    for span in part.spans:
        seen, start = 0, job.starts[span.fragment]
        for labels in passing(job.labels, job.threshold, span.fragment, ["completion", job.trust]):
            places_B = start + np.arange(labels.num_rows)
            start += labels.num_rows
            if part.folder:
                mine = pc.equal(_folders(labels, job), part.folder)
                labels, places_B = labels.filter(mine), places_B[mine.to_numpy(zero_copy_only=False)]
            low, high = max(span.skip - seen, 0), min(span.skip + span.take - seen, labels.num_rows)
            seen += labels.num_rows
            if low >= high:
                continue
            labels, places_B = labels.slice(low, high - low), places_B[low:high]
            row_ids_B = labels.column("row_id").to_numpy()
            taken = examples.take(job.rows.offsets(row_ids_B), columns=asked).combine_chunks()
            if not np.array_equal(taken["row_id"].to_numpy(), row_ids_B):
                raise CommitError(f"{job.examples.uri}: rows are not in the order of the files; remove the output")
            made = {
                "prompt": pa.array([domain.prompt(example) for example in taken.to_pylist()], pa.string()),
                "completion": labels.column("completion"),
                "label": labels.column("label"),
                "trust": labels.column(job.trust),
                "rank": _ranks(places_B, job),
                "source_file": job.rows.paths(row_ids_B),
            }
            columns = [made[name] if name in made else taken[name].chunk(0) for name in job.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=job.schema)
            if seen >= span.skip + span.take:
                break


def _ranks(places_B: Int64s, job: WriteJob) -> pa.Array:
    if job.ranks is None:
        return pa.nulls(len(places_B), RANK.type)
    return io.take_offsets(job.ranks, places_B)["rank"].combine_chunks()


def _name(part: FilePart) -> str:
    return f"{part.number:05}.json"


def _note(notes: Place, part: FilePart) -> WrittenFile:
    return WrittenFile(**json.loads((notes / _name(part)).read_text()))
