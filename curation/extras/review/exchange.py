"""Exchange of rows and verdicts with Label Studio and Argilla, in their record formats.

Rows without a verdict are exported, without trust scores. Verdicts are imported from a file that the other program
exported. Sources: Label Studio's "Basic Label Studio JSON format" and "Label Studio JSON format of annotated tasks"
(labelstud.io/guide); the ``records.json`` of Argilla 2 (``rg.Dataset.records.to_json``).
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from curation.errors import ReviewError
from curation.extras.review.folder import Review
from curation.extras.review.intake import Given
from curation.extras.review.log import VERDICTS
from curation.json_types import Json, JsonView
from curation.storage.paths import write_atomically

Row = JsonView

CONFIG = """<View>
  <Header value="Prompt"/>
  <Text name="prompt" value="$prompt"/>
  <Header value="Weak label"/>
  <Text name="label" value="$label"/>
  <Header value="Completion"/>
  <Text name="completion" value="$completion"/>
  <Choices name="verdict" toName="completion" choice="single" required="true" showInline="true">
    <Choice value="right" hotkey="r"/>
    <Choice value="wrong" hotkey="w"/>
    <Choice value="unsure" hotkey="u"/>
  </Choices>
</View>
"""
"""The labeling interface of a Label Studio project for our tasks."""

QUESTIONS = (
    "rg.Settings(fields=[rg.TextField(name=name) for name in ('prompt', 'label', 'completion')], "
    f"questions=[rg.LabelQuestion(name='verdict', labels={list(VERDICTS)})])"
)
"""Python code of the settings of an Argilla dataset for our records."""


class Exchange(NamedTuple):
    """Functions that write and read the format of one program."""

    write: Callable[[list[Row], Path], str]
    """Function that writes rows to a file and returns instructions for the user."""
    read: Callable[[Path, str], list[Given]]
    """Function that reads the verdicts of a file (``intake.Reader``)."""


def export(review: Review, program: str, path: Path) -> str:
    """Write the rows without a verdict in a program's format, and return in words what was written.

    Raises:
        ReviewError: every row has a verdict, or the file cannot be written.
    """
    judged = review.log.standing()
    rows = [row for row in review.rows.to_pylist() if row["row_id"] not in judged]
    if not rows:
        raise ReviewError(f"{review.folder}: every row has a verdict, so there is nothing to export")
    try:
        words = EXCHANGES[program].write(rows, path)
    except OSError as error:
        raise ReviewError(f"{path}: cannot be written ({error.strerror})") from error
    kept = f" ({len(judged):,} have one and stay out)" if judged else ""
    return f"{path}: {len(rows):,} rows that have no verdict yet{kept}; {words}"


def _select_fields(row: Row) -> dict[str, str]:
    return {name: row[name] or "" for name in ("prompt", "label", "completion")}


def _write_tasks(rows: list[Row], path: Path) -> str:
    config = path.with_suffix(".xml")
    tasks = [{"data": {"row_id": str(row["row_id"]), **_select_fields(row)}} for row in rows]
    write_atomically(path, json.dumps(tasks, indent=1) + "\n")
    write_atomically(config, CONFIG)
    return f"{config} is the labeling interface of the project; import what it exports as JSON"


def _read_tasks(path: Path, person: str) -> list[Given]:
    """Return the verdicts in the annotations of exported tasks, except annotations that were skipped."""
    given = []
    for number, task in enumerate(_load_records(path), start=1):
        row_id = task.get("data", {}).get("row_id")
        if row_id is None:
            raise ReviewError(f"{path}: task {number}: has no data.row_id, so it is not one of our tasks")
        for annotation in task.get("annotations", ()):
            if annotation.get("was_cancelled"):
                continue
            by = annotation.get("completed_by")
            if isinstance(by, Mapping):  # in a full export
                by = by.get("email") or by.get("id")
            for result in annotation.get("result", ()):
                if result.get("from_name") == "verdict":
                    choices = result.get("value", {}).get("choices", ())
                    verdict = ",".join(map(str, choices))
                    given.append(Given(f"task {number}", str(row_id), verdict, person if by is None else str(by)))
    return given


def _make_reader(read: Callable[[Path, str], list[Given]], program: str) -> Callable[[Path, str], list[Given]]:
    """Return a reader that raises a ``ReviewError`` for records of another shape."""

    def reader(path: Path, person: str) -> list[Given]:
        try:
            return read(path, person)
        except (AttributeError, KeyError, TypeError) as error:
            raise ReviewError(f"{path}: its records are not what {program} exports ({error})") from error

    return reader


def _write_records(rows: list[Row], path: Path) -> str:
    records = [
        {
            "id": str(row["row_id"]),
            "fields": _select_fields(row),
            "metadata": {},
            "suggestions": {},
            "responses": {},
            "vectors": {},
        }
        for row in rows
    ]
    write_atomically(path, json.dumps(records, indent=1) + "\n")
    return f"dataset.records.from_json(path) loads it into a dataset of {QUESTIONS}; import what records.to_json writes"


def _read_records(path: Path, person: str) -> list[Given]:
    """Return the verdicts in the submitted responses of exported records."""
    given = []
    for number, record in enumerate(_load_records(path), start=1):
        if "id" not in record:
            raise ReviewError(f"{path}: record {number}: has no id, so it is not one of our records")
        for response in record.get("responses", {}).get("verdict", ()):
            if response.get("status", "submitted") == "submitted":
                by = str(response.get("user_id") or person)
                given.append(Given(f"record {number}", str(record["id"]), str(response.get("value")), by))
    return given


def _load_records(path: Path) -> list[Json]:
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ReviewError(f"{path}: is not JSON ({error})") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ReviewError(f"{path}: is not a list of records; export it as JSON")
    return found


EXCHANGES = {
    "label-studio": Exchange(_write_tasks, _make_reader(_read_tasks, "Label Studio")),
    "argilla": Exchange(_write_records, _make_reader(_read_records, "Argilla")),
}
