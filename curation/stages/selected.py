"""The selected rows of an arm: looked up, rendered and written in parts, in rank order; and the digest of all.

A part at a time is held, beside 40 bytes for each selected row: its id, its places in the pool and in the labels, and
what sorting them takes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curation.domains import Domain
from curation.errors import CurationError
from curation.hashing import Int64s
from curation.refs import ListDigest, TableRef
from curation.stages.gold import Gold
from curation.storage.cache import staged
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.trust import TrustFunction

PART_ROWS = 1 << 14
"""The number of rows that are rendered at a time: a row group of the Parquet file."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written of an arm."""

    table: TableRef
    parquet: str
    jsonl: str
    num_rows: int
    digest: str
    """A digest of row ids and completions: equal selections train equal students."""
    median_characters: float | None
    """The median length of its completions."""


class SelectedRows:
    """The rows of an arm in rank order (schema ``schemas.SELECTION``)."""

    def __init__(
        self,
        arm: str,
        row_ids_n: Int64s,
        *,
        pool: TableRef,
        labels: TableRef,
        gold: Gold | None,
        domain: Domain,
        trust: TrustFunction,
        lineage: Mapping[str, Any],
    ) -> None:
        self._arm, self._ids_n = arm, row_ids_n
        self._pool, self._labels, self._gold = pool, labels, gold
        self._domain, self._trust, self._lineage = domain, trust, lineage

    def parts(self) -> Iterator[pa.Table]:
        """``PART_ROWS`` at a time.

        Raises:
            CommitError: an id is not in the pool or its labels.
            CurationError: a trust lies outside [0, 1].
        """
        for start in range(0, len(self._ids_n), PART_ROWS):
            yield self._part(start, min(start + PART_ROWS, len(self._ids_n)))

    @cached_property
    def _offsets_n(self) -> tuple[Int64s, Int64s]:
        """The place of each row in the pool and in the labels."""
        return io.offsets(self._pool, self._ids_n), io.offsets(self._labels, self._ids_n)

    def _part(self, start: int, stop: int) -> pa.Table:
        row_ids_M = self._ids_n[start:stop]
        in_pool_M, in_labels_M = (offsets_n[start:stop] for offsets_n in self._offsets_n)
        examples = io.take_offsets(self._pool, in_pool_M).to_pylist()
        columns = list(dict.fromkeys(["row_id", "completion", "label", *self._trust.features]))
        weak = io.take_offsets(self._labels, in_labels_M, columns).combine_chunks()
        values: dict[str, Any] = {name: [value] * len(examples) for name, value in self._lineage.items()}
        values |= {
            "row_id": row_ids_M,
            "rank": np.arange(start, stop),
            "trust": self._scored(weak),
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
        return pa.table([_column(values[field.name], field.type) for field in schemas.SELECTION], schemas.SELECTION)

    def _scored(self, weak: pa.Table) -> npt.NDArray[np.float32]:
        trust_M = self._trust.score(weak.to_batches()[0])
        if not ((trust_M >= 0) & (trust_M <= 1)).all():
            raise CurationError(
                f"arm {self._arm}: trust ranges from {trust_M.min()} to {trust_M.max()}, not within [0, 1]"
            )
        return trust_M


def write_rows(parts: Iterable[pa.Table], stem: Place) -> Written:
    """Write a selection as ``stem`` with ``.parquet``, ``.jsonl`` and ``.lance``, each part once.

    Replaces what an interrupted run left there.
    """
    parquet, jsonl, digest = stem.with_suffix(".parquet"), stem.with_suffix(".jsonl"), ListDigest()
    lengths = [np.zeros(0, dtype=np.int32)]
    with staged(parquet) as path, staged(jsonl) as text:
        with pq.ParquetWriter(path, schemas.SELECTION) as writer, text.open("w") as file:
            for part in parts:
                writer.write_table(part)
                rows = part.to_pylist()
                file.writelines(json.dumps(row) + "\n" for row in rows)
                digest.extend({"row_id": row["row_id"], "completion": row["completion"]} for row in rows)
                lengths.append(pc.utf8_length(part["completion"]).drop_null().to_numpy())
        with pq.ParquetFile(path) as written:
            batches = (batch.cast(schemas.SELECTION) for batch in written.iter_batches(PART_ROWS))
            table = io.write_batches(batches, schemas.SELECTION, str(stem.with_suffix(".lance")))
    lengths_n = np.concatenate(lengths)
    return Written(
        table=table,
        parquet=str(parquet),
        jsonl=str(jsonl),
        num_rows=digest.num_items,
        digest=digest.hexdigest,
        median_characters=float(np.median(lengths_n)) if len(lengths_n) else None,
    )


def _column(values: Any, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    return values if isinstance(values, pa.ChunkedArray) else pa.array(values, kind)
