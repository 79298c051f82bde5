"""The selected rows of an arm, which are looked up, rendered and written in parts, in rank order, with a digest.

Neither all rows nor all their ids are ever held at once: ids come in parts, and at most ``BLOCK_ROWS`` of them are
looked up together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curation.arrays import Float32s, Int64s
from curation.domains import Domain, Example
from curation.errors import CurationError
from curation.json_types import Json
from curation.refs import ListDigest, TableRef
from curation.stages.gold import Gold
from curation.storage.cache import staged
from curation.storage.paths import Place
from curation.tables import io, json_text, schemas
from curation.trust import TrustFunction

PART_ROWS = 1 << 14
"""The number of rows that are rendered at a time, which form a row group of the Parquet file."""
BLOCK_ROWS, BLOCK_BYTES = PART_ROWS << 3, 16 << 20
"""Maximum number of rows, and their approximate bytes, that are read together; larger reads skip fewer bytes."""


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
    """The median length of the completions, in characters."""


class SelectedRows:
    """The rows of an arm in rank order (schema ``schemas.SELECTION``)."""

    def __init__(
        self,
        arm: str,
        row_ids: Iterable[Int64s],
        *,
        pool: TableRef,
        labels: TableRef,
        gold: Gold | None,
        domain: Domain,
        trust: TrustFunction,
        lineage: Mapping[str, object],
    ) -> None:
        self._arm, self._row_ids = arm, row_ids
        self._pool, self._labels, self._gold = pool, labels, gold
        self._domain, self._trust, self._lineage = domain, trust, lineage

    def parts(self) -> Iterator[pa.Table]:
        """Yield the rows in tables of at most ``PART_ROWS`` rows.

        Raises:
            CommitError: a row id is not in the pool or its labels.
            CurationError: a trust lies outside [0, 1].
        """
        columns = list(dict.fromkeys(["row_id", "completion", "label", *self._trust.features]))
        find = io.make_offset_finder(self._pool), io.make_offset_finder(self._labels)
        rank, num_rows = 0, PART_ROWS
        for ids_M in iter_regrouped(self._row_ids, BLOCK_ROWS):
            places_2M = np.stack([offsets(ids_M) for offsets in find])
            start = 0
            while start < len(ids_M):
                in_pool_M, in_labels_M = places_2M[:, start : start + num_rows]
                examples = io.take_offsets(self._pool, in_pool_M)
                weak = io.take_offsets(self._labels, in_labels_M, columns)
                for low in range(0, len(in_pool_M), PART_ROWS):
                    of_part = weak.slice(low, PART_ROWS).combine_chunks()
                    yield self._make_part(rank + start + low, examples.slice(low, PART_ROWS).to_pylist(), of_part)
                start += len(in_pool_M)
                num_parts = BLOCK_BYTES * len(in_pool_M) // (examples.nbytes + weak.nbytes) // PART_ROWS
                num_rows = PART_ROWS * min(max(num_parts, 1), BLOCK_ROWS // PART_ROWS)
            rank += len(ids_M)

    def _make_part(self, rank: int, examples: list[Example], weak: pa.Table) -> pa.Table:
        """Return rows of consecutive ranks from ``rank`` on, by their examples and labels."""
        row_ids_M = weak["row_id"].to_numpy()
        values: Json = {name: [value] * len(examples) for name, value in self._lineage.items()}
        values |= {
            "row_id": row_ids_M,
            "rank": np.arange(rank, rank + len(row_ids_M)),
            "trust": self._compute_trust(weak),
            "prompt": [self._domain.prompt(example) for example in examples],
            "completion": weak["completion"],
            "label": weak["label"],
            "completion_source": ["weak"] * len(examples),
        }
        if self._gold is not None:
            taught = self._gold.taught(row_ids_M, examples, self._domain)
            values |= {
                "completion": [right.completion for right in taught],
                "label": [right.label for right in taught],
                "completion_source": [right.source for right in taught],
            }
        columns = [
            column if isinstance(column := values[field.name], pa.ChunkedArray) else pa.array(column, field.type)
            for field in schemas.SELECTION
        ]
        return pa.table(columns, schemas.SELECTION)

    def _compute_trust(self, weak: pa.Table) -> Float32s:
        trust_M = self._trust.score(weak.to_batches()[0])
        if not ((trust_M >= 0) & (trust_M <= 1)).all():
            raise CurationError(
                f"arm {self._arm}: trust ranges from {trust_M.min()} to {trust_M.max()}, not within [0, 1]"
            )
        return trust_M


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
    """Write rows as ``stem`` with ``.parquet``, ``.jsonl`` and ``.lance``, each part once.

    Files that an interrupted run left are replaced. ``taught``: the columns that the digest covers.
    """
    # an arm of one's own has a dot in its name
    parquet, jsonl, lance = (stem.with_name(f"{stem.name}.{end}") for end in ("parquet", "jsonl", "lance"))
    digest = ListDigest()
    with staged(parquet) as path, staged(jsonl) as text:
        for _, texts in write_both_forms(parts, schema, path, text):
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
) -> Iterator[tuple[pa.Table, dict[str, list[str]]]]:
    """Write each part to a Parquet and a JSONL file; yield it with its values as JSON, by column."""
    with pq.ParquetWriter(parquet, schema) as writer, jsonl.open("w") as file:
        for part in parts:
            writer.write_table(part)
            texts = {name: json_text.encode_values(part[name]) for name in part.column_names}
            file.write("".join(f"{text}\n" for text in json_text.encode_objects(texts)))
            yield part, texts


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
