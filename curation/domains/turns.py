"""Lists in a cell, and chat messages: turns of role and content, as in chat data sets and TRL's ``messages``."""

from collections.abc import Mapping
from typing import Any

from curation.domains import format_cell
from curation.json_types import parse_written

_FORMS = (("role", "content"), ("from", "value"))
"""Keys of a turn's speaker and content (second pair: ShareGPT)."""


def read_cell_text(value: Any, name: str = "a value") -> str:
    """Return a cell as text, chat messages a line per turn (``user: hi``); ``RowError`` of other lists or objects."""
    # CSV has them in JSON, or as Python writes them.
    is_text = isinstance(value, str) and value.lstrip().startswith("[{")
    turns = (parse_list(value) or []) if is_text else value if isinstance(value, list | tuple) else []
    lines = [line for line in map(_format_turn, turns) if line is not None]
    return "\n".join(lines) if lines and len(lines) == len(turns) else format_cell(value, name)


def parse_list(text: str) -> list[Any] | None:
    """Return the items of a text that is a list in JSON or Python's writing, as ``['a', 'b']``; else ``None``."""
    text = text.strip()
    found = parse_written(text) if text.startswith("[") and text.endswith("]") else None
    return found if isinstance(found, list) else None


def _format_turn(turn: object) -> str | None:
    """Return a turn as text, or None for anything else or for parts that are not text (an image, a tool call)."""
    if not isinstance(turn, Mapping):
        return None
    for who, what in _FORMS:
        role, said = turn.get(who), turn.get(what)
        if isinstance(said, list | tuple) and all(isinstance(part, Mapping) and "text" in part for part in said):
            said = "".join(str(part["text"]) for part in said)
        if isinstance(role, str) and isinstance(said, str):
            return f"{role}: {said.strip()}"
    return None
