"""Drafts the section of the domain ``text``, which asks for and checks answers that are texts or JSON objects."""

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from curation.domains.turns import read_cell_text
from curation.errors import RowError
from curation.extras.init.table import TableFiles

NUMBER_SHARE = 0.8
"""Minimum share of numeric answers for which answers are compared as numbers."""
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "number"),
    (str, "text"),
    (list, "list"),
    (dict, "object"),
)
"""Names of the types of an object's values; the first type that matches is used."""


def has_objects(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells of a column are objects or lists of objects, as values or as JSON text."""
    values = table.values(column)
    return bool(values) and all(_find_objects(value) for value in values)


def free_text(table: TableFiles, texts: Sequence[str], answer: str) -> tuple[dict[str, Any], str]:
    """Return the section ``domain`` for free-text answers, and a description of their check."""
    shown = "\n".join(_write_expression(name) for name in texts)
    section: dict[str, Any] = {"name": "text"}
    if has_objects(table, answer):
        values = table.values(answer)
        keys: dict[str, str] = {}
        for value in values:
            for name, item in (pair for found in _find_objects(value) for pair in found.items() if pair[1] is not None):
                keys.setdefault(name, next((words for kind, words in _KINDS if isinstance(item, kind)), "value"))
        is_list = any(isinstance(_load_json(value), list) for value in values)
        what = "a list of JSON objects" if is_list else "a JSON object"
        listed = ", ".join(f"{name} ({kind})" for name, kind in keys.items())
        section["prompt"] = f"{shown}\n\nReply with {what} with the keys {listed}.\nJSON:"
        check, how = "json", "an answer is right if it is the same JSON"
    else:
        section["prompt"] = f"{shown}\nAnswer:"
        values = [str(value) for value in table.values(answer)]
        numbers = sum(re.fullmatch(r"[-+]?\d[\d,]*(\.\d+)?", value.strip()) is not None for value in values)
        is_number = numbers >= NUMBER_SHARE * len(values)
        check = "number" if is_number else "normalised"
        how = f"an answer is right if it has the same {'last number' if is_number else 'words'}"
    return section | {"reference": answer, "check": check}, f"{how} (check: {check}; a program of yours may check, too)"


def _find_objects(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a cell; an empty list for chat messages and anything else."""
    found = _load_json(value)
    items = found if isinstance(found, list) else [found]
    if not items or not all(isinstance(item, Mapping) and item for item in items):
        return []
    try:
        read_cell_text(items)
    except RowError:
        return items
    return []  # turns of a conversation


def _load_json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _write_expression(column: str) -> str:
    """Return the expression by which a template inserts a column."""
    is_plain = column.isidentifier() and not keyword.iskeyword(column)
    plain = is_plain and column.casefold() not in ("row", "range", "loop", "true", "false", "none")
    return f"{{{{ {column} }}}}" if plain else f"{{{{ row[{json.dumps(column, ensure_ascii=False)}] }}}}"
