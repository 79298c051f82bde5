"""Clusters of rows: a number for each value of the column ``splits.group``, which names whose a row is.

Rows of one cluster are alike (a user's, a document's), so that no draw may divide them, and an interval counts them as
fewer than they are. The numbers are hashes of the values: they need no list of all values, and are equal in all files.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from curation.arrays import Int64s
from curation.hashing import hash64
from curation.sources.missing import present, python_values
from curation.sources.readers import read_rows
from curation.sources.source_file import SourceFile


def cluster_of(value: object) -> int | None:
    """Return the cluster of a row by its value, an int64; ``None`` of a missing value, which is a cluster of its own.

    Whole numbers are equal however they are written: a column with missing values holds them as 7.0.
    """
    if (value := present(value)) is None:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def clusters_of(files: Sequence[SourceFile], column: str) -> Int64s:
    """Return the cluster of each row of a source by its position, int64 [N]; of a row without a value one of its own.

    All rows of the column are read, once a process.

    Raises:
        SourceError: a file cannot be read.
    """
    in_order = sorted(files, key=lambda file: file.index)
    return _clusters(tuple(json.dumps(file.recorded()) for file in in_order), column)


@lru_cache(maxsize=8)
def _clusters(files: tuple[str, ...], column: str) -> Int64s:
    values: list[int | None] = []
    for file in map(SourceFile.from_json, map(json.loads, files)):
        if column not in file.schema:
            values += [None] * file.num_rows
            continue
        for batch in read_rows(file, columns=[column]):
            values += map(cluster_of, python_values(batch.column(column), column))
    alone_N = hash64(np.arange(len(values), dtype=np.int64), 0).view(np.int64)
    pairs = zip(values, alone_N.tolist(), strict=True)
    cluster_N = np.array([alone if value is None else value for value, alone in pairs], dtype=np.int64)
    cluster_N.setflags(write=False)
    return cluster_N
