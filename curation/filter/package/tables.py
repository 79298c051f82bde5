"""Tables of a trust package: graded rows for calibration, hashed words of texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_matrix

from curation.arrays import Float32s
from curation.metrics.shift import NUM_HASHES, Words

WORDS = ("word_starts", "word_hashes", "word_counts")
"""Names of the arrays of hashed words: each text's start, int32 [N + 1]; the hashes, uint16; their counts, int16."""
_DTYPES = (np.int32, np.uint16, np.int16)
MAX_ROWS = 10_000_000
"""Maximum number of rows of a package's table."""
CALIBRATED = pa.schema([("raw", pa.float32()), ("trust", pa.float32()), ("correct", pa.bool_())])
LABELLED = CALIBRATED.append(pa.field("label", pa.string()))
"""Columns of calibration rows if labels are a closed set."""


def read_rows(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file, whose number is limited because few compressed bytes may expand beyond the memory.

    Raises:
        ValueError: the file has more than ``MAX_ROWS`` rows.
    """
    if (num_rows := pq.read_metadata(path).num_rows) > MAX_ROWS:
        raise ValueError(f"it holds {num_rows:,} rows, and {MAX_ROWS:,} are the most that are read")
    return pq.read_table(path, schema=schema)


def to_floats(column: pa.Array | pa.ChunkedArray) -> Float32s:
    """Return a column as float32 [N], NaN for null."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float32)


def pack_words(words_NW: Words) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of hashed words by the names in ``WORDS``; empty without texts."""
    if not words_NW.shape[0]:
        return {}
    parts = zip(WORDS, (words_NW.indptr, words_NW.indices, words_NW.data), _DTYPES, strict=True)
    return {name: part.astype(dtype) for name, part, dtype in parts}


def unpack_words(arrays: Mapping[str, npt.NDArray[Any]], num_texts: int) -> Words:
    """Return hashed words from the arrays of :func:`pack_words`.

    Raises:
        KeyError: an array is missing.
        ValueError: the arrays do not fit each other, or have another number of texts.
    """
    starts, hashes, counts = (arrays[name] for name in WORDS)
    dtypes = [part.dtype for part in (starts, hashes, counts)]
    if dtypes != list(map(np.dtype, _DTYPES)):
        raise ValueError(f"{', '.join(WORDS)} are of {', '.join(map(str, dtypes))}")
    words_NW = csr_matrix((counts, hashes.astype(np.int32), starts), shape=(num_texts, NUM_HASHES))
    words_NW.check_format(full_check=True)
    return words_NW
