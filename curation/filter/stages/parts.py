"""The rows that pass a cut: their ranks, and the parts of a filter's output, each with the rows of one file.

A task streams its part of the labels, takes the examples of the rows that pass, and renders their prompts; it never
holds more than a batch of rows. Folders by the values of columns are named as Hive does (``language=en/year=2024``):
values are percent-encoded, null is ``NULL``, and they are only in the names, as pyarrow, Spark, DuckDB and Polars read.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray.exceptions
from lance.fragment import write_fragments
from pyroaring import BitMap64

from curation.arrays import Float32s, Int64s, Uint64s
from curation.config.filter import Format
from curation.domains import get_domain
from curation.errors import CommitError, ConfigError
from curation.filter.stages.cut import ThresholdCut
from curation.filter.stages.pool import PoolRows
from curation.hashing import hash64
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.selection.external_sort import iter_sorted
from curation.storage.paths import to_place
from curation.tables import commits, io, schemas
from curation.tables.files import WrittenFile, write_file
from curation.tasks import make_driver_error, run_in_tasks

BATCH_ROWS = 8192
RANK = pa.field("rank", pa.int64())
"""Rank of a row, 0 for the best; null for a row that was added after the cut was made."""
_WRITTEN_ROWS = 1 << 17
NULL = "__HIVE_DEFAULT_PARTITION__"
MAX_FOLDERS = 1024
MAX_BYTES = 255
"""Maximum size of a folder's name on common file systems, in bytes."""


class Rank(Stage):
    """A stage that ranks the rows that pass, in the rounds from which the cut was made.

    Ranks order raw scores, larger first, and equal ones by the seeded hash of the row id by which the cut breaks ties.
    The table of ranks has one column, and the order of the rows that pass in the labels tables, one after the other, so
    that tasks that write rows read a slice and look up no ids. One process holds 16 bytes for each row that passes.
    """

    class Made(NamedTuple):
        ranks: TableRef
        starts: dict[str, int]
        """Position of each round's first row in the table."""

    tables: InEach[TableRef]
    threshold: In[Json]
    function: str
    seed: int

    @property
    def inputs(self) -> Json:
        """The arguments on which the ranks depend."""
        return {**super().inputs, "tables": list(self.tables.values()), "rounds": list(self.tables)}

    def run(self, task: Task) -> Done:
        """Rank the rows."""
        threshold, uri = ThresholdCut.from_json(self.threshold), str(task.directory / "ranks.lance")
        made = rank_rows(self.tables, threshold, self.function, uri, seed=self.seed)
        return Done(outputs=made, rows=io.count(made.ranks))


def rank_rows(
    tables: Mapping[str, TableRef], threshold: ThresholdCut, function: str, uri: str, *, seed: int
) -> Rank.Made:
    """Rank the rows of labels tables, by round, that pass a threshold, by the raw scores of the trust ``function``."""
    raw = schemas.get_raw_column(function)
    fragments = [[fragment.fragment_id for fragment in io.open_table(ref).get_fragments()] for ref in tables.values()]
    calls = (
        (ref, threshold, fragment, raw, seed)
        for ref, found in zip(tables.values(), fragments, strict=True)
        for fragment in found
    )
    begins = [0]

    def placed() -> Iterator[tuple[Int64s, Float32s, Uint64s]]:
        for score_B, tie_B in run_in_tasks(_read_keys, calls):
            begins.append(begins[-1] + len(score_B))
            yield np.arange(begins[-2], begins[-1]), score_B, tie_B

    try:
        places = list(iter_sorted(placed()))
    except ray.exceptions.RayError as error:
        raise make_driver_error(error, "ranking") from error
    starts = [begins[number] for number in itertools.accumulate(map(len, fragments[:-1]), initial=0)]
    rank_n = np.empty(begins[-1], dtype=np.int64)
    ends = itertools.accumulate(map(len, places))
    for end, place_B in zip(ends, places, strict=True):
        rank_n[place_B] = np.arange(end - len(place_B), end)
    schema = pa.schema([RANK])
    batches = (
        pa.record_batch([pa.array(rank_n[start : start + _WRITTEN_ROWS])], schema=schema)
        for start in range(0, len(rank_n), _WRITTEN_ROWS)
    )
    return Rank.Made(io.write_batches(batches, schema, uri), dict(zip(tables, starts, strict=True)))


def iter_passing(
    ref: TableRef, threshold: ThresholdCut, fragment: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fragment that pass, in the fragment's order, at most ``BATCH_ROWS`` at a time."""
    dataset = io.open_table(ref)
    found = dataset.get_fragment(fragment)
    if found is None:
        raise CommitError(f"{ref.uri}: fragment {fragment} is not in version {ref.version}")
    wanted = list(dict.fromkeys([*threshold.columns, *columns]))
    scanner = dataset.scanner(
        columns=wanted, filter=threshold.near, fragments=[found], batch_size=BATCH_ROWS, scan_in_order=True
    )
    for batch in scanner.to_batches():
        yield batch.filter(pa.array(threshold.passes(batch)))


def _read_keys(ref: TableRef, threshold: ThresholdCut, fragment: int, raw: str, seed: int) -> tuple[Float32s, Uint64s]:
    """Return the scores and hashes of the rows of a fragment that pass, both [n]."""
    scores, ties = [np.zeros(0, dtype=np.float32)], [np.zeros(0, dtype=np.uint64)]
    for batch in iter_passing(ref, threshold, fragment, [raw]):
        scores.append(batch.column(raw).to_numpy(zero_copy_only=False).astype(np.float32))
        ties.append(hash64(batch.column("row_id").to_numpy(), seed))
    return np.concatenate(scores), np.concatenate(ties)


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """The rows to write and the place of their files, pickled to every task."""

    labels: TableRef
    examples: TableRef
    rows: PoolRows
    threshold: ThresholdCut
    trust: str
    """Column of the labels table that has the trust."""
    output: str
    stem: str
    """Prefix of the files' names, or the name of the Lance table."""
    form: Format
    rows_per_file: int
    partition_by: tuple[str, ...] = ()
    """Columns whose values divide the rows into folders (:mod:`curation.filter.stages.parts`)."""
    with_rank: bool = False
    ranks: TableRef | None = None
    """Ranks of the rows that pass (``ranking``), or None for rows that were added after the cut."""
    first_rank: int = 0
    """Position of the first row in ``ranks``."""
    starts: Mapping[int, int] = field(default_factory=dict)
    """Start of each fragment's rows in ``ranks``."""
    commit_seconds: float = 2.0

    @property
    def columns(self) -> pa.Schema:
        """The columns of a row: id, the pool's own columns, prompt, completion, label, trust, rank and file."""
        own = [field for field in self.rows.schema() if field.name not in ("row_id", "error", *_MADE.names)]
        made = [field for field in _MADE if field != RANK or self.with_rank]
        return pa.schema([schemas.ROW_ID, *own, *made])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files, without those that divide rows into folders."""
        return pa.schema([field for field in self.columns if field.name not in self.partition_by])

    @property
    def table_uri(self) -> str:
        """The address of the Lance table."""
        return str(to_place(self.output) / f"{self.stem}.lance")


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
    """A range of a fragment's rows that pass and belong to a part's folder: ``take`` rows after ``skip`` others."""

    fragment: int
    skip: int
    take: int


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """The rows of one file."""

    number: int
    spans: tuple[Span, ...]
    folder: str = ""
    """Folder of the file within a partitioned output; empty if the output is not partitioned."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(span.take for span in self.spans)


def divide(
    counts: Sequence[tuple[int, int]], rows_per_file: int, *, folder: str = "", number: int = 0
) -> Iterator[FilePart]:
    """Yield parts of ``rows_per_file`` rows, the last one with the rest, from counts of passing rows by fragment."""
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


def count_rows(fragment: int, job: WriteJob) -> Counter[str]:
    """Return how many rows of a fragment pass, by folder."""
    counts: Counter[str] = Counter()
    for labels in iter_passing(job.labels, job.threshold, fragment, []):
        if job.partition_by:
            counts.update(_format_folders(labels, job).to_pylist())
        elif labels.num_rows:
            counts[""] += labels.num_rows
    return counts


def _format_folders(labels: pa.RecordBatch, job: WriteJob) -> pa.Array:
    """Return the folder of each row, string [N]."""
    row_ids_N = labels.column("row_id").to_numpy()
    own = [name for name in job.partition_by if name not in _MADE.names]
    taken = io.take_offsets(job.examples, job.rows.offsets(row_ids_N), own).combine_chunks() if own else None
    values = {"label": labels.column("label"), "source_file": job.rows.paths(row_ids_N)}
    for name in own:
        assert taken is not None, "read where a column of the pool is asked for"
        values[name] = taken[name].combine_chunks()
    return format_folders({name: values[name] for name in job.partition_by})


def write_part(part: FilePart, job: WriteJob) -> WrittenFile:
    """Write a part as a file."""
    name = f"{job.stem}-{part.number:05}.{job.form}"
    path = f"{part.folder}/{name}" if part.folder else name
    return replace(write_file(_iter_batches(part, job), job.schema, to_place(job.output) / path, job.form), path=path)


def write_part_as_fragment(part: FilePart, job: WriteJob, done: bytes) -> pa.Table:
    """Write a part as a fragment, unless its first row is in ``done``, the ids of committed rows."""
    batches = _iter_batches(part, job)
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
    return commits.make_written_row(job.table_uri, fragments, b"".join(ids))


def _iter_batches(part: FilePart, job: WriteJob) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, at most ``ranking.BATCH_ROWS`` at a time."""
    domain, examples = get_domain(job.rows.domain), io.open_table(job.examples)
    own = [name for name in job.schema.names if name not in _MADE.names]
    asked = list(dict.fromkeys(["row_id", *own, *domain.columns.names]))
    for span in part.spans:
        seen, start = 0, job.starts[span.fragment]
        for labels in iter_passing(job.labels, job.threshold, span.fragment, ["completion", job.trust]):
            places_B = start + np.arange(labels.num_rows)
            start += labels.num_rows
            if part.folder:
                mine = pc.equal(_format_folders(labels, job), part.folder)
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
                "rank": pa.nulls(len(places_B), RANK.type)
                if job.ranks is None
                else io.take_offsets(job.ranks, places_B)["rank"].combine_chunks(),
                "source_file": job.rows.paths(row_ids_B),
            }
            columns = [made[name] if name in made else taken[name].chunk(0) for name in job.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=job.schema)
            if seen >= span.skip + span.take:
                break


def check_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns that are missing, or by whose type rows cannot be divided, by a ``ConfigError``."""
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                f"output.partition_by: the output has no column {name!r} (it has: {', '.join(schema.names)}); "
                "a column of the pool's files has to be in pool.columns, too"
            )
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise ConfigError(
                f"output.partition_by: column {name!r} is {kind}; take one of text, whole numbers, or true and false"
            )


def check_number(folders: Sequence[str]) -> None:
    """Refuse to make more than ``MAX_FOLDERS`` folders, by a ``ConfigError``."""
    if len(folders) > MAX_FOLDERS:
        raise ConfigError(
            f"output.partition_by: the rows that pass have {len(folders):,} values, and each is a folder; take columns "
            f"with at most {MAX_FOLDERS:,} (the labels are kept)"
        )


def format_folders(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the folder of each row, string [N], from the columns by name, the outermost first."""
    parts = []
    for name, values in columns.items():
        coded, segments = values.dictionary_encode(null_encoding="encode"), []
        for value in coded.dictionary.to_pylist():
            text = str(value).lower() if isinstance(value, bool) else quote(str(value), safe="")
            segment = f"{quote(name, safe='')}={NULL if value is None else text}"
            if len(segment) > MAX_BYTES:
                raise ConfigError(
                    f"output.partition_by: a value of {name!r} makes a folder's name of {len(segment):,} bytes "
                    f"({segment[:60]}...), more than {MAX_BYTES}; take another column"
                )
            segments.append(segment)
        parts.append(pa.array(segments, pa.string()).take(coded.indices))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "/")
