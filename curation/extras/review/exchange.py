"""Exchange of rows and verdicts by file: CSV for a spreadsheet, and JSON for Label Studio.

Rows without a verdict are exported, without trust scores. If a file has an invalid verdict, none of its verdicts is
imported. Sources: Label Studio's "Basic Label Studio JSON format" and "Label Studio JSON format of annotated tasks"
(labelstud.io/guide).
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from curation.errors import ReviewError
from curation.extras.review.folder import Review, Verdicts
from curation.json_types import Json
from curation.storage.paths import write_atomically

VERDICTS = ("right", "wrong", "unsure")
TEXTS = ("prompt", "label", "completion")
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
PREFIX = "row "
"""Stands before a row id in CSV, since spreadsheets round long numbers."""
Given = tuple[str, str, str, str]
"""A verdict before it is checked: its place in the file, e.g. ``line 3``, row id, verdict and person."""
NUM_SHOWN = 5
"""Maximum number of invalid rows that an error names."""


def export(review: Review, program: str, path: Path) -> str:
    """Write the rows without a verdict as ``csv`` or for ``label-studio``, and return in words what was written."""
    if path.exists():  # perhaps with verdicts
        raise ReviewError(f"{path}: is there already; give another name")
    judged = review.read_verdicts()
    rows = [row for row in review.rows.to_pylist() if row["row_id"] not in judged]
    if not rows:
        raise ReviewError(f"{review.folder}: every row has a verdict, so there is nothing to export")
    if program == "csv":
        text = _format_csv(rows)
        words = f"write {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]} into its last column and import it"
    else:
        tasks = [{"data": {"row_id": str(row["row_id"]), **{name: row[name] or "" for name in TEXTS}}} for row in rows]
        text = json.dumps(tasks, indent=1) + "\n"
        config = path.with_suffix(".xml")
        write_atomically(config, CONFIG)
        words = f"{config} is the labeling interface of the project; import what it exports as JSON"
    write_atomically(path, text)
    kept = f" ({len(judged):,} have one and stay out)" if judged else ""
    return f"{path}: {len(rows):,} rows that have no verdict yet{kept}; {words}"


def _format_csv(rows: Sequence[Json]) -> str:
    """Return rows as CSV with an empty column ``verdict``; cells that a spreadsheet would compute begin with ``'``."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["row_id", *TEXTS, "verdict"])
    for row in rows:
        texts = [row[name] or "" for name in TEXTS]
        safe = [f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text for text in texts]
        writer.writerow([f"{PREFIX}{row['row_id']}", *safe, ""])
    return f"\ufeff{file.getvalue()}"  # the byte order mark makes spreadsheets read UTF-8


def import_file(review: Review, program: str, path: Path, person: str) -> tuple[int, int]:
    """Add the verdicts of a file to the review; return the number of new ones, and of those known already.

    Verdicts for which the file names nobody are those of ``person``. If a row is invalid, no verdict is added.
    """
    try:
        given = list(READERS[program](path, person))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReviewError(f"{path}: cannot be read ({error})") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ReviewError(f"{path}: its records are not what Label Studio exports ({error})") from error
    if not given:
        raise ReviewError(f"{path}: holds no verdicts")
    row_ids = frozenset(review.rows["row_id"].to_pylist())
    verdicts: Verdicts = {}
    bad: list[str] = []
    for where, row_id, text, name in given:
        verdict, name = text.strip().lower(), name.strip()
        number = row_id.strip().removeprefix(PREFIX)
        if not number.isdecimal() or int(number) not in row_ids:
            bad.append(f"{where}: row_id {row_id!r} is not one of this review's {len(row_ids):,} rows")
        elif verdict not in VERDICTS:
            bad.append(f"{where}: verdict {text!r} is not one of {', '.join(VERDICTS)}")
        elif not name:
            bad.append(f"{where}: the person has no name")
        elif verdicts.setdefault(int(number), {}).setdefault(name, verdict) != verdict:
            bad.append(f"{where}: {name} gave row {number} another verdict before")
    if bad:
        more = f"; and {len(bad) - NUM_SHOWN} more" if len(bad) > NUM_SHOWN else ""
        raise ReviewError(
            f"{path}: {'; '.join(bad[:NUM_SHOWN])}{more}; nothing is taken, mend the file and give it again"
        )
    num_new = review.add_verdicts(verdicts)
    return num_new, sum(map(len, verdicts.values())) - num_new


def _read_csv(path: Path, person: str) -> Iterator[Given]:
    """Yield the verdicts of CSV with the columns ``row_id``, ``verdict`` and, with several people, ``person``."""
    csv.field_size_limit(1 << 30)  # texts of rows may be long
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.DictReader(file, delimiter=max(",;\t", key=header.count))
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        if not {"row_id", "verdict"} <= set(names) or len(names) != len(set(names)):
            raise ReviewError(f"{path}: line 1: the header is {','.join(names) or 'missing'}; give row_id and verdict")
        for row in reader:
            where = f"line {reader.line_num}"
            if None in row or None in row.values():
                raise ReviewError(
                    f"{path}: {where}: does not have the header's {len(names)} columns; nothing is taken; mend the row "
                    "and import the file again"
                )
            if row["verdict"].strip():
                yield where, row["row_id"], row["verdict"], row.get("person", person) or person


def _read_tasks(path: Path, person: str) -> Iterator[Given]:
    """Yield the verdicts in the annotations of exported tasks, except annotations that were skipped."""
    try:
        tasks = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ReviewError(f"{path}: is not JSON ({error})") from error
    for number, task in enumerate(tasks, start=1):
        for annotation in task.get("annotations", ()):
            if annotation.get("was_cancelled"):
                continue
            by = annotation.get("completed_by")
            if isinstance(by, Mapping):  # in a full export
                by = by.get("email") or by.get("id")
            for result in annotation.get("result", ()):
                if result.get("from_name") == "verdict":
                    verdict = ",".join(map(str, result.get("value", {}).get("choices", ())))
                    yield f"task {number}", str(task["data"]["row_id"]), verdict, person if by is None else str(by)


READERS = {"csv": _read_csv, "label-studio": _read_tasks}
"""Functions that yield the verdicts of a file, by program."""
