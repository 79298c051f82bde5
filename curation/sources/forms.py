"""Forms of rows: exports of annotation programs, read as plain columns.

``sources.NAME.form: auto`` takes the first of :data:`FORMS` that fits a record of the file.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from curation.json_types import Json, parse_written

ROWS = "rows"
"""The form of rows whose columns are read as they are."""
_CHOICES = re.compile(r"""\s*\{\s*["']choices["']""")


class FlatRow(NamedTuple):
    """A record as plain columns."""

    row: Json | None
    """The columns, or None if the record is not a row."""
    choices: tuple[str, ...] = ()
    """The columns that hold a person's choice: a label, or a list if the person chose several or none."""
    left_out: str = ""
    """Reason why the record is not a row, in words."""


class Prodigy:
    """Prodigy's ``db-out``: tasks with ``answer``: accept, reject or ignore.

    The label of a task with a choice is in ``accept``; rejected or ignored tasks are not rows. A rejected task that
    asks about one ``label`` is a row of the class ``not LABEL``.
    """

    ANSWERS = ("accept", "reject", "ignore")

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether the record is an answered task."""
        is_task = isinstance(record.get("accept"), list) or "_task_hash" in record
        return is_task and record.get("answer") in self.ANSWERS

    def read(self, record: Mapping[str, Any]) -> FlatRow:
        """Return the task without its answer."""
        row, answer = dict(record), record.get("answer")
        if answer in self.ANSWERS:
            del row["answer"]
        has_label = not isinstance(record.get("accept"), list) and isinstance(record.get("label"), str)
        if answer == "ignore" or (answer == "reject" and not has_label):
            return FlatRow(None, left_out=f"answer is {answer}")
        if has_label:
            return FlatRow(row | ({"label": f"not {row['label']}"} if answer == "reject" else {}), ("label",))
        return _with_choices(row, {"accept": row["accept"]} if isinstance(row.get("accept"), list) else {})


class LabelStudio:
    """Label Studio's exports JSON, JSON-MIN and CSV.

    The columns of JSON exports are those of ``data``, its ``id``, and people's choices under the names of their fields
    (``from_name``; ``label`` without one). Tasks that were skipped, or on which people disagree, are not rows.
    """

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether the record is a task with annotations, or has choices as JSON-MIN and CSV write several."""
        is_task = isinstance(record.get("data"), dict) and isinstance(record.get("annotations"), list)
        return is_task or any(_parse_choices(value) is not None for value in record.values())

    def read(self, record: Mapping[str, Any]) -> FlatRow:
        """Return the task's data and choices."""
        data, annotations = record.get("data"), record.get("annotations")
        if not isinstance(data, dict) or not isinstance(annotations, list):
            parsed = {name: _parse_choices(value) for name, value in record.items()}
            return _with_choices(dict(record), {name: chosen for name, chosen in parsed.items() if chosen is not None})
        done = [annotation for annotation in annotations if not _get(annotation, "was_cancelled")]
        if annotations and not done:
            return FlatRow(None, left_out="its annotators skipped it")
        choices: list[dict[str, list[Any]]] = []
        for annotation in done:
            found: dict[str, list[Any]] = {}
            for result in _get(annotation, "result") or []:
                if isinstance(chosen := _get(_get(result, "value"), "choices"), list):
                    found.setdefault(_get(result, "from_name") or "label", []).extend(chosen)
            choices.append(found)
        in_order = [{name: sorted(map(str, chosen)) for name, chosen in found.items()} for found in choices]
        if any(other != in_order[0] for other in in_order):
            return FlatRow(None, left_out="its annotators disagree")
        row = ({"id": record["id"]} if "id" in record else {}) | data
        return _with_choices(row, choices[0] if choices else {})


FORMS: Mapping[str, Prodigy | LabelStudio] = {"label_studio": LabelStudio(), "prodigy": Prodigy()}
"""Forms by name, each of which fits no record of another; records of the form ``rows`` are columns as they are."""


def _with_choices(row: Json, choices: Mapping[str, list[Any]]) -> FlatRow:
    """Return a row with each choice as one label, or as a list if there are several or none."""
    labels = {name: chosen[0] if len(chosen) == 1 else chosen for name, chosen in choices.items()}
    return FlatRow(row | labels, tuple(choices))


def _parse_choices(value: object) -> list[Any] | None:
    """Return the labels in ``{"choices": [...]}``, given as an object or its text; ``None`` for anything else."""
    if isinstance(value, str) and _CHOICES.match(value):
        value = parse_written(value)
    is_choice = isinstance(value, dict) and value.keys() == {"choices"} and isinstance(value["choices"], list)
    return value["choices"] if is_choice and isinstance(value, dict) else None


def _get(value: object, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
