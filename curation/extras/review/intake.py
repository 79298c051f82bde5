"""Import of verdicts from a file, all of them or, if one is invalid, none."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from curation.errors import ReviewError
from curation.extras.review.folder import Review
from curation.extras.review.log import VERDICTS, VerdictLine

NUM_TOLD = 5
"""Maximum number of invalid rows that an error names."""


class Given(NamedTuple):
    """A verdict as read from a file, before it is checked."""

    where: str
    """Place of the verdict in the file, e.g. ``line 3``."""
    row_id: str
    verdict: str
    person: str


@dataclass(frozen=True, kw_only=True)
class IntakeResult:
    """Result of importing a file of verdicts."""

    num_new: int
    num_known: int
    """Number of verdicts that the log already had from the same person."""


Reader = Callable[[Path, str], list[Given]]
"""Function that reads the verdicts of a file; its second argument is the person for verdicts without one."""


def take(review: Review, path: Path, read: Reader, *, via: str, person: str) -> IntakeResult:
    """Add the verdicts of a file to the log.

    Raises:
        ReviewError: the file cannot be read, or a row is invalid; then no verdict is added.
    """
    try:
        given = read(path, person)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReviewError(f"{path}: cannot be read ({error})") from error
    if not given:
        raise ReviewError(f"{path}: holds no verdicts")
    known = review.log.standing()
    entries, num_known = [], 0
    for entry in _check_given(path, given, review.row_ids, via):
        before = known.get(entry.row_id, {}).get(entry.person)
        if before is not None and before.verdict == entry.verdict:
            num_known += 1
        else:
            entries.append(entry)
    if entries:
        review.log.add(entries)
    return IntakeResult(num_new=len(entries), num_known=num_known)


def _check_given(path: Path, given: Sequence[Given], row_ids: frozenset[int], via: str) -> Iterable[VerdictLine]:
    found: dict[tuple[int, str], tuple[str, VerdictLine]] = {}
    bad: list[str] = []
    for where, row_id, verdict, person in given:
        kind, number = verdict.strip().lower(), _parse_number(row_id)
        if number is None:
            bad.append(f"{where}: row_id {row_id!r} is not an integer")
        elif number not in row_ids:
            bad.append(f"{where}: row {number} is not one of this review's {len(row_ids):,} rows")
        elif kind not in VERDICTS:
            bad.append(f"{where}: verdict {verdict!r} is not one of {', '.join(VERDICTS)}")
        elif not person.strip():
            bad.append(f"{where}: the person has no name")
        else:
            key = (number, person.strip())
            first, entry = found.setdefault(
                key, (where, VerdictLine(row_id=number, person=person.strip(), verdict=kind, via=via))
            )
            if entry.verdict != kind:
                bad.append(f"{where}: {person.strip()} gave row {number} another verdict in {first}")
    if bad:
        more = f"; and {len(bad) - NUM_TOLD} more" if len(bad) > NUM_TOLD else ""
        raise ReviewError(
            f"{path}: {'; '.join(bad[:NUM_TOLD])}{more}; nothing is taken, mend the file and give it again"
        )
    return [entry for _, entry in found.values()]


def read_csv(path: Path, person: str) -> list[Given]:
    """Return the rows of a CSV file with the columns ``row_id``, ``verdict`` and, with several people, ``person``.

    Raises:
        ReviewError: the header is another, or a row lacks or has further columns.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        if not {"row_id", "verdict"} <= set(names) <= {"row_id", "verdict", "person"} or len(names) != len(set(names)):
            raise ReviewError(
                f"{path}: line 1: the header is {','.join(names) or 'missing'}; give row_id,verdict or "
                "row_id,verdict,person"
            )
        given = []
        for row in reader:
            where = f"line {reader.line_num}"
            if None in row or None in row.values():
                raise ReviewError(f"{path}: {where}: has not the {len(names)} columns of the header; nothing is taken")
            given.append(Given(where, row["row_id"], row["verdict"], row.get("person", person) or person))
        return given


def _parse_number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
