"""The tasks of the prepare stage, each of which writes one chunk of the input files to the tables of the splits.

Rows that cannot be used are counted by kind, reported, and refused if they are too many.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, attempt, load_domain
from curation.errors import RowError, SourceError, get_error_kind
from curation.escaping import format_error, quote_text
from curation.json_types import Json
from curation.refs import TableRef
from curation.sources import Assignment, Stretch, as_kept, compute_cluster, get_row_ids, read_rows, to_raw_rows
from curation.stopping import iter_checked
from curation.tables import commits, io, schemas

POOL, AUDIT = "pool", "audit"
NO_AUDIT = (
    "keeps gold labels of the pool, but none of its {rows} rows has one; give rows with gold labels, or set audit: "
    "false (and drop what needs it: gold arms, oracle budgets)"
)


@dataclass(frozen=True, kw_only=True)
class DealtSource:
    """One source and the splits taken from it."""

    domains: Mapping[str, DomainConfig]
    """The task interface of each split's rows, by the split's name."""
    id_column: str | None
    assignment: Assignment
    group: str | None = None
    """The column ``splits.group``."""
    kept: tuple[pa.Field, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DealJob:
    """The settings of a task; pickled to every task."""

    sources: dict[str, DealtSource]
    uris: dict[str, str]

    @property
    def num_rows(self) -> int:
        """Number of rows in all tables."""
        of_sources = ((source, list(source.assignment.counts.values())) for source in self.sources.values())
        return sum(counts[place] for source, counts in of_sources for place in find_targets(self, source).values())


@dataclass(frozen=True, kw_only=True)
class SourceChunk:
    """Consecutive rows of a source, the first at the position ``offset``."""

    source: str
    parts: tuple[Stretch, ...]
    offset: int
    targets: tuple[str, ...] = ()


def make_table_schema(
    domain: Domain, name: str, *, clustered: bool = False, kept: Sequence[pa.Field] = ()
) -> pa.Schema:
    """Return the schema of the audit table, or of a split's with ``kept`` and, if ``clustered``, cluster columns."""
    if name == AUDIT:
        return schemas.AUDIT
    return schemas.make_examples_schema(pa.schema([*domain.columns, *kept]), gold=name != POOL, clustered=clustered)


def find_targets(job: DealJob, source: DealtSource) -> dict[str, int]:
    """Return the tables that a source fills, with the index of each table's split in the source's assignment."""
    places = {name: place for place, name in enumerate(source.assignment.counts) if name in job.uris}
    return places | ({AUDIT: places[POOL]} if AUDIT in job.uris and POOL in places else {})


def assign_chunk(source: DealtSource, chunk: SourceChunk) -> tuple[Int64s, Int64s]:
    """Return the row ids of a chunk, and the index of each row's split in the assignment, both int64 [N]."""
    ids_N = np.concatenate([get_row_ids(part.file, part.start, part.stop, source.id_column) for part in chunk.parts])
    return ids_N, source.assignment.split_of(chunk.offset + np.arange(len(ids_N), dtype=np.int64))


@dataclass
class _ReadRow:
    example: Json | None
    problem: str
    """Why the row cannot be read, or empty; so of the gold label and the solution."""
    gold: str | None = None
    gold_problem: str = ""
    solution: str | None = None
    solution_problem: str = ""
    cluster: int | None = None


def assign_splits(chunk: SourceChunk, job: DealJob) -> pa.Table:
    """Write a chunk's rows to the tables of their splits; return one row of ``commits.WRITTEN`` per table."""
    source = job.sources[chunk.source]
    domains = {name: load_domain(domain) for name, domain in source.domains.items()}
    names, clustered = list(source.assignment.counts), source.group is not None
    ids_N, place_N = assign_chunk(source, chunk)
    places, domain_of = find_targets(job, source), domains | ({AUDIT: domains[POOL]} if POOL in domains else {})
    schema_of = {
        name: make_table_schema(domain_of[name], name, clustered=clustered, kept=source.kept) for name in chunk.targets
    }
    parts: dict[str, list[pa.Table]] = {name: [] for name in chunk.targets}
    start = 0
    for batch in chain.from_iterable(read_rows(part.file, part.start, part.stop) for part in chunk.parts):
        own_B, ids_B = place_N[start : start + batch.num_rows], ids_N[start : start + batch.num_rows]
        start += batch.num_rows
        taken = np.flatnonzero(np.isin(own_B, [places[name] for name in chunk.targets]))
        rows: dict[int, _ReadRow] = {}
        for row, values in zip(taken.tolist(), to_raw_rows(batch.take(pa.array(taken))), strict=True):
            split = names[own_B[row]]
            rows[row] = _read(domains[split], values, split, audited=split == POOL and AUDIT in chunk.targets)
            if source.group is not None:
                rows[row].cluster = compute_cluster(values.get(source.group))
        for name, schema in schema_of.items():
            mine = np.flatnonzero(own_B == places[name])
            found = [rows[row] for row in mine.tolist()]
            table = _make_table(domain_of[name], schema, name, ids_B[mine].tolist(), found)
            for column in source.kept:
                kept = as_kept(batch.column(column.name), column.type).take(pa.array(mine))
                table = table.set_column(schema.get_field_index(column.name), column, kept)
            parts[name].append(table)
    tables = {name: pa.concat_tables(part) for name, part in parts.items() if sum(map(len, part))}
    written = [commits.write_fragment(table, job.uris[name], table.schema) for name, table in tables.items()]
    return pa.concat_tables([commits.WRITTEN.empty_table(), *written])


def make_example_table(domain: Domain, name: str, ids: list[int], raws: Sequence[Mapping[str, object]]) -> pa.Table:
    """Return a split's table of raw rows; a row that cannot be read becomes an error row."""
    rows = [_read(domain, raw, name, audited=False) for raw in raws]
    return _make_table(domain, make_table_schema(domain, name), name, ids, rows)


def _read(domain: Domain, raw: Mapping[str, object], name: str, *, audited: bool) -> _ReadRow:
    """Read a row of the split ``name``, with its gold label unless it is a pool row and not ``audited``."""
    example, problem = attempt(domain.read, raw)
    if example is not None and (problem := find_schema_problem(example, domain.columns)):
        example = None
    row = _ReadRow(example, problem)
    if example is None or not (audited or name != POOL):
        return row
    gold, problem = attempt(domain.gold, raw)
    if not problem and (problem := find_schema_problem({"gold": gold}, pa.schema([schemas.GOLD]))):
        gold = None
    if gold is not None:
        reason, failure = attempt(domain.gold_problem, gold, example)
        problem = reason or failure
    row.gold, row.gold_problem = None if problem else gold, problem
    if audited and row.gold is not None:
        row.solution, row.solution_problem = _read_solution(domain, raw, example, row.gold)
    return row


def _read_solution(
    domain: Domain, raw: Mapping[str, object], example: Mapping[str, object], gold: str
) -> tuple[str | None, str]:
    """Return a row's worked solution if it parses as the gold label, else None and why an existing one is not used."""
    solution, problem = attempt(domain.solution, raw)
    if solution is None:
        return None, problem
    if wrong := find_schema_problem({"solution": solution}, pa.schema([schemas.AUDIT.field("solution")])):
        return None, wrong
    label, problem = attempt(domain.parse, solution, example)
    if not problem and (label == gold or attempt(domain.is_correct, label, gold)[0]):
        return solution, ""
    return None, problem or f"bad_solution: it states {quote_text(str(label))}, the gold label is {quote_text(gold)}"


def find_schema_problem(values: Mapping[str, object], columns: pa.Schema) -> str:
    """Return why values do not fit their columns; "" if they do."""
    for field in columns:
        try:
            pa.scalar(values[field.name], field.type)
        except (KeyError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            return format_error(RowError(f"bad_value: {field.name} is no {field.type}: {error}"))
    return ""


def _make_table(domain: Domain, schema: pa.Schema, name: str, ids: list[int], rows: list[_ReadRow]) -> pa.Table:
    if name == AUDIT:
        table = {
            "row_id": ids,
            "gold": [row.gold for row in rows],
            "solution": [row.solution for row in rows],
            "solution_error": [row.solution_problem or None for row in rows],
        }
        return pa.table(table, schema=schema)
    nothing: Json = dict.fromkeys(domain.columns.names)
    values = []
    for row_id, row in zip(ids, rows, strict=True):
        problem = row.problem
        if name != POOL and not problem and row.gold is None:
            problem = row.gold_problem or "no_gold: the row has no gold label"
        added: Json = {"row_id": row_id, "error": problem or None}
        if name != POOL:
            added["gold"] = row.gold
        if schemas.CLUSTER.name in schema.names:
            added[schemas.CLUSTER.name] = row.cluster
        values.append({**(nothing if problem else row.example or nothing), **added})
    return pa.Table.from_pylist(values, schema=schema)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of a split's rows, before rows with questions of other splits are dropped."""

    rows: int
    errors: dict[str, int]
    """Error rows by kind; in the audit table, remaining rows without a gold label or with an unusable solution."""


def check_usable(refs: Mapping[str, TableRef], counts: Mapping[str, SplitCounts], max_error_rate: float) -> None:
    """Raise ``SourceError`` for a split with too many error rows, or an audit table without gold labels."""
    for name, count in counts.items():
        if name == AUDIT:
            if count.errors.get("no_gold", 0) == count.rows:
                raise SourceError(f"splits.audit: {NO_AUDIT.format(rows=f'{count.rows:,}')}")
        else:
            check_share("splits", refs[name], count, max_error_rate, split=name)


def check_share(section: str, ref: TableRef, count: SplitCounts, max_error_rate: float, *, split: str = "") -> None:
    """Raise ``SourceError`` if a table has a larger share of error rows than ``max_error_rate`` of this section."""
    num_bad = sum(count.errors.values())
    if num_bad > max_error_rate * count.rows:
        raise SourceError(
            f"{section}{'.' if split else ''}{split}: {num_bad:,} of {count.rows:,} rows cannot be used "
            f"({describe_errors(count.errors)}), more than {section}.max_error_rate {max_error_rate}; `curate inspect "
            f'{ref.uri} --where "error IS NOT NULL"` shows them; fix them, or raise the limit: then they are left out'
        )


def describe_errors(errors: Mapping[str, int]) -> str:
    """Return numbers of error rows by kind as text, the most frequent first."""
    return ", ".join(f"{kind} {number:,}" for kind, number in Counter(errors).most_common())


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
