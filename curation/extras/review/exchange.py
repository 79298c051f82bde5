"""Exchange of rows and verdicts by file: CSV, and the record formats of Label Studio and Argilla.

Rows without a verdict are exported, without trust scores. Verdicts are imported from a file that the other program
exported, all of them or, if one is invalid, none. Sources: Label Studio's "Basic Label Studio JSON format" and "Label
Studio JSON format of annotated tasks" (labelstud.io/guide); the ``records.json`` of Argilla 2
(``rg.Dataset.records.to_json``).
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from curation.errors import ReviewError
from curation.extras.review.folder import VERDICTS, Review, VerdictLine
from curation.json_types import Json
from curation.storage.paths import write_atomically

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
Given = tuple[str, str, str, str]
"""A verdict before it is checked: its place in the file, e.g. ``line 3``, row id, verdict and person."""
NUM_TOLD = 5
"""Maximum number of invalid rows that an error names."""


def export(review: Review, program: str, path: Path) -> str:
    """Write the rows without a verdict for ``label-studio`` or ``argilla``, and return in words what was written."""
    judged = review.log.standing()
    rows = [row for row in review.rows.to_pylist() if row["row_id"] not in judged]
    if not rows:
        raise ReviewError(f"{review.folder}: every row has a verdict, so there is nothing to export")
    texts = {str(row["row_id"]): {name: row[name] or "" for name in ("prompt", "label", "completion")} for row in rows}
    config = path.with_suffix(".xml")
    if program == "label-studio":
        records: list[Json] = [{"data": {"row_id": row_id, **fields}} for row_id, fields in texts.items()]
        words = f"{config} is the labeling interface of the project; import what it exports as JSON"
    else:
        empty: Json = {name: {} for name in ("metadata", "suggestions", "responses", "vectors")}
        records = [{"id": row_id, "fields": fields, **empty} for row_id, fields in texts.items()]
        words = (
            f"dataset.records.from_json(path) loads it into a dataset of {QUESTIONS}; import what records.to_json "
            "writes"
        )
    try:
        write_atomically(path, json.dumps(records, indent=1) + "\n")
        if program == "label-studio":
            write_atomically(config, CONFIG)
    except OSError as error:
        raise ReviewError(f"{path}: cannot be written ({error.strerror})") from error
    kept = f" ({len(judged):,} have one and stay out)" if judged else ""
    return f"{path}: {len(rows):,} rows that have no verdict yet{kept}; {words}"


def import_file(review: Review, program: str, path: Path, person: str) -> tuple[int, int]:
    """Add the verdicts of a file to the log; return the number of new ones, and of those known from the same person.

    ``person`` gave the verdicts for which the file names nobody. If a row is invalid, no verdict is added.
    """
    read, title = READERS[program]
    try:
        given = list(read(path, person))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReviewError(f"{path}: cannot be read ({error})") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ReviewError(f"{path}: its records are not what {title} exports ({error})") from error
    if not given:
        raise ReviewError(f"{path}: holds no verdicts")
    entries = _check_given(path, given, frozenset(review.rows["row_id"].to_pylist()), program)
    known = {(row_id, by, of.verdict) for row_id, own in review.log.standing().items() for by, of in own.items()}
    new = [entry for entry in entries if (entry.row_id, entry.person, entry.verdict) not in known]
    if new:
        review.log.add(new)
    return len(new), len(entries) - len(new)


def _check_given(path: Path, given: Sequence[Given], row_ids: frozenset[int], via: str) -> list[VerdictLine]:
    found: dict[tuple[int, str], tuple[str, VerdictLine]] = {}
    bad: list[str] = []
    for where, row_id, verdict, person in given:
        kind, person = verdict.strip().lower(), person.strip()
        try:
            number = int(row_id)
        except ValueError:
            bad.append(f"{where}: row_id {row_id!r} is not an integer")
            continue
        if number not in row_ids:
            bad.append(f"{where}: row {number} is not one of this review's {len(row_ids):,} rows")
        elif kind not in VERDICTS:
            bad.append(f"{where}: verdict {verdict!r} is not one of {', '.join(VERDICTS)}")
        elif not person:
            bad.append(f"{where}: the person has no name")
        else:
            line = VerdictLine(row_id=number, person=person, verdict=kind, via=via)
            first, entry = found.setdefault((number, person), (where, line))
            if entry.verdict != kind:
                bad.append(f"{where}: {person} gave row {number} another verdict in {first}")
    if bad:
        more = f"; and {len(bad) - NUM_TOLD} more" if len(bad) > NUM_TOLD else ""
        raise ReviewError(
            f"{path}: {'; '.join(bad[:NUM_TOLD])}{more}; nothing is taken, mend the file and give it again"
        )
    return [entry for _, entry in found.values()]


def _read_csv(path: Path, person: str) -> Iterator[Given]:
    """Yield the rows of a CSV file with the columns ``row_id``, ``verdict`` and, with several people, ``person``."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        if not {"row_id", "verdict"} <= set(names) <= {"row_id", "verdict", "person"} or len(names) != len(set(names)):
            raise ReviewError(
                f"{path}: line 1: the header is {','.join(names) or 'missing'}; give row_id,verdict or "
                "row_id,verdict,person"
            )
        for row in reader:
            where = f"line {reader.line_num}"
            if None in row or None in row.values():
                raise ReviewError(f"{path}: {where}: has not the {len(names)} columns of the header; nothing is taken")
            yield where, row["row_id"], row["verdict"], row.get("person", person) or person


def _read_tasks(path: Path, person: str) -> Iterator[Given]:
    """Yield the verdicts in the annotations of exported tasks, except annotations that were skipped."""
    for where, row_id, task in _iter_records(path, "task", ("data", "row_id")):
        for annotation in task.get("annotations", ()):
            if annotation.get("was_cancelled"):
                continue
            by = annotation.get("completed_by")
            if isinstance(by, Mapping):  # in a full export
                by = by.get("email") or by.get("id")
            for result in annotation.get("result", ()):
                if result.get("from_name") == "verdict":
                    verdict = ",".join(map(str, result.get("value", {}).get("choices", ())))
                    yield where, row_id, verdict, person if by is None else str(by)


def _read_records(path: Path, person: str) -> Iterator[Given]:
    """Yield the verdicts in the submitted responses of exported records."""
    for where, row_id, record in _iter_records(path, "record", ("id",)):
        for response in record.get("responses", {}).get("verdict", ()):
            if response.get("status", "submitted") == "submitted":
                yield where, row_id, str(response.get("value")), str(response.get("user_id") or person)


def _iter_records(path: Path, noun: str, keys: Sequence[str]) -> Iterator[tuple[str, str, Json]]:
    """Yield the place, the row's id, which stands under nested ``keys``, and the content of each record of a file."""
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ReviewError(f"{path}: is not JSON ({error})") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ReviewError(f"{path}: is not a list of records; export it as JSON")
    for number, record in enumerate(found, start=1):
        row_id = record
        for key in keys:
            row_id = (row_id or {}).get(key)
        if row_id is None:
            missing = ".".join(keys)
            raise ReviewError(f"{path}: {noun} {number}: has no {missing}, so it is not one of our {noun}s")
        yield f"{noun} {number}", str(row_id), record


READERS = {
    "csv": (_read_csv, "a spreadsheet"),
    "label-studio": (_read_tasks, "Label Studio"),
    "argilla": (_read_records, "Argilla"),
}
"""Functions that yield the verdicts of a file, with the name of the program that wrote it."""
