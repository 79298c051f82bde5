"""The rows of a pool's files as one table, every row once and in the order of the files; bad rows as error rows.

A task reads one chunk, a part of a file or many small files, and writes one fragment. Since chunks are committed in
their order, a row's position in the table follows from its id (:meth:`PoolRows.offsets`), so that later tasks take rows
without a search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import ray
import ray.exceptions

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, attempt, get_domain
from curation.errors import CommitError, SourceError
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, Stage, setting
from curation.rundir.run import Task
from curation.sources import (
    SourceFile,
    Stretch,
    as_kept,
    grouped,
    kept_fields,
    raw_rows,
    read_rows,
    require_columns,
    row_ids,
    stretches,
)
from curation.stages.deal import schema_problem
from curation.stages.usable import SplitCounts, check_share, count_split
from curation.storage.lease import Guard, unguarded
from curation.tables import commits, io, schemas
from curation.tables.compaction import compact
from curation.tables.stream import CommitRound, commit_stream
from curation.tasks import cause, in_tasks
from curation.telemetry.standing import Standing, Update

CHUNK_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class PoolRows:
    """The files of a pool and what is read of them."""

    files: tuple[SourceFile, ...]
    """In the order of their numbers."""
    domain: DomainConfig
    columns: tuple[str, ...]
    """Columns of the files to keep beside the domain's own."""

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(file.num_rows for file in self.files)

    def schema(self) -> pa.Schema:
        """The table's: the domain's columns, the kept ones, and ``error``.

        Raises:
            SourceError: files disagree about the type of a kept column.
        """
        own = get_domain(self.domain).columns
        kept = kept_fields(self.files, [name for name in self.columns if name not in own.names])
        return schemas.examples(pa.schema([*own, *kept]), gold=False)

    def check(self) -> None:
        """Refuse files that lack a column.

        Raises:
            SourceError: a file lacks a column that the domain reads or that is to be kept; the message names both.
        """
        forms = get_domain(self.domain).forms
        own = set(get_domain(self.domain).columns.names)
        require_columns(self.files, [[*form, *(name for name in self.columns if name not in own)] for form in forms])

    def offsets(self, row_ids_N: Int64s) -> Int64s:
        """The position of each row in the table, int64 [N]."""
        starts = np.concatenate([[0], np.cumsum([file.num_rows for file in self.files])])
        places_N = np.searchsorted([file.index for file in self.files], row_ids_N >> schemas.FILE_SHIFT)
        offsets_N: Int64s = starts[places_N] + (row_ids_N & ((1 << schemas.FILE_SHIFT) - 1))
        return offsets_N

    def paths(self, row_ids_N: Int64s) -> pa.Array:
        """The path of each row's file."""
        places_N = np.searchsorted([file.index for file in self.files], row_ids_N >> schemas.FILE_SHIFT)
        return pa.array([file.path for file in self.files], pa.string()).take(pa.array(places_N))


class ReadPool(Stage):
    """Reads the files of a round, and refuses them where too many rows cannot be used."""

    class Made(NamedTuple):
        """The outputs."""

        pool: TableRef
        errors: dict[str, int]
        """Error rows by kind."""

    files: list[Json]
    """The :class:`curation.sources.SourceFile` of each, as JSON."""
    domain: DomainConfig
    columns: list[str]
    contents: list[str] = setting(default_factory=list)
    """The digests of the files' bytes, in their order."""
    commit_seconds: float = setting()
    fragment_mb: int = setting()
    max_error_rate: float = setting()

    def run(self, task: Task) -> Done:
        """Read the rows."""
        files = tuple(SourceFile.with_contents(self.files, self.contents))
        rows = PoolRows(files=files, domain=self.domain, columns=tuple(self.columns))
        with task.progress() as update:
            made = read_pool(
                rows,
                str(task.directory / "pool.lance"),
                commit_seconds=self.commit_seconds,
                fragment_mb=self.fragment_mb,
                guard=task.guard,
                progress=update,
            )
        check_share("pool", made.pool, SplitCounts(rows=rows.num_rows, errors=made.errors), self.max_error_rate)
        return Done(outputs=made, rows=rows.num_rows)


def read_pool(
    rows: PoolRows,
    uri: str,
    *,
    commit_seconds: float = 2.0,
    fragment_mb: int = 256,
    chunk_rows: int = CHUNK_ROWS,
    guard: Guard = unguarded,
    progress: Update | None = None,
) -> ReadPool.Made:
    """Write the rows that the table does not have yet; the table, and its error rows by kind.

    Raises:
        SourceError: a column is missing, a file cannot be read, or no row is usable.
        CommitError: the store refused, or rows in and rows out differ.
        RunFailedError: Ray gave up.
    """
    rows.check()
    schema = rows.schema()
    io.create(uri, schema)
    committer = commits.Committer(uri, guard)
    num_done, total = len(committer.done), rows.num_rows

    def committed(done: CommitRound) -> None:
        if progress is not None:
            progress(Standing(rows=num_done + sum(done.rows.values()), total=total))

    missing = (
        part
        for part in stretches(rows.files, chunk_rows)  # each is committed as a whole
        if (part.file.index << schemas.FILE_SHIFT) + part.start not in committer.done
    )
    left = list(grouped(missing, chunk_rows))
    committed(CommitRound({}, 0.0))
    try:
        if left:
            domain = ray.put(rows.domain)
            written = in_tasks(_read_chunk, ((parts, domain, schema, uri) for parts in left))
            commit_stream(written, [committer], seconds=commit_seconds, guard=guard, on_commit=committed)
    except ray.exceptions.RayError as error:
        raise cause(error, "reading the pool") from error
    ref = io.latest(uri)
    if (found := io.count(ref)) != total:
        raise CommitError(f"{uri}: {total} rows in, {found} rows out")
    errors = count_split(ref, "pool").errors
    if total and sum(errors.values()) == total:
        kind, number = next(iter(errors.items()))
        raise SourceError(f"{rows.files[0].path}: none of {total:,} rows is usable ({number:,} of them {kind})")
    return ReadPool.Made(compact(ref, fragment_mb, guard=guard), errors)


def _read_chunk(parts: tuple[Stretch, ...], domain: DomainConfig, schema: pa.Schema, uri: str) -> pa.Table:
    """Write a chunk's rows as a fragment; the row of ``commits.WRITTEN`` that names it."""
    batches = [batch for part in parts for batch in _batches(part, get_domain(domain), schema)]
    return commits.write_fragment(pa.Table.from_batches(batches, schema), uri, schema)


def _batches(part: Stretch, domain: Domain, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    own, nothing = domain.columns, dict.fromkeys(domain.columns.names)
    kept = [field for field in schema if field.name not in ("row_id", *own.names, "error")]
    start = part.start
    for batch in read_rows(part.file, part.start, part.stop):
        examples, problems = [], []
        for raw in raw_rows(batch):
            example, problem = attempt(domain.read, raw)
            problem = problem or schema_problem(example or {}, own)
            examples.append(nothing if problem else example)
            problems.append(problem or None)
        columns = [
            pa.array(row_ids(part.file, start, start + batch.num_rows, None)),
            *pa.RecordBatch.from_pylist(examples, schema=own).columns,
            *(as_kept(batch.column(field.name), field.type) for field in kept),
            pa.array(problems, pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        start += batch.num_rows
