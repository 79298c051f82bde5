"""Encoding of a table's rows as JSON text, column by column: several times as fast as one ``json.dumps`` per row."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

import pyarrow as pa


def encode_values(column: pa.ChunkedArray) -> list[str]:
    """Return a column's values as ``json.dumps`` writes them; dates and the like as text, NaN and inf as null."""
    kind = column.type
    encode: Callable[[Any], str] = partial(json.dumps, default=str)
    if pa.types.is_string(kind):
        encode = encode_basestring_ascii
    elif pa.types.is_integer(kind):
        encode = repr
    elif pa.types.is_floating(kind):
        return [repr(value) if value is not None and isfinite(value) else "null" for value in column.to_pylist()]
    return ["null" if value is None else encode(value) for value in column.to_pylist()]


def encode_objects(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one JSON object per row, as ``json.dumps`` writes it; ``columns`` has the JSON values of each key."""
    names = [encode_basestring_ascii(name).replace("%", "%%") for name in columns]
    form = "{" + ", ".join(f"{name}: %s" for name in names) + "}"
    return [form % row for row in zip(*columns.values(), strict=True)]
