"""The files of an arm's selected rows, written in parts, in rank order, with a digest.

Pairs are also written as preferences, and rows again with further columns of the user's files, such as the user's ids.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import get_domain, get_preference_function
from curation.json_types import Json
from curation.refs import ListDigest, TableRef
from curation.rundir.graph import Done, In, InEach, Stage, setting
from curation.rundir.run import Task
from curation.sources import SourceFile, as_kept, get_row_ids, make_kept_fields, read_rows, require_columns
from curation.stages.rows import NO_IDS, read_ids
from curation.storage.cache import staged
from curation.storage.paths import Place
from curation.tables import io, json_text, schemas

PART_ROWS = 1 << 14
"""The number of rows that are rendered at a time, which form a row group of the Parquet file."""
PAIR_TAUGHT = ("chosen", "prompt", "rejected", "row_id")


@dataclass(frozen=True, kw_only=True)
class RowFiles:
    """The files of rows that were written as a table, as Parquet and as JSON lines."""

    table: TableRef
    parquet: str
    jsonl: str
    num_rows: int
    digest: str
    """A digest of row ids and of the texts that are taught: equal rows train equal students."""


@dataclass(frozen=True, kw_only=True)
class WrittenSelection(RowFiles):
    """The files of the rows that an arm selected."""

    median_characters: float | None


class WritePreferences(Stage):
    """A stage that writes the rows that every arm selected again, as ``prompt``, ``chosen`` and ``rejected``."""

    class Made(NamedTuple):
        arms: dict[str, RowFiles]
        """The pairs of the arms that did not drop out (schema ``schemas.PREFERENCES``)."""
        rows_of: dict[str, TableRef | None]
        """The tables by arm, None for an arm that selected nothing and thus has no student."""
        absent: dict[str, str]

    selected: InEach[TableRef | None]
    """Selections by arm, None for an arm that dropped out."""
    dropped: In[dict[str, str]]
    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Look up the answers, and write each arm's files."""
        found = {
            arm: write_forms(self._iter_parts(table), schemas.PREFERENCES, task.directory / arm, PAIR_TAUGHT)
            for arm, table in self.selected.items()
            if table is not None
        }
        for arm, files in found.items():
            task.say(f"{arm}: {files.num_rows:,} pairs (prompt, chosen, rejected) in {files.parquet} and .jsonl")
        rows_of = {arm: files.table if files.num_rows else None for arm, files in found.items()}
        made = self.Made(arms=found, rows_of=rows_of, absent=describe_absent_arms(self.dropped))
        return Done(outputs=made, rows=sum(files.num_rows for files in found.values()))

    def _iter_parts(self, selection: TableRef) -> Iterator[pa.Table]:
        """Yield the pairs of a selection by rank, without rows that have no label and thus no preference."""
        domain, examples = get_domain(self.domain), io.Lookup(self.pool)
        preference = get_preference_function(domain)
        assert preference is not None, "described for pairs alone"
        for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS, filter="label IS NOT NULL"):
            rows = batch.cast(schemas.SELECTION)
            found = examples.take(rows.column("row_id").to_numpy(), list(domain.columns.names)).to_pylist()
            labels = rows.column("label").to_pylist()
            pairs = [preference(label, example) for label, example in zip(labels, found, strict=True)]
            texts = dict(zip(("prompt", "chosen", "rejected"), zip(*pairs, strict=True), strict=True))
            names = schemas.PREFERENCES.names
            columns = [pa.array(texts[name], pa.string()) if name in texts else rows.column(name) for name in names]
            yield pa.table(columns, schema=schemas.PREFERENCES)


def describe_absent_arms(dropped: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons why outputs of dropped arms are missing, by output."""
    words = {arm: f"the arm {arm} dropped out: {why}" for arm, why in dropped.items()}
    return {f"{output}.{arm}": why for arm, why in words.items() for output in ("arms", "rows_of")}


def write_rows(parts: Iterable[pa.Table], stem: Place) -> WrittenSelection:
    """Write a selection by :func:`write_forms`, and measure its completions."""
    lengths = Lengths()

    def measured() -> Iterator[pa.Table]:
        for part in parts:
            lengths.add(part["completion"])
            yield part

    files = write_forms(measured(), schemas.SELECTION, stem, ("completion", "row_id"))
    return WrittenSelection(**vars(files), median_characters=lengths.median)


def write_forms(parts: Iterable[pa.Table], schema: pa.Schema, stem: Place, taught: Sequence[str]) -> RowFiles:
    """Write rows as ``stem`` with ``.parquet``, ``.jsonl`` and ``.lance``; the digest covers columns ``taught``."""
    # an arm of one's own has a dot in its name
    parquet, jsonl, lance = (stem.with_name(f"{stem.name}.{end}") for end in ("parquet", "jsonl", "lance"))
    digest = ListDigest()
    with staged(parquet) as path, staged(jsonl) as text:
        for texts in write_both_forms(parts, schema, path, text):
            rows = zip(*(texts[name] for name in taught), strict=True)
            named = (zip(taught, row, strict=True) for row in rows)
            digest.extend_texts(["{" + ",".join(f'"{name}":{value}' for name, value in row) + "}" for row in named])
        with pq.ParquetFile(path) as written:
            batches = (batch.cast(schema) for batch in written.iter_batches(PART_ROWS))
            table = io.write_batches(batches, schema, str(lance))
    return RowFiles(
        table=table, parquet=str(parquet), jsonl=str(jsonl), num_rows=digest.num_items, digest=digest.hexdigest
    )


def write_both_forms(
    parts: Iterable[pa.Table], schema: pa.Schema, parquet: Path, jsonl: Path
) -> Iterator[dict[str, list[str]]]:
    """Write each part to a Parquet and a JSONL file; yield its values as JSON, by column."""
    with pq.ParquetWriter(parquet, schema) as writer, jsonl.open("w") as file:
        for part in parts:
            writer.write_table(part)
            texts = {name: json_text.encode_values(part[name]) for name in part.column_names}
            file.write("".join(f"{text}\n" for text in json_text.encode_objects(texts)))
            yield texts


class Lengths:
    """The lengths of texts in characters, stored as counts by length."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, texts: pa.ChunkedArray) -> None:
        """Count texts; nulls have no length."""
        length_G, count_G = np.unique(pc.utf8_length(texts).drop_null().to_numpy(), return_counts=True)
        self._counts.update(dict(zip(length_G.tolist(), count_G.tolist(), strict=True)))

    @property
    def median(self) -> float | None:
        """The median length as numpy computes it, or None without a text."""
        if not (total := self._counts.total()):
            return None
        length_G = sorted(self._counts)
        ends_G = np.cumsum([self._counts[length] for length in length_G])
        middle = np.searchsorted(ends_G, [(total - 1) // 2, total // 2], side="right")
        return float(length_G[middle[0]] + length_G[middle[1]]) / 2


def iter_regrouped(parts: Iterable[Int64s], num_rows: int) -> Iterator[Int64s]:
    """Yield the same ids in the same order, ``num_rows`` at a time; the last part may be smaller."""
    held: list[Int64s] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= num_rows:
            ids_M = np.concatenate(held)
            stop = len(ids_M) - len(ids_M) % num_rows
            yield from (ids_M[start : start + num_rows] for start in range(0, stop, num_rows))
            held = [ids_M[stop:].copy()]
    if held and len(rest_M := np.concatenate(held)):
        yield rest_M


def check_kept(columns: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Raise ``SourceError`` if a file of the pool lacks a column to keep, or its types differ between files."""
    if columns:
        require_columns(files, [columns])
        make_kept_fields(files, columns)


class Keep(Stage):
    """A stage that writes the rows of every arm again, with more columns of the pool's files (``selection.keep``).

    Only the ids of selected rows are held, 8 bytes each plus 8 bytes to find them; the pool's files are read once.
    """

    class Made(NamedTuple):
        files: dict[str, dict[str, str]]
        """Paths of ``parquet`` and ``jsonl`` files by arm, with a selection's columns, then the kept columns."""

    selected: InEach[TableRef | None]
    """Selections by arm, None for an arm that dropped out."""
    columns: list[str]
    id_column: str | None
    files: list[Json]
    """The :class:`curation.sources.SourceFile` of each of the pool's files, as JSON."""
    contents: list[str] = setting(default_factory=list)

    def run(self, task: Task) -> Done:
        """Read the columns of all selected rows, and write each arm's files."""
        files = SourceFile.with_contents(self.files, self.contents)
        selections = {arm: table for arm, table in self.selected.items() if table is not None}
        wanted_M = np.unique(np.concatenate([NO_IDS, *map(read_ids, selections.values())]))
        fields = make_kept_fields(files, self.columns)
        schema = pa.schema([schemas.ROW_ID, *fields])
        found: list[Int64s] = []
        parts = _iter_rows(files, fields, wanted_M, self.id_column, found)
        kept = io.write_parts(parts, schema, str(task.directory / "kept.lance"))
        ids_M = np.concatenate([NO_IDS, *found])
        order_M = np.argsort(ids_M, kind="stable")
        made: dict[str, dict[str, str]] = {}
        wide = pa.schema([*schemas.SELECTION, *fields])
        for arm, table in selections.items():
            joined = _iter_joined(table, kept, ids_M[order_M], order_M)
            targets = {end: task.directory / f"{arm}.{end}" for end in ("parquet", "jsonl")}
            with staged(targets["parquet"]) as path, staged(targets["jsonl"]) as text:
                for _ in write_both_forms((part.cast(wide) for part in joined), wide, path, text):
                    pass
            made[arm] = {end: str(target) for end, target in targets.items()}
            task.say(f"{arm}: rows with {', '.join(self.columns)} in {made[arm]['parquet']} and .jsonl")
        return Done(outputs=self.Made(files=made), rows=len(ids_M))


def _iter_rows(
    files: Sequence[SourceFile],
    fields: Sequence[pa.Field],
    wanted_M: Int64s,
    id_column: str | None,
    found: list[Int64s],
) -> Iterator[pa.Table]:
    """Yield the rows of these ascending ids with these columns, in the files' order; add their ids to ``found``."""
    names = [field.name for field in fields]
    for file in files:
        start = 0
        for batch in read_rows(file, columns=names):
            ids_B = get_row_ids(file, start, start + batch.num_rows, id_column)
            start += batch.num_rows
            place_B = np.searchsorted(wanted_M, ids_B)  # `np.isin` would sort all wanted ids for each batch
            (inside_M,) = np.nonzero(place_B < len(wanted_M))
            at_M = inside_M[wanted_M[place_B[inside_M]] == ids_B[inside_M]]
            taken = batch.take(pa.array(at_M))
            columns = [as_kept(taken.column(field.name), field.type) for field in fields]
            found.append(ids_B[at_M])
            yield pa.table([pa.array(ids_B[at_M]), *columns], schema=pa.schema([schemas.ROW_ID, *fields]))


def _iter_joined(selection: TableRef, kept: TableRef, sorted_M: Int64s, order_M: Int64s) -> Iterator[pa.Table]:
    """Yield a selection's rows by rank, each with its kept columns; ``order_M``: the kept row of each sorted id."""
    for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS):
        rows = pa.table(batch.cast(schemas.SELECTION))
        ids_M = rows["row_id"].to_numpy()
        beside = io.take_offsets(kept, order_M[np.searchsorted(sorted_M, ids_M)]).drop_columns(["row_id"])
        for name in beside.column_names:
            rows = rows.append_column(beside.schema.field(name), beside[name])
        yield rows
