"""Columns of the input files that are kept as they are, beside what a domain reads."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from curation.errors import SourceError
from curation.sources.missing import python_values
from curation.sources.source_file import SourceFile

_TEXTS = ("text", "json", "choice")
"""The types of columns in files that name none (``SourceFile.schema``)."""


def kept_fields(files: Sequence[SourceFile], columns: Sequence[str]) -> list[pa.Field]:
    """The columns with the types that they have in the files.

    Raises:
        SourceError: files disagree about the type of a column.
    """
    return [pa.field(name, _type(files, name)) for name in columns]


def as_kept(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in the column's type; as texts where files name none, lists and structs as JSON."""
    if values.type == kind:
        return values
    if pa.types.is_string(kind) and not pa.types.is_string(values.type):
        return pa.array([None if value is None else _text(value) for value in python_values(values, "")], kind)
    return values.cast(kind)


def _text(value: object) -> str:
    is_json = isinstance(value, Mapping | list | bool)
    return json.dumps(value, default=str, ensure_ascii=False) if is_json else str(value)


def _type(files: Sequence[SourceFile], name: str) -> pa.DataType:
    found = {file.schema[name]: file.path for file in files if name in file.schema}
    named = {"string" if kind in _TEXTS else kind: path for kind, path in found.items()}
    if len(named) > 1:
        (first, one), (second, other), *_ = named.items()
        raise SourceError(
            f"{other}: column {name!r} is {second}, and {first} in {one}; give the files one type, or leave it out"
        )
    try:
        return pa.type_for_alias(next(iter(named)))
    except ValueError:
        return pa.string()  # of a list or struct: as JSON
