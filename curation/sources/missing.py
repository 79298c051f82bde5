"""What counts as missing in a row of a user's file, whatever its format: decided here once, before a domain sees it.

Missing are null, NaN and NaT (a number or a time that is none: what pandas writes for an empty cell), and text of
whitespace alone. The text ``nan`` is a text like any other.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def missing(value: Any) -> bool:
    """Whether a value of a cell says nothing; a list or a struct never does."""
    if isinstance(value, str):
        return not value or value.isspace()
    if value is None or isinstance(value, list | tuple | Mapping):
        return value is None
    return bool(value != value)  # NaN and NaT, of any type, are the values that differ from themselves


def present(value: Any) -> Any:
    """The value with None for all that is missing, within lists and structs too."""
    if isinstance(value, Mapping):
        return {name: present(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [present(item) for item in value]
    return None if missing(value) else value


def raw_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch that was read from a file as a domain is given them, None for what is missing."""
    return [{name: present(value) for name, value in row.items()} for row in batch.to_pylist()]
