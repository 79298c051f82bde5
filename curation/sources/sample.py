"""Reads of single rows anywhere in a source's files, without reading whole files."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.json_types import Json
from curation.sources.missing import to_raw_rows
from curation.sources.readers import read_rows
from curation.sources.source_file import SourceFile

NEAR_ROWS = 256
"""Maximum distance between requested rows that one read covers."""
READERS = 8
"""Number of concurrent reads, which mostly wait for the store."""


class SampledRow(NamedTuple):
    """A row of a source."""

    file: int
    """The file's number."""
    row: int
    raw: Json


def read_rows_at(
    files: Sequence[SourceFile], positions_N: Int64s, columns: Sequence[str] | None = None
) -> list[SampledRow]:
    """Return the rows at these positions of a source, counted through its files by number, in the requested order.

    Only parts with a requested row are read: of Parquet the row group up to the row, of JSONL and CSV at most 10,000
    records.
    """
    in_order = sorted(files, key=lambda file: file.index)
    ends = np.cumsum([file.num_rows for file in in_order])
    order_N = np.argsort(positions_N, kind="stable")
    sorted_N = np.asarray(positions_N)[order_N]
    file_N = np.searchsorted(ends, sorted_N, side="right")
    row_N = sorted_N - (ends - [file.num_rows for file in in_order])[file_N]

    def read(span: slice) -> list[SampledRow]:
        file, wanted = in_order[int(file_N[span.start])], row_N[span]
        first = int(wanted[0])
        found: list[tuple[int, Json]] = []
        for batch in read_rows(file, first, int(wanted[-1]) + 1, columns):
            here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
            found += zip(here.tolist(), to_raw_rows(batch.take(pa.array(here - first))), strict=True)
            first += batch.num_rows
        return [SampledRow(file.index, row, raw) for row, raw in found]

    breaks = np.flatnonzero((np.diff(file_N) != 0) | (np.diff(row_N) > NEAR_ROWS)) + 1
    edges = pairwise([0, *breaks.tolist(), len(row_N)])
    spans = [slice(start, stop) for start, stop in edges if stop > start]
    with ThreadPoolExecutor(READERS) as pool:
        read_all = [row for rows in pool.map(read, spans) for row in rows]
    return [read_all[place] for place in np.argsort(order_N).tolist()]
