"""The rows of a round: its files as one table, and the rows that pass the cut as files.

The files are read as a run reads its pool (:mod:`curation.stages.prepare`), without other splits: every row once and in
the order of the files, bad rows as error rows. Since chunks are committed in order, a row's position in the table
follows from its id (:meth:`PoolRows.offsets`), so later tasks take rows without a search.

To write, a Ray task for each fragment of the labels streams it, takes the examples of the rows that pass and renders
their prompts, so it never holds more than a batch of rows. File names follow from the stage's inputs and the number of
the fragment, and files are written atomically: a stage that is repeated writes the same files again.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import ray
import ray.exceptions

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.config.filter import Format
from curation.domains import get_domain
from curation.errors import CommitError, SourceError
from curation.filter.stages.cut import ThresholdCut
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage, setting
from curation.rundir.run import Task
from curation.sources import Assignment, Permutation, SourceFile, make_kept_fields, require_columns
from curation.stages.prepare import SplitCounts, SplitWriting, assign_left, check_share, count_split, iter_chunks
from curation.stages.split_tables import POOL, SourceSplits, SplitJob, SplitTable, make_table_schema
from curation.storage.paths import to_place
from curation.tables import io, schemas
from curation.tables.compaction import compact
from curation.tables.files import WrittenFile, write_file
from curation.tasks import make_driver_error, run_in_tasks
from curation.telemetry.standing import Standing, Update

ADDED = pa.schema(
    [
        pa.field("prompt", pa.string()),
        pa.field("completion", pa.string()),
        pa.field("label", pa.string()),
        pa.field("trust", pa.float32()),
        pa.field("trust_raw", pa.float32()),  # the score that ranks rows: a float32 sigmoid saturates at 1
        pa.field("source_file", pa.string()),
    ]
)
"""Columns of written rows beside the pool's own."""


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
    source = SourceSplits(domains={POOL: rows.domain}, id_column=None, assignment=everything, kept=rows.kept)
    job = SplitJob(sources={POOL: source}, tables={POOL: SplitTable(uri, schema, total)})
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


class Write(Stage):
    """A stage that writes the rows of a round that pass; it is pickled to the tasks that write its files."""

    class Made(NamedTuple):
        files: list[Json]
        """Files with ``path``, ``rows``, ``bytes`` and ``sha256``."""
        columns: list[str]

    labels: In[TableRef]
    examples: In[TableRef]
    threshold: In[Json]
    form: Format
    rows: PoolRows = setting()
    function: str = setting()
    output: str = setting()
    revision: int = 2  # a file holds the rows of a fragment of the labels

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row: its id, the pool's own columns, and those of ``ADDED``."""
        own = [field for field in self.rows.schema() if field.name not in ("row_id", "error", *ADDED.names)]
        return pa.schema([schemas.ROW_ID, *own, *ADDED])

    def run(self, task: Task) -> Done:
        """Write the rows that pass."""
        with task.progress() as update:
            files = self.write(f"part-{task.directory.name[-8:]}", progress=update)
        rows = sum(file.rows for file in files)
        return Done(outputs=self.Made([file.to_json() for file in files], self.schema.names), rows=rows)

    def write(self, stem: str, *, progress: Update = lambda standing: None) -> list[WrittenFile]:
        """Write the files ``stem-NUMBER``, and return them; none for a fragment of which no row passes.

        Raises:
            CommitError: the store refused, or the pool's rows are not those that were labelled.
            RunFailedError: Ray gave up.
        """
        to_place(self.output).mkdir(parents=True, exist_ok=True)
        written: list[WrittenFile] = []
        try:
            job, done = ray.put(self), 0
            sizes = {part.fragment_id: part.count_rows() for part in io.open_table(self.labels).get_fragments()}
            parts = ((job, fragment, f"{stem}-{number:05}") for number, fragment in enumerate(sizes))
            for file, size in zip(run_in_tasks(write_part, parts), sizes.values(), strict=True):
                if file is not None:
                    written.append(file)
                done += size
                progress(Standing(rows=done, total=sum(sizes.values())))
        except ray.exceptions.RayError as error:
            raise make_driver_error(error, "writing") from error
        return written


def write_part(job: Write, fragment: int, name: str) -> WrittenFile | None:
    """Write the rows of one fragment of the labels that pass the cut; no file if none does."""
    batches = _iter_batches(job, fragment)
    if (first := next(batches, None)) is None:
        return None
    path = to_place(job.output) / f"{name}.{job.form}"
    return write_file(itertools.chain([first], batches), job.schema, path, job.form)


def _iter_batches(job: Write, fragment: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fragment that pass, at most ``cut.BATCH_ROWS`` at a time."""
    cut, schema, domain = ThresholdCut.from_json(job.threshold), job.schema, get_domain(job.rows.domain)
    trust, raw = schemas.trust_column(job.function), schemas.get_raw_column(job.function)
    own = [name for name in schema.names if name not in ADDED.names]
    columns = list(dict.fromkeys([*own, *domain.columns.names]))
    for labels in cut.iter_passing(job.labels, ["completion", trust, raw], fragment):
        if not labels.num_rows:
            continue
        row_ids_B = labels.column("row_id").to_numpy()
        taken = io.take_offsets(job.examples, job.rows.offsets(row_ids_B), columns).combine_chunks()
        if not np.array_equal(taken["row_id"].to_numpy(), row_ids_B):
            raise CommitError(f"{job.examples.uri}: rows are not in the order of the files; remove the output")
        added = {
            "prompt": pa.array([domain.prompt(example) for example in taken.to_pylist()], pa.string()),
            "completion": labels.column("completion"),
            "label": labels.column("label"),
            "trust": labels.column(trust),
            "trust_raw": labels.column(raw),
            "source_file": job.rows.paths(row_ids_B),
        }
        arrays = [added[name] if name in added else taken[name].chunk(0) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
