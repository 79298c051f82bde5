"""Readings of a multiple-choice answer: by a column's name, a letter, the option's text, or a number from 0 or 1.

Among options that are numbers, several readings fit a cell such as ``1``. All labelled rows of a source decide: the
reading that fits them, if no other does.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from curation.domains.identity import normalise_unicode
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text

LETTERS = "ABCDEFGH"
KEY = "domain.answer_is"
RIVAL = 0.9
"""Share of the best reading's rows from which another reading is a rival, if the two name different options."""
LEAST_EXPECTED, FEW = 4.6, 0.05
"""Numbers from 0 are doubted if at least this many rows should have 0 under uniform right options, and a smaller share
of these has it: with 4.6 expected, none occurs with a chance of 1 %."""
_LETTER = re.compile(r"[(\[]?([A-Ha-h])[)\].:]?")
_INTEGER = re.compile(r"(\d{1,3})(?:\.0+)?")
_ENDING = re.compile(r"\d+$|(?<=[a-z])[A-H]$|(?<=[_ -])[A-Ha-h]$")


class StatedAnswer(NamedTuple):
    """A row's answer, as the file has it."""

    text: str
    is_number: bool
    """Whether the file's own type is a number, so that it is not the text of an option."""
    choices: Sequence[str]
    columns: Sequence[str]
    """The columns of the options; empty if the options are a list."""


def _find_by_column(row: StatedAnswer) -> int | None:
    def find_only(names: Sequence[str], text: str) -> int | None:
        known = [name.casefold() for name in names]
        return known.index(text.casefold()) if text and known.count(text.casefold()) == 1 else None

    ends = [found[0].lstrip("0") or "0" if (found := _ENDING.search(name)) else "" for name in row.columns]
    found = _INTEGER.fullmatch(row.text) or _LETTER.fullmatch(row.text)
    by_name = find_only(row.columns, row.text)
    return find_only(ends, found[1].lstrip("0") or "0") if by_name is None and found else by_name


def _find_by_letter(row: StatedAnswer) -> int | None:
    found = _LETTER.fullmatch(row.text)
    place = LETTERS.index(found[1].upper()) if found else len(row.choices)
    return place if place < len(row.choices) else None


def _find_by_text(row: StatedAnswer) -> int | None:
    texts = [row.text, *row.choices]
    for change in (str, normalise_unicode, lambda text: normalise_unicode(text).casefold()):
        wanted, *choices = [squeeze_spaces(change(text)) for text in texts]
        if choices.count(wanted) == 1:
            return choices.index(wanted)
    return None


def _find_by_number(row: StatedAnswer, first: int) -> int | None:
    found = _INTEGER.fullmatch(row.text)
    place = int(found[1]) - first if found else -1
    return place if 0 <= place < len(row.choices) else None


READINGS: Mapping[str, Callable[[StatedAnswer], int | None]] = {
    "column": _find_by_column,
    "letter": _find_by_letter,
    "text": _find_by_text,
    "number_from_0": partial(_find_by_number, first=0),
    "number_from_1": partial(_find_by_number, first=1),
}
"""Readings by name: functions to the place of the named option, or None; ``column`` also by the number at its end."""
_FROM = ("number_from_0", "number_from_1")
_NUMBERS = ("column", *_FROM)


def squeeze_spaces(text: str) -> str:
    """Return a text with runs of white space as one space."""
    return " ".join(text.split())


def find_places(row: StatedAnswer) -> dict[str, int]:
    """Return the option that each reading finds that fits a row alone: numbers count from 0 in a list, as in MMLU."""
    named = ("column" if row.columns else "number_from_0", "letter", "" if row.is_number else "text")
    return {name: place for name in READINGS if name in named and (place := READINGS[name](row)) is not None}


class AnswerTally:
    """A tally of the labelled rows that each reading fits, to choose the intended one."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._read: Counter[str] = Counter()
        self._zeros = self._lasts = 0
        self._apart: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], str] = {}
        self._as_alone: Counter[str] = Counter()
        """Number of rows that each reading reads like :func:`find_places`."""
        self._expected = 0.0
        """Expected number of rows in which the first option is right, if right options were uniform."""

    def add(self, row: StatedAnswer) -> None:
        """Count a row."""
        self.num_rows += 1
        self._expected += 1 / len(row.choices)
        places = {name: place for name, read in READINGS.items() if (place := read(row)) is not None}
        alone = {*find_places(row).values()}
        self._read.update(places.keys())
        self._zeros += "number_from_0" in places and "number_from_1" not in places
        self._lasts += "number_from_1" in places and "number_from_0" not in places
        for one in READINGS:
            self._as_alone[one] += alone == ({places[one]} if one in places else set())
            for other in places:
                if one in places and places[one] != places[other]:
                    self._apart[one, other] += 1
                    ways = f"{LETTERS[places[one]]} or {LETTERS[places[other]]}"
                    listed = ", ".join(map(quote_text, row.choices))
                    self._first.setdefault((one, other), f"{quote_text(row.text)} of {listed} is {ways}")

    def decide(self, where: str) -> tuple[str | None, str]:
        """Return the reading of all rows, or None if each is read alone, and a warning; ``ConfigError`` in doubt."""
        if not self._read:
            return None, ""
        fits, doubt = self._find_fitting()
        best = max(fits, key=lambda name: self._read[name])
        for other in fits:
            if self._apart[best, other]:
                is_from = {best, other} == {*_FROM}
                clue = "; hardly any row has 0: do they count from 1, and the last option is never right?" * is_from
                raise ConfigError(
                    f"{KEY}: the answers of {where} are read in two ways: as {best} in {self._read[best]:,} of "
                    f"{self.num_rows:,} rows, as {other} in {self._read[other]:,}, and in {self._apart[best, other]:,} "
                    f"these are different options (the first: {self._first[best, other]}){clue}; set {KEY} to the one "
                    f"that is meant, {best} or {other}"
                )
        warning = f"{KEY}: the answers of {where} are read as {best}, {doubt}; set it to {best}, or to what is meant"
        return (None if self._as_alone[best] == self.num_rows else best), warning * (doubt != "" and best in _NUMBERS)

    def _find_fitting(self) -> tuple[list[str], str]:
        """Return the possible readings, column names first, the likelier numbering first; and a doubt or "" on them."""
        fits = [name for name in READINGS if self._read[name] >= RIVAL * max(self._read.values())]
        most = max((self._read[name] for name in fits if name in _NUMBERS), default=0)
        if "column" in fits and self._read["column"] == most:
            never = self._apart["column", "number_from_0"] > 0 and self._read["number_from_0"] == most
            doubt = f"and the last option is never right in {self.num_rows:,} rows" if never else ""
            return [name for name in fits if name not in _FROM], doubt * (self._expected > LEAST_EXPECTED)
        fits = [name for name in fits if name != "column"]
        if not {*fits} & {*_FROM}:
            return fits, ""
        zeros, lasts = self._zeros, self._lasts
        if lasts > zeros:
            some = f"{zeros:,} of {self.num_rows:,} rows have 0, and {lasts:,} the number of their options"
            return [name for name in fits if name != "number_from_0"], some
        if self._expected > LEAST_EXPECTED and zeros < FEW * self._expected:
            return fits, ""
        doubt = "" if zeros else f"and none of {self.num_rows:,} rows has 0"
        return [name for name in fits if name != "number_from_1"], doubt


def find_place(row: StatedAnswer, reading: str | None) -> int:
    """Return the option that an answer names by the file's reading or, without one, by all that fit the row alone.

    ``RowError``: ``bad_answer``.
    """
    found: Mapping[str, int | None] = find_places(row) if reading is None else {reading: READINGS[reading](row)}
    places = {place for place in found.values() if place is not None}
    if len(places) == 1:
        return places.pop()
    if len(places) > 1:
        ways = " and ".join(f"{LETTERS[place]} as {name}" for name, place in find_places(row).items())
        raise RowError(f"bad_answer: {row.text!r} is {ways}; set {KEY} to the one that is meant")
    names = {
        "column": row.columns,
        "letter": LETTERS[: len(row.choices)],
        "text": row.choices,
        "number_from_0": range(len(row.choices)),
        "number_from_1": range(1, len(row.choices) + 1),
    }
    known: Sequence[Any] = names[reading or ("column" if row.columns else "number_from_0")]
    others = "its letters and texts" if reading is None else f"{KEY}: {reading}"
    raise RowError(f"bad_answer: {row.text!r} is not one of {', '.join(map(str, known))} ({others})")
