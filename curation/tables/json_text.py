"""The rows of a table as JSON text, made column by column: several times as fast as a dictionary and a dump a row."""

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii

import pyarrow as pa


def values(column: pa.ChunkedArray) -> list[str]:
    """Each value of a column of integers, floats or strings as ``json.dumps`` writes it.

    Raises:
        TypeError: the column is of another type.
    """
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TypeError(f"a column of {kind} is not written as JSON")
    encode = encode_basestring_ascii if pa.types.is_string(kind) else repr
    return ["null" if value is None else encode(value) for value in column.to_pylist()]


def objects(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """One object a row, as ``json.dumps`` of a dictionary; ``columns`` are the JSON values of each key."""
    names = [encode_basestring_ascii(name).replace("%", "%%") for name in columns]
    form = "{" + ", ".join(f"{name}: %s" for name in names) + "}"
    return [form % row for row in zip(*columns.values(), strict=True)]
