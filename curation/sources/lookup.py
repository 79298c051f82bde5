"""A column of the input files by row id, for what the prepared tables do not hold."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.errors import SourceError
from curation.sources.ids import row_ids
from curation.sources.missing import raw_rows
from curation.sources.readers import read_rows
from curation.sources.source_file import SourceFile


def values_of(files: Iterable[SourceFile], column: str, wanted_N: Int64s, id_column: str | None) -> dict[int, str]:
    """The value of a column as text, by row id, of the ``wanted_N`` rows; a missing value is the empty text.

    Raises:
        SourceError: a file has no such column, or cannot be read.
    """
    found: dict[int, str] = {}
    for file in files:
        if column not in file.schema:
            raise SourceError(f"{file.path}: has no column {column!r} (it has {', '.join(file.schema)})")
        start = 0
        for batch in read_rows(file, columns=[column]):
            ids_B = row_ids(file, start, start + batch.num_rows, id_column)
            start += batch.num_rows
            (at_M,) = np.nonzero(np.isin(ids_B, wanted_N))
            rows = raw_rows(batch.take(pa.array(at_M)))
            found |= {
                row_id: "" if row[column] is None else str(row[column])
                for row_id, row in zip(ids_B[at_M].tolist(), rows, strict=True)
            }
    return found
