"""The tables of a trust package: graded rows for calibration, and held-out rows for a first cut."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation.arrays import Float32s
from curation.selection.cascade import HeldOut

MAX_ROWS = 10_000_000
"""The most rows of a package's tables."""
CALIBRATED = pa.schema([("raw", pa.float32()), ("trust", pa.float32()), ("correct", pa.bool_())])
LABELLED = CALIBRATED.append(pa.field("label", pa.string()))
"""Columns of calibration rows where labels are a closed set."""
CASCADED = pa.schema(
    [("first", pa.float32()), ("raw", pa.float32()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32())]
)


def read_rows(path: Path, schema: pa.Schema) -> pa.Table:
    """The rows of a file; equal numbers take no space in it, so that a few bytes may hold more than the memory.

    Raises:
        ValueError: they are too many.
    """
    if (num_rows := pq.read_metadata(path).num_rows) > MAX_ROWS:
        raise ValueError(f"it holds {num_rows:,} rows, and {MAX_ROWS:,} are the most that are read")
    return pq.read_table(path, schema=schema)


def write_held_out(rows: HeldOut, path: Path) -> None:
    """Write the rows that set a first cut."""
    scores = (pa.array(scores_M, pa.float32(), from_pandas=True) for scores_M in (rows.first_M, rows.full_M))
    tokens = (pa.array(tokens_M, pa.int32()) for tokens_M in (rows.prompt_tokens_M, rows.output_tokens_M))
    pq.write_table(pa.table([*scores, *tokens], schema=CASCADED), path)


def floats_of(column: pa.ChunkedArray) -> Float32s:
    """Return a column as float32 [N], NaN for null."""
    values: Float32s = column.to_numpy().astype(np.float32)
    return values
