"""Types of JSON objects: records, rows, settings, the content of reports; and what is done with such values."""

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
"""An object of JSON, values of any type by name."""
JsonView = Mapping[str, Any]
"""A read-only object of JSON."""


def is_deeper(value: object, depth: int) -> bool:
    """Return whether a JSON value has a part within more than ``depth`` objects and lists; does not recurse."""
    level = [value]
    for _ in range(depth):
        holders = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [item for holder in holders for item in holder]
        if not level:
            return False
    return True


def map_texts(change: Callable[[str], str], value: object) -> Any:
    """Return a JSON value with ``change`` applied to all its texts but keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_texts(change, item) for key, item in value.items()}
    return [map_texts(change, item) for item in value] if isinstance(value, list | tuple) else value
