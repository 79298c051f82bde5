"""The tasks of the prepare stage, each of which writes one chunk of the input files to the tables of the splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, attempt, get_domain
from curation.errors import RowError
from curation.escaping import format_error, quote_text
from curation.json_types import Json
from curation.sources import Assignment, Stretch, as_kept, compute_cluster, get_row_ids, read_rows, to_raw_rows
from curation.tables import commits, schemas

POOL, AUDIT = "pool", "audit"


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
    """Columns of the files to store after the domain's own columns."""


@dataclass(frozen=True, kw_only=True)
class DealJob:
    """The settings of a task; pickled to every task."""

    sources: dict[str, DealtSource]
    uris: dict[str, str]
    """URIs of the tables by split, and of the audit table."""

    @property
    def num_rows(self) -> int:
        """Number of rows in all tables."""
        total = 0
        for source in self.sources.values():
            counts = list(source.assignment.counts.values())
            total += sum(counts[place] for place in find_targets(self, source).values())
        return total


@dataclass(frozen=True, kw_only=True)
class SourceChunk:
    """Consecutive rows of a source, the first at the position ``offset``."""

    source: str
    parts: tuple[Stretch, ...]
    offset: int
    targets: tuple[str, ...] = ()
    """The tables to write."""


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


@dataclass(frozen=True, kw_only=True)
class _ReadRow:
    example: Json | None
    problem: str | None
    gold: str | None = None
    gold_problem: str | None = None
    solution: str | None = None
    solution_problem: str | None = None
    cluster: int | None = None


def assign_splits(chunk: SourceChunk, job: DealJob) -> pa.Table:
    """Write a chunk's rows to the tables of their splits; return one row of ``commits.WRITTEN`` per table."""
    source = job.sources[chunk.source]
    keys = {name: domain.model_dump_json() for name, domain in source.domains.items()}
    made = {key: get_domain(source.domains[name]) for key, name in {key: name for name, key in keys.items()}.items()}
    domains = {name: made[key] for name, key in keys.items()}
    names = list(source.assignment.counts)
    ids_N, place_N = assign_chunk(source, chunk)
    places = find_targets(job, source)
    schema_of = {
        name: make_table_schema(
            domains[POOL if name == AUDIT else name], name, clustered=source.group is not None, kept=source.kept
        )
        for name in chunk.targets
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
                rows[row] = replace(rows[row], cluster=compute_cluster(values.get(source.group)))
        for name, schema in schema_of.items():
            mine = np.flatnonzero(own_B == places[name])
            domain = domains[POOL if name == AUDIT else name]
            table = _make_table(domain, schema, name, ids_B[mine].tolist(), [rows[row] for row in mine.tolist()])
            for column in source.kept:
                kept = as_kept(batch.column(column.name), column.type).take(pa.array(mine))
                table = table.set_column(schema.get_field_index(column.name), column, kept)
            parts[name].append(table)
    tables = {name: pa.concat_tables(found) for name, found in parts.items() if sum(map(len, found))}
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
    if example is None or not (audited or name != POOL):
        return _ReadRow(example=example, problem=problem or None)
    gold, gold_problem = attempt(domain.gold, raw)
    if not gold_problem and (gold_problem := find_schema_problem({"gold": gold}, pa.schema([schemas.GOLD]))):
        gold = None
    if gold is not None:
        reason, failure = attempt(domain.gold_problem, gold, example)
        gold_problem = reason or failure
        gold = None if gold_problem else gold
    solution, solution_problem = None, ""
    if audited and gold is not None:
        solution, solution_problem = _read_solution(domain, raw, example, gold)
    return _ReadRow(
        example=example,
        gold=gold,
        problem=problem or None,
        gold_problem=gold_problem or None,
        solution=solution,
        solution_problem=solution_problem or None,
    )


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
        columns = {
            "row_id": ids,
            "gold": [row.gold for row in rows],
            "solution": [row.solution for row in rows],
            "solution_error": [row.solution_problem for row in rows],
        }
        return pa.table(columns, schema=schema)
    nothing: Json = dict.fromkeys(domain.columns.names)
    values = []
    for row_id, row in zip(ids, rows, strict=True):
        problem = row.problem
        if name != POOL and problem is None and row.gold is None:
            problem = row.gold_problem or "no_gold: the row has no gold label"
        added: Json = {"gold": row.gold} if name != POOL else {}
        if schemas.CLUSTER.name in schema.names:
            added[schemas.CLUSTER.name] = row.cluster
        values.append({**(nothing if problem else row.example or nothing), **added, "row_id": row_id, "error": problem})
    return pa.Table.from_pylist(values, schema=schema)
