"""The rows of a pool's files as one table, every row once and in the order of the files; bad rows as error rows.

The files are read as a run reads its pool (:mod:`curation.stages.prepare`), without other splits. Since chunks are
committed in order, a row's position in the table follows from its id (:meth:`PoolRows.offsets`), so later tasks take
rows without a search.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import ray.exceptions

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import get_domain
from curation.errors import CommitError, SourceError
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, Stage, setting
from curation.rundir.run import Task
from curation.sources import Assignment, Permutation, SourceFile, make_kept_fields, require_columns
from curation.stages.deal import (
    POOL,
    DealJob,
    DealtSource,
    SplitTable,
    make_table_schema,
)
from curation.stages.prepare import SplitCounts, SplitWriting, assign_left, check_share, count_split, iter_chunks
from curation.tables import io, schemas
from curation.tables.compaction import compact
from curation.tasks import make_driver_error


@dataclass(frozen=True, kw_only=True)
class PoolRows:
    """A round of a filter, the files that were new at one start, and the columns that are read."""

    name: str = ""
    files: tuple[SourceFile, ...]
    """Files of the pool, ordered by their numbers."""
    domain: DomainConfig
    columns: tuple[str, ...]
    """Columns of the files to keep beside the domain's own."""

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.num_rows for file in self.files)

    @property
    def kept(self) -> tuple[pa.Field, ...]:
        """The columns that are kept beside the domain's own; a ``SourceError`` if files disagree about a type."""
        own = get_domain(self.domain).columns.names
        return tuple(make_kept_fields(self.files, [name for name in self.columns if name not in own]))

    def schema(self) -> pa.Schema:
        """Return the schema of the table: the row id, the domain's columns, the kept ones, and ``error``."""
        return make_table_schema(get_domain(self.domain), POOL, kept=self.kept)

    def check(self) -> None:
        """Refuse files that lack a column that is read or kept, or disagree about a type, by a ``SourceError``."""
        domain = get_domain(self.domain)
        further = [name for name in self.columns if name not in domain.columns.names]
        require_columns(self.files, [[*form, *further] for form in domain.forms])
        make_kept_fields(self.files, further)

    def offsets(self, row_ids_N: Int64s) -> Int64s:
        """Return the position of each row in the table, int64 [N]."""
        starts = np.concatenate([[0], np.cumsum([file.num_rows for file in self.files])])
        places_N = np.searchsorted([file.index for file in self.files], row_ids_N >> schemas.FILE_SHIFT)
        offsets_N: Int64s = starts[places_N] + (row_ids_N & ((1 << schemas.FILE_SHIFT) - 1))
        return offsets_N

    def paths(self, row_ids_N: Int64s) -> pa.Array:
        """Return the path of each row's file."""
        places_N = np.searchsorted([file.index for file in self.files], row_ids_N >> schemas.FILE_SHIFT)
        return pa.array([file.path for file in self.files], pa.string()).take(pa.array(places_N))


class ReadPool(Stage):
    """A stage that reads the files of a round, and refuses them if too many rows cannot be used."""

    class Made(NamedTuple):
        pool: TableRef
        errors: dict[str, int]

    files: list[Json]
    """Files to read, each a :class:`curation.sources.SourceFile` as JSON."""
    domain: DomainConfig
    columns: list[str]
    contents: list[str] = setting(default_factory=list)
    """Digests of the files' contents, in the order of ``files``."""
    commit_seconds: float = setting()
    fragment_mb: int = setting()
    max_error_rate: float = setting()

    def run(self, task: Task) -> Done:
        """Read the rows."""
        files = tuple(SourceFile.with_contents(self.files, self.contents))
        rows = PoolRows(files=files, domain=self.domain, columns=tuple(self.columns))
        with task.progress() as update:
            writing = SplitWriting(
                commit_seconds=self.commit_seconds, fragment_mb=self.fragment_mb, guard=task.guard, progress=update
            )
            made = read_pool(rows, str(task.directory / "pool.lance"), writing)
        check_share("pool", made.pool, SplitCounts(rows=rows.num_rows, errors=made.errors), self.max_error_rate)
        return Done(outputs=made, rows=rows.num_rows)


def read_pool(rows: PoolRows, uri: str, writing: SplitWriting) -> ReadPool.Made:
    """Write the rows that the table lacks, and return the table and the number of its error rows by kind."""
    rows.check()
    schema, total = rows.schema(), rows.num_rows
    everything = Assignment(counts={POOL: total}, permutation=Permutation(size=total, seed=0))
    source = DealtSource(domains={POOL: rows.domain}, id_column=None, assignment=everything, kept=rows.kept)
    job = DealJob(sources={POOL: source}, tables={POOL: SplitTable(uri, schema, total)})
    io.create(uri, schema)
    try:
        assign_left(job, [*iter_chunks({POOL: rows.files}, writing.chunk_rows)], writing)
    except ray.exceptions.RayError as error:
        raise make_driver_error(error, "reading the pool") from error
    ref = io.find_latest(uri)
    if (found := io.count(ref)) != total:
        raise CommitError(f"{uri}: {total} rows in, {found} rows out")
    errors = count_split(ref, POOL).errors
    if total and sum(errors.values()) == total:
        kind, number = next(iter(errors.items()))
        raise SourceError(f"{rows.files[0].path}: none of {total:,} rows is usable ({number:,} of them {kind})")
    return ReadPool.Made(compact(ref, writing.fragment_mb, guard=writing.guard), errors)
