"""Answers in the columns of a user's file: sets of labels, JSON objects, or free texts.

A column of sets has lists in its cells, or texts with a separator between recurring labels.
"""

import json
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.domains import attempt, parse_list, read_cell_text, to_one_line
from curation.domains.label_sets import SetFormat, split_names
from curation.errors import RowError
from curation.extras.init.table import MOST_VALUES, TableFiles

SEPARATORS = (";", "|", ",")
EMPTIES = ("none", "no label", "n/a", "-")
"""Words for a row without labels, if they never occur beside another label."""
LEAST_SHARE = 0.02
"""Minimum share of cells that contain a sign for it to be a separator of labels."""
NUMBER_SHARE = 0.8
"""Minimum share of numeric answers for which answers are compared as numbers."""


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """A column of sets of labels."""

    form: SetFormat
    counts: Counter[str]
    """Number of rows by label."""
    num_rows: int
    is_list: bool
    """Whether the cells are lists, which leaves no doubt."""


def label_column(table: TableFiles, column: str) -> LabelColumn | None:
    """Return the labels of a column whose cells hold several labels each, or ``None`` if they do not."""
    sample = table.values(column)
    if not sample:
        return None
    if is_list_column(table, column):
        return _read_column(table, column, SetFormat(), is_list=True)
    for separator in SEPARATORS:
        form = SetFormat(separator=separator)
        joint = [value for value in sample if isinstance(value, str) and separator in value]
        if len(joint) < max(2, LEAST_SHARE * len(sample)):
            continue
        if (found := _read_column(table, column, form, is_list=False)) is None:
            continue
        sets_of: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for names in (split_names(to_one_line(value), form) for value in sample):
            for name in names:
                sets_of[name].add(tuple(sorted(names)))
        # Most labels of cells with several recur in other sets, unlike parts of a name.
        sets_of_joint = [sets for sets in sets_of.values() if any(len(names) > 1 for names in sets)]
        if 2 * sum(len(sets) > 1 for sets in sets_of_joint) > len(sets_of_joint):
            return found
    return None


def is_list_column(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells of a column are lists of labels, as values or as JSON text.

    Lists with objects, such as turns of a conversation, do not count.
    """
    lists = [parse_list(value) if isinstance(value, str) else value for value in table.values(column)]
    return bool(lists) and all(
        isinstance(items, list) and not any(isinstance(item, Mapping) for item in items) for items in lists
    )


def _read_column(table: TableFiles, column: str, form: SetFormat, *, is_list: bool) -> LabelColumn | None:
    """Return the labels of all rows; ``None`` if a row repeats a label or cannot be split, or there are too many."""
    counts: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    num_rows = 0
    for value in (value for batch in table.batches(column) for value in batch):
        names, _ = attempt(split_names, value, form)
        if names is None or len({*names}) < len(names):
            return None
        counts.update(names)
        alone.update(names if len(names) == 1 else ())
        num_rows += 1
        if len(counts) > MOST_VALUES:
            return None
    for name in counts:
        if name.casefold() in EMPTIES and alone[name] == counts[name]:
            form = form.model_copy(update={"empty": name})
            del counts[name]
            break
    if len(counts) < 2:
        return None
    if is_list and any(form.separator in name for name in counts):
        unused = (sign for sign in SEPARATORS if not any(sign in name for name in counts))
        form = form.model_copy(update={"separator": next(unused, form.separator)})  # else the domain refuses it
    return LabelColumn(form=form, counts=counts, num_rows=num_rows, is_list=is_list)


def has_objects(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells of a column are objects or lists of objects, as values or as JSON text."""
    values = table.values(column)
    return bool(values) and all(_find_objects(value) for value in values)


def free_text(table: TableFiles, texts: Sequence[str], answer: str) -> tuple[dict[str, Any], str]:
    """Return the section ``domain`` for free-text answers, and a description of their check."""
    shown = "\n".join(_write_expression(name) for name in texts)
    section: dict[str, Any] = {"name": "text", "reference": answer}
    if has_objects(table, answer):
        cells = [_find_objects(value) for value in table.values(answer)]
        is_list = any(isinstance(_load_json(value), list) for value in table.values(answer))
        keys = ", ".join(dict.fromkeys(name for cell in cells for found in cell for name in found))
        what = "a list of JSON objects" if is_list else "a JSON object"
        prompt, check, same = f"{shown}\n\nReply with {what} with the keys {keys}.\nJSON:", "json", "is the same JSON"
    else:
        prompt, check, same = f"{shown}\nAnswer:", "normalised", "has the same words"
        values = [str(value).strip() for value in table.values(answer)]
        if sum(re.fullmatch(r"[-+]?\d[\d,]*(\.\d+)?", value) is not None for value in values) >= NUMBER_SHARE * len(
            values
        ):
            check, same = "number", "has the same last number"
    why = f"an answer is right if it {same} (check: {check}; a program of yours may check, too)"
    return section | {"prompt": prompt, "check": check}, why


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
