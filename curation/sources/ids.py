"""Row ids: the file's number with the row's place in it, or the user's own unique integers."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.errors import SourceError
from curation.escaping import format_error
from curation.sources.missing import replace_missing, to_python_values
from curation.sources.readers import read_rows
from curation.sources.source_file import SourceFile
from curation.tables.row_ids import include
from curation.tables.schemas import FILE_SHIFT


def get_row_ids(file: SourceFile, start: int, stop: int, id_column: str | None) -> Int64s:
    """Return the ids of the rows ``start`` to ``stop`` of a file, int64 [N]; ``SourceError`` of a wrong one."""
    if id_column is None:
        return np.arange(start, stop, dtype=np.int64) + (file.index << FILE_SHIFT)
    batches = read_rows(file, start, stop, [id_column])
    return np.concatenate([_convert_ids(file, batch.column(id_column), id_column) for batch in batches])


def check_unique(files: Iterable[SourceFile], id_column: str) -> None:
    """Raise ``SourceError`` if an id occurs twice in all files of a source, of which only the id column is read."""
    seen = BitMap64()
    for file in files:
        for batch in read_rows(file, columns=[id_column]):
            ids_N = _convert_ids(file, batch.column(id_column), id_column)
            ids = BitMap64(ids_N.astype(np.uint64))
            if len(ids) != len(ids_N) or not ids.isdisjoint(seen):
                unique, counts = np.unique(ids_N, return_counts=True)
                twice = next(iter(ids & seen), None)
                example = int(unique[counts > 1][0]) if twice is None else twice
                raise SourceError(
                    f"{file.path}: {id_column}: the id {example} occurs in more than one row; "
                    "make the ids unique, or leave id_column out"
                )
            include(seen, ids_N)


def check_some(file: SourceFile, values: Sequence[object], id_column: str) -> None:
    """Raise ``SourceError`` for a wrong id among some of a file as read, except that one may be there twice."""
    _convert_ids(file, _make_array(f"{file.path}: {id_column}", values), id_column)


def _make_array(where: str, values: Sequence[object]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise SourceError(
            f"{where}: ids are not all integers below 2**63 ({format_error(error)}); give such integers, or leave "
            "id_column out"
        ) from error


def _convert_ids(file: SourceFile, values: pa.Array, id_column: str) -> Int64s:
    where = f"{file.path}: {id_column}"
    if values.type == pa.json_():
        values = _make_array(where, to_python_values(values, id_column))
    if file.format == "csv":
        values = pa.array([replace_missing(value) for value in values.to_pylist()], values.type)
    if values.null_count:
        raise SourceError(f"{where}: {values.null_count} rows have no id; fill them in, or leave id_column out")
    if not (pa.types.is_integer(values.type) or file.format == "csv"):
        raise SourceError(f"{where}: ids are {values.type}, not integers; give integers, or leave id_column out")
    try:
        ids_N: Int64s = values.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{where}: {format_error(error)}; give integers below 2**63, or leave id_column out"
        ) from error
    if len(ids_N) and ids_N.min() < 0:
        raise SourceError(f"{where}: the id {ids_N.min()} is negative; give ids from 0 on, or leave id_column out")
    return ids_N
