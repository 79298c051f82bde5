"""JSON files that may have been written by anyone."""

import json
from typing import Any

from curation.json_types import is_deeper
from curation.storage.files import read_file
from curation.storage.paths import Place, Remote

DEEPEST = 100
"""Maximum nesting depth of objects and lists, since readers of the values walk through them by recursion."""


def read_json(path: Place) -> Any:
    """Return the value in a JSON file, or raise ``OSError``, or ``ValueError`` as :func:`parse_json`."""
    return parse_json(path.read_bytes() if isinstance(path, Remote) else read_file(path))


def parse_json(text: str | bytes) -> Any:
    """Return a JSON text's value; ``ValueError`` if it is none, nested beyond ``DEEPEST``, or has a lone surrogate."""
    try:
        found = json.loads(text)
        if is_deeper(found, DEEPEST):
            raise RecursionError
    except RecursionError:
        raise ValueError(f"its values are nested more than {DEEPEST} deep") from None
    if "\\ud" in (text if isinstance(text, str) else text.decode(errors="replace")).lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found
