"""Python values of a user's files: which count as missing, in every format, and columns kept unchanged.

Missing are null, NaN and NaT (pandas writes these for an empty cell), and text of only whitespace. The text ``nan`` is
an ordinary text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from curation.errors import SourceError
from curation.escaping import format_error, quote_text
from curation.json_types import Json
from curation.sources.source_file import SourceFile


def replace_missing(value: object) -> Any:
    """Return the value with None if it is missing and text for UTF-8 bytes, also within lists and structs."""
    if isinstance(value, Mapping):
        return {name: replace_missing(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_missing(item) for item in value]
    if isinstance(value, bytes):  # Impala and old Hive do not declare their texts as such
        with suppress(UnicodeDecodeError):
            value = value.decode()
    if isinstance(value, str):
        return value if value and not value.isspace() else None
    differs = value != value  # NaN and NaT, of any type, are the values that differ from themselves
    is_missing = differs is True or (getattr(differs, "ndim", 1) == 0 and bool(differs))  # an array is no single value
    return None if is_missing else value


def as_json(values: Iterable[object]) -> pa.Array:
    """Return JSON values as a column that :func:`to_python_values` converts back unchanged; null for missing ones."""
    texts = [None if value is None else json.dumps(value) for value in map(replace_missing, values)]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def to_raw_rows(batch: pa.RecordBatch) -> list[Json]:
    """Return the rows of a file's batch as a domain receives them, with None for missing values."""
    columns = [to_python_values(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return [
        {name: replace_missing(value) for name, value in zip(batch.schema.names, row, strict=True)}
        for row in zip(*columns, strict=True)
    ]


def to_python_values(column: pa.Array, name: str) -> list[Any]:
    """Return a column's Python values, or Arrow's text of one without (a date after 9999), or raise ``SourceError``."""
    if column.type == pa.json_():
        return [None if text is None else json.loads(text) for text in column.storage.to_pylist()]
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        if len(column) > 1:
            return [value for row in range(len(column)) for value in to_python_values(column.slice(row, 1), name)]
    try:
        return list(column.cast(pa.string()).to_pylist())
    except pa.ArrowException as error:
        raise SourceError(f"column {quote_text(name)} cannot be read: {format_error(error)}; leave it out") from error


_TEXTS = ("text", "json")
"""Type names of columns in files without Arrow types (``SourceFile.schema``)."""


def make_kept_fields(files: Sequence[SourceFile], columns: Sequence[str]) -> list[pa.Field]:
    """Return the kept columns as fields with their types in the files; ``SourceError`` if files disagree on one."""
    fields = []
    for name in columns:
        found = {file.schema[name]: file.path for file in files if name in file.schema}
        named = {"string" if kind in _TEXTS else kind: path for kind, path in found.items()}
        if len(named) > 1:
            (first, one), (second, other), *_ = named.items()
            raise SourceError(
                f"{other}: column {name!r} is {second}, and {first} in {one}; give the files one type, or leave it out"
            )
        try:
            kind = pa.type_for_alias(next(iter(named)))
        except ValueError:
            kind = pa.string()  # of a list or struct: as JSON
        fields.append(pa.field(name, kind))
    return fields


def as_kept(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values in the column's type; if files name none, as texts, with lists and structs as JSON."""
    if values.type == kind:
        return values
    if not pa.types.is_string(kind) or pa.types.is_string(values.type):
        return values.cast(kind)
    texts = [
        json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, Mapping | list | bool) else value
        for value in to_python_values(values, "")
    ]
    return pa.array([None if text is None else str(text) for text in texts], kind)
