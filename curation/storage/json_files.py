"""JSON files that may have been written by anyone."""

import json
from typing import Any

from curation.storage.files import read_file
from curation.storage.paths import Place, Remote

DEEPEST = 100
"""Maximum nesting depth of objects and lists, since readers of the values walk through them by recursion."""


def read_json(path: Place) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: as :func:`parse_json`.
    """
    return parse_json(path.read_bytes() if isinstance(path, Remote) else read_file(path))


def parse_json(text: str | bytes) -> Any:
    """Return the value that a JSON text holds.

    Raises:
        ValueError: the text is no JSON, is nested more than ``DEEPEST`` deep, or holds a lone surrogate.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise _make_depth_error() from None
    level = [found]
    for _ in range(DEEPEST):
        holders = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [item for holder in holders for item in holder]
        if not level:
            break
    else:
        raise _make_depth_error()
    if "\\ud" in (text if isinstance(text, str) else text.decode(errors="replace")).lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _make_depth_error() -> ValueError:
    return ValueError(f"its values are nested more than {DEEPEST} deep")
