"""Defines which values of a user's file count as missing, in every format, before a domain sees them.

Missing are null, NaN and NaT (pandas writes these for an empty cell), and text of only whitespace. The text ``nan`` is
an ordinary text.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def missing(value: Any) -> bool:
    """Whether the value of a cell is missing; a list or a struct never is."""
    if isinstance(value, str):
        return not value or value.isspace()
    if value is None or isinstance(value, list | tuple | Mapping):
        return value is None
    return bool(value != value)  # NaN and NaT, of any type, are the values that differ from themselves


def present(value: Any) -> Any:
    """The value with None for everything missing, within lists and structs too."""
    if isinstance(value, Mapping):
        return {name: present(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [present(item) for item in value]
    return None if missing(value) else value


def raw_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch from a file, as a domain gets them: None for missing values."""
    return [{name: present(value) for name, value in row.items()} for row in batch.to_pylist()]
