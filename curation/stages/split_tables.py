"""The tables of the splits in the prepare stage: tasks write them, and rows that repeat another split are deleted.

A task writes one chunk of the input files. If a question is in two splits, the run is refused, a row is deleted, or
both rows are kept and counted. Lance's deletion keeps the order of the other rows and commits once per table. Before
the first deletion, the rows to delete are listed in ``overlap.json`` beside the tables, from which an interrupted run
continues: half-deleted tables no longer show which rows these were.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import NamedTuple, Self

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, attempt, load_domain
from curation.errors import REFUSALS, CommitError, RowError, SourceError
from curation.escaping import format_error, quote_text
from curation.heavy import ray
from curation.json_types import Json
from curation.refs import TableRef
from curation.sources import Assignment, Stretch, as_kept, compute_cluster, get_row_ids, read_rows, to_raw_rows
from curation.stages.overlap import OverlapRows, SplitMatches
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place, write_atomically
from curation.tables import commits, io, schemas
from curation.tables.row_ids import make_bitmap
from curation.tasks import run_in_tasks

POOL, AUDIT = "pool", "audit"
NO_AUDIT = (
    "keeps gold labels of the pool, but none of its {rows} rows has one; give rows with gold labels, or set audit: "
    "false (and drop what needs it: gold arms, oracle budgets)"
)
HELD_OUT = ("test", "probe-")
"""Prefixes of the names of splits that models and trust are measured on, and never trained on."""
WORDS = {"same": "the same", "permuted": "with permuted options", "near_copy": "near-copies with another option"}
ORDER = "test, calibration, probes, shots, source, adapt, pool"
REMEDY = (
    "remove repeated rows from the input files, take both splits from one source that holds each question once, or set "
    f"splits.overlap: drop (takes such rows out of the split that comes later in {ORDER}) or splits.overlap: report "
    "(keeps and counts them)"
)
REMEDY_ADDED = (
    "rows stay in the splits that they have: take the new split from rows that are in no other split, or set "
    "splits.overlap: drop (leaves such rows out of the new split) or splits.overlap: report (keeps and counts them)"
)
"""The remedy to name in a message if a split is added to a run."""


@dataclass(frozen=True, kw_only=True)
class SourceSplits:
    """One source and the splits that take rows of it."""

    domains: Mapping[str, DomainConfig]
    """The task interface of each split's rows, by the split's name."""
    id_column: str | None
    assignment: Assignment
    group: str | None = None
    """The column ``splits.group``."""
    kept: tuple[pa.Field, ...] = ()


class SplitTable(NamedTuple):
    """A table to write, and the number of rows that it has when it is complete."""

    uri: str
    schema: pa.Schema
    rows: int


@dataclass(frozen=True, kw_only=True)
class SplitJob:
    """The settings of all tasks; pickled to every task."""

    sources: dict[str, SourceSplits]
    tables: dict[str, SplitTable]


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


def find_targets(job: SplitJob, source: SourceSplits) -> dict[str, int]:
    """Return the tables that a source fills, with the index of each table's split in the source's assignment."""
    places = {name: place for place, name in enumerate(source.assignment.counts) if name in job.tables}
    return places | ({AUDIT: places[POOL]} if AUDIT in job.tables and POOL in places else {})


def assign_chunk(source: SourceSplits, chunk: SourceChunk) -> tuple[Int64s, Int64s]:
    """Return the row ids of a chunk, and the index of each row's split in the assignment, both int64 [N]."""
    ids_N = np.concatenate([get_row_ids(part.file, part.start, part.stop, source.id_column) for part in chunk.parts])
    return ids_N, source.assignment.split_of(chunk.offset + np.arange(len(ids_N), dtype=np.int64))


def assign_splits(chunk: SourceChunk, job: SplitJob) -> pa.Table:
    """Write a chunk's rows to the tables of their splits; return one row of ``commits.WRITTEN`` per table."""
    source = job.sources[chunk.source]
    domains = {name: load_domain(domain) for name, domain in source.domains.items()}
    ids_N, place_N = assign_chunk(source, chunk)
    names, places = list(source.assignment.counts), find_targets(job, source)
    parts: dict[str, list[pa.Table]] = {name: [] for name in chunk.targets}
    start = 0
    for batch in chain.from_iterable(read_rows(part.file, part.start, part.stop) for part in chunk.parts):
        place_B, ids_B = place_N[start : start + batch.num_rows], ids_N[start : start + batch.num_rows]
        start += batch.num_rows
        for place in dict.fromkeys(places[name] for name in chunk.targets):
            split, at_M = names[place], np.flatnonzero(place_B == place)
            of_split, rows = batch.take(pa.array(at_M)), list[tuple[Json, Json]]()
            for row_id, raw in zip(ids_B[at_M].tolist(), to_raw_rows(of_split), strict=True):
                row, audit = _read_row(domains[split], raw, split, audited=split == POOL and AUDIT in chunk.targets)
                if source.group is not None:
                    row[schemas.CLUSTER.name] = compute_cluster(raw.get(source.group))
                rows.append((row | {"row_id": row_id}, audit | {"row_id": row_id}))
            for name in (name for name in chunk.targets if places[name] == place):
                schema = job.tables[name].schema
                table = pa.Table.from_pylist([pair[name == AUDIT] for pair in rows], schema=schema)
                for column in source.kept:
                    kept = as_kept(of_split.column(column.name), column.type)
                    table = table.set_column(schema.get_field_index(column.name), column, kept)
                parts[name].append(table)
    tables = {name: pa.concat_tables(part) for name, part in parts.items() if sum(map(len, part))}
    written = [commits.write_fragment(table, job.tables[name].uri, table.schema) for name, table in tables.items()]
    return pa.concat_tables([commits.WRITTEN.empty_table(), *written])


def make_example_table(domain: Domain, name: str, ids: Iterable[int], raws: Sequence[Mapping[str, object]]) -> pa.Table:
    """Return a split's table of raw rows; a row that cannot be read becomes an error row."""
    rows = [_read_row(domain, raw, name)[0] | {"row_id": row_id} for row_id, raw in zip(ids, raws, strict=True)]
    return pa.Table.from_pylist(rows, schema=make_table_schema(domain, name))


def _read_row(domain: Domain, raw: Mapping[str, object], name: str, *, audited: bool = False) -> tuple[Json, Json]:
    """Return a row's values in the table of the split ``name`` and, if it is ``audited``, in the audit table.

    The gold label of a pool row is read only if it is audited.
    """
    example, problem = attempt(domain.read, raw)
    if example is not None and (problem := find_schema_problem(example, domain.columns)):
        example = None
    gold: str | None = None
    no_gold, audit = "", Json()
    if example is not None and (audited or name != POOL):
        gold, no_gold = attempt(domain.gold, raw)
        no_gold = no_gold or find_schema_problem({"gold": gold}, pa.schema([schemas.GOLD]))
        if gold is not None and not no_gold:
            reason, failure = attempt(domain.gold_problem, gold, example)
            no_gold = reason or failure
        gold = None if no_gold else gold
        if audited and gold is not None:
            solution, reason = _read_solution(domain, raw, example, gold)
            audit = {"gold": gold, "solution": solution, "solution_error": reason or None}
    if name != POOL and not problem and gold is None:
        problem = no_gold or "no_gold: the row has no gold label"
    return {**(example if example is not None and not problem else {}), "gold": gold, "error": problem or None}, audit


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
    """Return the reason why values do not fit their columns; "" if they do."""
    for field in columns:
        try:
            pa.scalar(values[field.name], field.type)
        except (KeyError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            return format_error(RowError(f"bad_value: {field.name} is no {field.type}: {error}"))
    return ""


def describe_errors(errors: Mapping[str, int]) -> str:
    """Return numbers of error rows by kind as text, the most frequent first."""
    return ", ".join(f"{kind} {number:,}" for kind, number in Counter(errors).most_common())


@dataclass(frozen=True, kw_only=True)
class SplitOverlap:
    """Rows of the split ``other`` whose question is in ``kept`` too, with counts by rule."""

    kept: str
    other: str
    rows: int
    rules: dict[str, int]
    fate: str
    """``dropped`` or ``kept``; a row with matches in several splits is counted in each pair, and dropped once."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The result of the comparison and what is done about it, as counts of rows."""

    pairs: list[SplitOverlap]
    dropped: dict[str, int]
    uncompared: dict[str, dict[str, int]]

    def sentences(self) -> list[str]:
        """Return sentences for the terminal; empty if there is nothing to report."""
        sentences = []
        for pair in self.pairs:
            rules = describe_rules(pair.rules)
            sentences.append(f"{pair.rows:,} rows of {pair.other} ask questions of {pair.kept} ({rules}): {pair.fate}")
        for split, problems in self.uncompared.items():
            if problems:
                num_rows, kinds = sum(problems.values()), describe_errors(problems)
                sentences.append(f"{num_rows:,} rows of {split} could not be compared ({kinds})")
        return sentences


@dataclass(frozen=True)
class OverlapDecision:
    """The result of the comparison and what is done about it, with the ids of the rows to delete by table."""

    overlap: Overlap
    row_ids: dict[str, BitMap64]

    def save(self, directory: Place) -> None:
        """Write ``overlap.json`` to the directory of the tables."""
        ids = {name: base64.b64encode(found.serialize()).decode() for name, found in self.row_ids.items()}
        content = {"overlap": asdict(self.overlap), "row_ids": ids}
        write_atomically(directory / "overlap.json", json.dumps(content).encode())

    @classmethod
    def load(cls, directory: Place) -> Self | None:
        """Return the content of ``overlap.json``, or None if there is no such file."""
        try:
            content = json.loads((directory / "overlap.json").read_bytes())
        except FileNotFoundError:
            return None
        ids = {name: BitMap64.deserialize(base64.b64decode(text)) for name, text in content["row_ids"].items()}
        pairs = [SplitOverlap(**pair) for pair in content["overlap"]["pairs"]]
        return cls(Overlap(**{**content["overlap"], "pairs": pairs}), ids)

    def get_deleted(self, table: str) -> BitMap64:
        """Return the rows to delete from a table; the audit table loses the same rows as the pool."""
        return self.row_ids.get(POOL if table == AUDIT else table, BitMap64())


def decide_overlap(
    matches: SplitMatches,
    mode: str,
    refs: Mapping[str, TableRef],
    columns: Mapping[str, Sequence[str]],
    *,
    remedy: str = REMEDY,
) -> OverlapDecision:
    """Decide which matching rows to delete; splits that models and trust are only measured on may share questions.

    Errors show the ``columns`` of an example row and the ``remedy``.

    Raises:
        SourceError: ``mode`` is ``refuse`` and two splits other than source and pool ask the same question, or a split
            loses all its rows.
    """
    pairs: list[SplitOverlap] = []
    deleted: dict[str, BitMap64] = {}
    refused: list[OverlapRows] = []
    for pair in matches.pairs:
        fate = "dropped"
        if mode == "report" or (pair.kept.startswith(HELD_OUT) and pair.other.startswith(HELD_OUT)):
            fate = "kept"
        elif mode == "refuse" and (pair.kept, pair.other) != ("source", "pool"):
            refused.append(pair)
        else:
            deleted.setdefault(pair.other, BitMap64()).update(make_bitmap(pair.row_ids_M))
        num_rows = len(pair.row_ids_M)
        pairs.append(SplitOverlap(kept=pair.kept, other=pair.other, rows=num_rows, rules=pair.rules, fate=fate))
    if refused:
        first, rule = refused[0], next(iter(refused[0].rules))
        rows = zip((first.kept, first.other), first.example, strict=True)
        found = (io.take(refs[name], np.array([row]), columns[name]).to_pylist()[0] for name, row in rows)
        shown = " and ".join(dict.fromkeys(json.dumps(row, default=str) for row in found))
        shared = "; ".join(
            f"{pair.kept} and {pair.other} share questions, {len(pair.row_ids_M):,} rows of {pair.other} "
            f"({describe_rules(pair.rules)})"
            for pair in refused
        )
        raise SourceError(
            f"splits {shared}; e.g. row {first.example[0]} of {first.kept} and row {first.example[1]} of "
            f"{first.other}, {WORDS[rule]}: {shown}; {remedy}"
        )
    for name, ids in deleted.items():
        healthy = io.count(refs[name], "error IS NULL")
        if len(ids) == healthy:
            others = ", ".join(pair.kept for pair in pairs if pair.other == name and pair.fate == "dropped")
            raise SourceError(
                f"splits.{name}: splits.overlap: {mode} leaves none of its {healthy} usable rows, as each asks a "
                f"question of {others}; take the split from rows that are in no other split"
            )
    num_dropped = {name: len(ids) for name, ids in deleted.items()}
    return OverlapDecision(Overlap(pairs=pairs, dropped=num_dropped, uncompared=matches.uncompared), deleted)


def describe_rules(rules: Mapping[str, int]) -> str:
    """Return a description of counts of rows by rule."""
    return ", ".join(f"{rows:,} {WORDS[rule]}" for rule, rows in rules.items())


def delete_rows(ref: TableRef, deleted: BitMap64, *, guard: Guard = guard_nothing) -> TableRef:
    """Delete the rows with these ids; return the table, or raise ``CommitError`` if its number of rows is wrong."""
    if not deleted:
        return ref
    dataset = io.open_table(ref)
    ids = ray.put(np.frombuffer(deleted.to_array(), dtype=np.uint64).astype(np.int64))
    calls = ((ref, fragment.fragment_id, ids) for fragment in dataset.get_fragments())
    done = [item for item in run_in_tasks(_delete_from_fragment, calls) if item[1]]
    if not done:
        return ref
    updated = [FragmentMetadata.from_json(text) for _, _, text in done if text is not None]
    emptied = [number for number, _, text in done if text is None]
    guard()
    try:
        operation = lance.LanceOperation.Delete(updated, emptied, "the same question in another split")
        after = lance.LanceDataset.commit(ref.uri, operation, read_version=ref.version)
    except REFUSALS as error:
        raise CommitError(f"{ref.uri}: rows were not taken out ({error}); the same command does it again") from error
    num_gone = sum(rows for _, rows, _ in done)
    if after.count_rows() != dataset.count_rows() - num_gone:
        raise CommitError(
            f"{ref.uri}: {dataset.count_rows()} rows less {num_gone} are {after.count_rows()}; another driver changed "
            "the table"
        )
    return TableRef(uri=ref.uri, version=after.version)


def _delete_from_fragment(ref: TableRef, number: int, ids_M: Int64s) -> tuple[int, int, str | None]:
    """Delete rows of a fragment; return its number, their count, its metadata as JSON (None if none or all match)."""
    fragment = io.open_table(ref).get_fragment(number)
    assert fragment is not None
    ids_N = fragment.to_table(columns=["row_id"])["row_id"].to_numpy()
    hit_N = np.isin(ids_N, ids_M, kind="sort")
    num_gone = int(hit_N.sum())
    if num_gone in (0, len(ids_N)):
        return number, num_gone, None
    few = 2 * num_gone <= len(ids_N)
    listed = ", ".join(map(str, ids_N[hit_N if few else ~hit_N].tolist()))
    metadata = fragment.delete(f"row_id {'' if few else 'NOT '}IN ({listed})")
    assert metadata is not None
    return number, num_gone, json.dumps(metadata.to_json())
