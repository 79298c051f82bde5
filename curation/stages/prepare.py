"""The prepare stage, which turns input files into the tables of the splits, every row once, bad rows as error rows.

A task reads one chunk, a part of a file or many small files, and writes one fragment per split. Source files are read
once, and tables keep their order. Committed rows are not written again; if new files or changed settings leave a table
with anything but whole chunks of its split, it is started again. When all tables are complete, rows that repeat a
question of a split with higher priority are handled as ``splits.overlap`` says.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import lance
import numpy as np
from pyroaring import BitMap64

from curation.config import RowsConfig
from curation.domains import get_domain
from curation.errors import CommitError, SourceError, get_error_kind
from curation.escaping import quote_text
from curation.heavy import ray
from curation.json_types import JsonView
from curation.refs import TableRef
from curation.rundir.graph import Done, InEach, Stage, setting
from curation.rundir.run import Task
from curation.sources import (
    NOTHING,
    SourceFile,
    check_unique,
    find_nearest_column,
    group_stretches,
    iter_stretches,
    make_assignment,
    require_columns,
)
from curation.stages.overlap import find_overlap
from curation.stages.split_tables import (
    AUDIT,
    NO_AUDIT,
    POOL,
    REMEDY,
    REMEDY_ADDED,
    Overlap,
    OverlapDecision,
    SourceChunk,
    SourceSplits,
    SplitJob,
    SplitTable,
    assign_chunk,
    assign_splits,
    decide_overlap,
    delete_rows,
    describe_errors,
    find_targets,
    make_table_schema,
)
from curation.stopping import iter_checked
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place
from curation.tables import commits, io
from curation.tables.compaction import compact
from curation.tables.stream import commit_stream
from curation.tasks import make_driver_error, run_in_tasks
from curation.telemetry.standing import Standing, Update

MIN_CHUNK_ROWS, MAX_CHUNK_ROWS = 500, 50_000
NUM_CHUNKS = 32
GROUPED = ("source", "calibration", "pool")
"""The splits whose files must have the column ``splits.group``."""


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of a split's rows, before rows with questions of other splits are dropped."""

    rows: int
    errors: dict[str, int]
    """Error rows by kind; in the audit table, remaining rows without a gold label or with an unusable solution."""


@dataclass(frozen=True, kw_only=True)
class PreparedRefs:
    """The tables of the splits (with ``audit`` if it is kept) and their counts, by name, and the overlap of splits."""

    tables: dict[str, TableRef]
    counts: dict[str, SplitCounts]
    overlap: Overlap


@dataclass(frozen=True, kw_only=True)
class SplitWriting:
    """Settings for writing the tables of splits."""

    commit_seconds: float = 2.0
    fragment_mb: int = 256
    chunk_rows: int | None = None
    """Number of rows per task and commit; if unset, 1/32 of all rows, from 500 to 50,000."""
    guard: Guard = guard_nothing
    progress: Update | None = None


class Prepare(Stage):
    """A stage that assigns rows of the input files to splits; splits added to a run get rows that no split has yet."""

    Made = PreparedRefs

    config: RowsConfig
    files: JsonView
    """The input files by source, as JSON."""
    contents: JsonView = setting(default_factory=dict)
    before: InEach[TableRef] = field(default_factory=dict)  # type: ignore[arg-type]
    taken: Mapping[str, int] = field(default_factory=dict)
    commit_seconds: float = setting()
    fragment_mb: int = setting()
    max_error_rate: float = setting()

    def run(self, task: Task) -> Done:
        """Assign the rows, and report which rows cannot be used and which questions the splits share."""
        files = {
            name: SourceFile.with_contents(items, self.contents.get(name, ())) for name, items in self.files.items()
        }
        with task.progress() as update:
            writing = SplitWriting(
                commit_seconds=self.commit_seconds, fragment_mb=self.fragment_mb, guard=task.guard, progress=update
            )
            prepared = prepare(
                self.config,
                task.directory,
                files,
                before=self.before,
                taken=self.taken,
                max_error_rate=self.max_error_rate,
                writing=writing,
            )
        for name, count in prepared.counts.items():
            if name != AUDIT and (num_bad := sum(count.errors.values())):
                kinds = describe_errors(count.errors)
                task.say(f"{name}: {num_bad:,} of {count.rows:,} rows cannot be used ({kinds})")
        for sentence in prepared.overlap.sentences():
            task.say(sentence)
        return Done(outputs=prepared, rows=sum(counts.rows for counts in prepared.counts.values()))


def prepare(
    config: RowsConfig,
    directory: Place,
    files: Mapping[str, Sequence[SourceFile]],
    *,
    before: Mapping[str, TableRef] = MappingProxyType({}),
    taken: Mapping[str, int] = NOTHING,
    max_error_rate: float = 1.0,
    writing: SplitWriting = SplitWriting(),
) -> PreparedRefs:
    """Write the splits of the sources' ``files`` as ``<directory>/<split>.lance``.

    Splits with tables from ``before`` keep their rows; ``taken`` has their numbers of rows. ``max_error_rate`` is the
    maximum share of error rows in a split, other than the audit table.

    Raises:
        SourceError: a column is missing, ids repeat, a split has no healthy row, too many bad rows or loses all, no
            row of an audited pool has a gold label, or splits share a question and ``splits.overlap`` is ``refuse``.
        ConfigError: two splits take the rest of a source.
        CommitError: the store refused, or rows in and rows out differ.
        RunFailedError: Ray gave up.
    """
    job = _plan_job(config, directory, files, before, taken)
    for table in job.tables.values():
        io.create(table.uri, table.schema)
    chunks = list(iter_chunks({name: files[name] for name in job.sources}, writing.chunk_rows))
    decision = _load_decision(job, chunks, directory) if config.splits.overlap != "report" else None

    try:
        if decision is None:
            assign_left(job, chunks, writing)
        refs = {name: io.find_latest(table.uri) for name, table in job.tables.items()}
        if decision is None:
            found = {name: count_split(ref, name) for name, ref in refs.items()}
            _check_tables(job, refs, found)
            new = {name: ref for name, ref in refs.items() if name != AUDIT}
            for name, ref in new.items():
                check_share("splits", ref, found[name], max_error_rate, split=name)
            if AUDIT in found and found[AUDIT].errors.get("no_gold", 0) == found[AUDIT].rows:
                raise SourceError(f"splits.audit: {NO_AUDIT.format(rows=f'{found[AUDIT].rows:,}')}")
            compared = {**before, **new}
            domains = {name: config.domain_of(name) for name in compared}
            columns = {name: get_domain(domain).columns.names for name, domain in domains.items()}
            matches = find_overlap(compared, domains, last=POOL, fixed=before)
            remedy = REMEDY_ADDED if before else REMEDY
            decision = decide_overlap(matches, config.splits.overlap, compared, columns, remedy=remedy)
            if decision.row_ids:
                decision.save(directory)
        deleted = {name: decision.get_deleted(name) for name in refs}
        refs = {name: delete_rows(ref, deleted[name], guard=writing.guard) for name, ref in refs.items()}
    except ray.exceptions.RayError as error:
        raise make_driver_error(error, "prepare") from error
    kept = {name: count_split(ref, name) for name, ref in refs.items()}
    counts = {name: replace(count, rows=count.rows + len(deleted[name])) for name, count in kept.items()}
    _check_tables(job, refs, counts)
    compacted = {name: compact(ref, writing.fragment_mb, guard=writing.guard) for name, ref in refs.items()}
    return PreparedRefs(tables=compacted, counts=counts, overlap=decision.overlap)


def assign_left(job: SplitJob, chunks: Sequence[SourceChunk], writing: SplitWriting) -> None:
    """Write the chunks that the tables do not have yet, in their order, in Ray tasks."""
    done = {name: commits.read_committed_ids(table.uri) for name, table in job.tables.items()}
    left, found = _find_left_chunks(job, chunks, done)
    if unfit := [name for name, ids in done.items() if found[name] != len(ids)]:
        for name in unfit:
            # Older versions stay readable: this mode adds a version without rows.
            lance.write_dataset(job.tables[name].schema.empty_table(), job.tables[name].uri, mode="overwrite")
            done[name] = BitMap64()
        left, _ = _find_left_chunks(job, chunks, done)
    num_done, total = sum(map(len, done.values())), sum(table.rows for table in job.tables.values())

    def report(rows_of: Mapping[str, int]) -> None:
        if writing.progress is not None:
            writing.progress(Standing(rows=num_done + sum(rows_of.values()), total=total))

    report({})
    if left:
        written = run_in_tasks(assign_splits, zip(left, itertools.repeat(ray.put(job))))
        commit_stream(written, seconds=writing.commit_seconds, guard=writing.guard, on_commit=report)


def _plan_job(
    config: RowsConfig,
    directory: Place,
    files: Mapping[str, Sequence[SourceFile]],
    before: Mapping[str, TableRef],
    taken: Mapping[str, int],
) -> SplitJob:
    splits = {name: split for name, split in config.splits.named().items() if name not in before}
    group, sources, expected = config.splits.group, dict[str, SourceSplits](), dict[str, int]()
    for source in dict.fromkeys(split.source for split in splits.values()):
        id_column = config.sources[source].id_column
        check_columns(config, source, files[source])
        assignment = make_assignment(config, source, files[source], taken)
        if id_column is not None:
            check_unique(files[source], id_column)
        domains = config.domains_of(source)
        sources[source] = SourceSplits(domains=domains, id_column=id_column, assignment=assignment, group=group)
        expected |= {name: rows for name, rows in assignment.counts.items() if name in splits}
    audited = {AUDIT: POOL} if config.splits.audit and POOL in splits else {}
    tables = {}
    for name, split in {**dict(zip(splits, splits, strict=True)), **audited}.items():
        schema = make_table_schema(get_domain(config.domain_of(split)), name, clustered=group is not None)
        tables[name] = SplitTable(str(directory / f"{name}.lance"), schema, expected[split])
    return SplitJob(sources=sources, tables=tables)


def _load_decision(job: SplitJob, chunks: Sequence[SourceChunk], directory: Place) -> OverlapDecision | None:
    """Return the decision of an interrupted run, or None if there is none or it does not match the tables."""
    decision = OverlapDecision.load(directory)
    if decision is None:
        return None
    done = {name: commits.read_committed_ids(table.uri) for name, table in job.tables.items()}
    present = {name: ids | decision.get_deleted(name) for name, ids in done.items()}
    left, found = _find_left_chunks(job, chunks, present)
    return decision if not left and all(found[name] == len(ids) for name, ids in present.items()) else None


def iter_chunks(sources: Mapping[str, Sequence[SourceFile]], chunk_rows: int | None) -> Iterator[SourceChunk]:
    """Yield the rows of the sources in chunks of ``chunk_rows`` or, if it is None, 1/32 of all rows (500 to 50,000)."""
    if chunk_rows is None:
        total = sum(file.num_rows for files in sources.values() for file in files)
        chunk_rows = min(MAX_CHUNK_ROWS, max(MIN_CHUNK_ROWS, -(-total // NUM_CHUNKS)))
    for name, files in sources.items():
        offset = 0
        in_order = sorted(files, key=lambda file: file.index)
        for parts in group_stretches(iter_stretches(in_order, chunk_rows), chunk_rows):
            yield SourceChunk(source=name, parts=parts, offset=offset)
            offset += sum(part.num_rows for part in parts)


def _find_left_chunks(
    job: SplitJob, chunks: Sequence[SourceChunk], done: Mapping[str, BitMap64]
) -> tuple[list[SourceChunk], dict[str, int]]:
    """Return the chunks with the tables that lack their rows, and by table the number of rows of complete chunks."""
    left, found = [], dict.fromkeys(job.tables, 0)
    for chunk in chunks:
        source = job.sources[chunk.source]
        missing = targets = find_targets(job, source)
        if any(done.values()):
            ids_N, place_N = assign_chunk(source, chunk)
            ids = {name: BitMap64(ids_N[place_N == place].astype(np.uint64)) for name, place in targets.items()}
            missing = {name: place for name, place in targets.items() if not ids[name].issubset(done[name])}
            for name in targets.keys() - missing:
                found[name] += len(ids[name])
        if missing:
            left.append(replace(chunk, targets=tuple(missing)))
    return left, found


def _check_tables(job: SplitJob, refs: Mapping[str, TableRef], counts: Mapping[str, SplitCounts]) -> None:
    """Refuse a table that lacks rows, and a split without any row that can be used."""
    for name, ref in refs.items():
        rows, errors = counts[name].rows, counts[name].errors
        if rows != job.tables[name].rows:
            raise CommitError(f"{ref.uri}: {job.tables[name].rows} rows in, {rows} rows out")
        if name != AUDIT and sum(errors.values()) == rows:
            raise SourceError(
                f"splits.{name}: none of its {rows} rows is usable ({describe_errors(errors)}); `curate inspect "
                f"{ref.uri}` shows them; fix them"
            )


def check_share(section: str, ref: TableRef, count: SplitCounts, max_error_rate: float, *, split: str = "") -> None:
    """Raise ``SourceError`` if a table has a larger share of error rows than ``max_error_rate`` of this section."""
    num_bad, kinds = sum(count.errors.values()), describe_errors(count.errors)
    if num_bad > max_error_rate * count.rows:
        raise SourceError(
            f"{section}{'.' if split else ''}{split}: {num_bad:,} of {count.rows:,} rows cannot be used "
            f"({kinds}), more than {section}.max_error_rate {max_error_rate}; `curate inspect "
            f'{ref.uri} --where "error IS NOT NULL"` shows them; fix them, or raise the limit: then they are left out'
        )


def count_split(ref: TableRef, name: str) -> SplitCounts:
    """Count the rows and errors of a split's table, or of the audit table."""
    rows, errors = 0, Counter[str]()
    problems = "solution_error" if name == AUDIT else "error"
    columns = [problems, *(["gold"] if name == AUDIT else [])]
    for batch in iter_checked(io.open_table(ref).scanner(columns=columns).to_batches()):
        rows += batch.num_rows
        if name == AUDIT and (num_unknown := batch.column("gold").null_count):
            errors["no_gold"] += num_unknown
        errors.update(map(get_error_kind, batch.column(problems).drop_null().to_pylist()))
    return SplitCounts(rows=rows, errors=dict(errors.most_common()))


def check_columns(config: RowsConfig, source: str, files: Sequence[SourceFile]) -> None:
    """Raise ``SourceError`` if files of a source lack a column which one of its splits needs.

    A column of grades must be in the files of the source split; files of other splits may have gold labels instead.
    """
    own = config.sources[source]
    ids = [] if own.id_column is None else [own.id_column]
    for domain in config.domains_of(source).values() or [own.domain or config.domain]:
        require_columns(files, [[*form, *ids] for form in get_domain(domain).forms])
    group, named = config.splits.group, config.splits.named()
    if group is not None and any(named[name].source == source for name in GROUPED if name in named):
        for file in files:
            if group not in file.schema:
                close = find_nearest_column(group, file.schema)
                raise SourceError(
                    f"splits.group: {file.path} has no column {quote_text(group)} (it has: {', '.join(file.schema)}), "
                    f"and the files of {', '.join(GROUPED)} must; "
                    + (f"did you mean {quote_text(close)}?" if close else "name a column of theirs, or add it")
                )
    given = config.domain_of("source").given_labels
    if given is not None and given.grade is not None and source == config.splits.source.source:
        require_columns(files, [[given.grade]])
