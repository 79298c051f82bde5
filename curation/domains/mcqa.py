"""Multiple choice with two to eight options (paper, App. "Evaluation Details", world knowledge).

The label is the letter of an option, A to H. By default the options are scored as completions of the prompt;
``generative`` lets the teacher reason first (the paper's ablation). The paper leaves open, and we chose: the prompts,
letters or full texts, the order of SciQ's options, and that options that differ only in case are different (genetics
asks for ``Aa``), but not options that differ only in whitespace. Prompts contain neither MMLU's subject nor SciQ's
support.

An answer is named by a column's name, a letter, the option's text, or a number from 0 or 1. Among options that are
numbers, several readings fit a cell such as ``1``. All labelled rows of a source decide: the reading that fits them, if
no other does.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from curation.config.base import check_arguments
from curation.config.inputs import DomainTraits, make_greedy_defaults
from curation.domains import Domain, Example, attempt, format_cell, to_one_line
from curation.domains.identity import Identity, normalise_unicode, plain_identity
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text
from curation.json_types import Json, JsonView

LETTERS = "ABCDEFGH"
KEY = "domain.answer_is"
RIVAL = 0.98
"""Share of the best reading's rows from which another reading is a rival, if the two name different options."""
_LETTER = re.compile(r"[(\[]?([A-Ha-h])[)\].:]?")
_INTEGER = re.compile(r"(\d{1,3})(?:\.0+)?")
_ENDING = re.compile(r"\d+$|(?<=[a-z])[A-H]$|(?<=[_ -])[A-Ha-h]$")
CUE = "Answer:"
INSTRUCTION = 'Reason in a few sentences, then end with "The answer is (X)", where X is the letter of an option.'
_STATEMENT = re.compile(r"(?i:the answer is)[\s:*]*(?:\(([A-Z])\)|([A-Z])(?=[*\s]*(?:[.,;!\n]|$)))")


class ChoiceRow(NamedTuple):
    """A question in any format."""

    question: str
    choices: list[str]
    keys: list[str] | None
    """The names of the options, including ``key``; ``None`` if the file decides how answers name options."""
    key: Any
    """The answer, as the file has it; a number of the file's own type is not the text of an option."""
    columns: Sequence[str] = ()
    """The columns of the options; empty if the options are a list."""

    @property
    def text(self) -> str:
        """The answer as a text; ``RowError`` if it cannot be one."""
        return format_cell(self.key)


READINGS = ("column", "letter", "text", "number_from_0", "number_from_1")
"""Ways to read an answer; ``column`` is by a column's name, or the number or letter at its end."""


def read_answer(row: ChoiceRow, reading: str) -> int | None:
    """Return the place of the option that an answer names in one of the ``READINGS``, or None."""
    answer = row.text
    integer, letter = _INTEGER.fullmatch(answer), _LETTER.fullmatch(answer)
    place = -1
    if reading == "column":
        ends = [found[0].lstrip("0") or "0" if (found := _ENDING.search(name)) else "" for name in row.columns]
        end = integer or letter
        for names, text in ((row.columns, answer), (ends, end[1].lstrip("0") or "0" if end else "")):
            known = [name.casefold() for name in names]
            if text and known.count(text.casefold()) == 1:
                return known.index(text.casefold())
    elif reading == "text":
        for change in (str, normalise_unicode, lambda text: normalise_unicode(text).casefold()):
            wanted, *choices = [to_one_line(change(text)) for text in (answer, *row.choices)]
            if choices.count(wanted) == 1:
                return choices.index(wanted)
    elif reading == "letter" and letter:
        place = LETTERS.index(letter[1].upper())
    elif reading.startswith("number_from_") and integer:
        place = int(integer[1]) - int(reading[-1])
    return place if 0 <= place < len(row.choices) else None


def find_places(row: ChoiceRow) -> dict[str, int]:
    """Return the option that each reading finds that fits a row alone: numbers count from 0 in a list, as in MMLU."""
    is_number = isinstance(row.key, int | float) and not isinstance(row.key, bool)
    named = ("column" if row.columns else "number_from_0", "letter", "" if is_number else "text")
    return {name: place for name in READINGS if name in named and (place := read_answer(row, name)) is not None}


def choose_reading(rows: Iterable[ChoiceRow], where: str) -> str | None:
    """Return the reading of all labelled rows, or None if each is read alone.

    ``ConfigError``: two readings fit, and name different options.
    """
    counts = Counter[tuple[tuple[str, int], ...]]()  # of rows by the place that each fitting reading finds
    first: dict[tuple[tuple[str, int], ...], str] = {}
    is_alone = dict.fromkeys(READINGS, True)
    for row in rows:
        places = {name: place for name in READINGS if (place := read_answer(row, name)) is not None}
        alone = {*find_places(row).values()}
        for name in READINGS:
            is_alone[name] &= alone == ({places[name]} if name in places else set())
        key = (*places.items(),)
        counts[key] += 1
        if key not in first:
            first[key] = f"{quote_text(row.text)} of {', '.join(map(quote_text, row.choices))}"
    read = Counter[str]()
    for key, number in counts.items():
        read.update({name: number for name, _ in key})
    if not read:
        return None
    fits = [name for name in READINGS if read[name] >= RIVAL * max(read.values())]
    best = max(fits, key=read.__getitem__)
    for other in fits:
        both = {key: places for key in counts if {best, other} <= (places := dict(key)).keys()}
        if apart := [key for key, places in both.items() if places[best] != places[other]]:
            places = both[apart[0]]
            raise ConfigError(
                f"{KEY}: the answers of {where} are read in two ways: as {best} in {read[best]:,} of "
                f"{counts.total():,} rows, as {other} in {read[other]:,}, and in {sum(counts[key] for key in apart):,} "
                f"these are different options (the first: {first[apart[0]]} is {LETTERS[places[best]]} or "
                f"{LETTERS[places[other]]}); set {KEY} to the one that is meant, {best} or {other}"
            )
    return None if is_alone[best] else best


def find_place(row: ChoiceRow, reading: str | None) -> int:
    """Return the option that an answer names by the file's reading or, without one, by all that fit the row alone.

    ``RowError``: ``bad_answer``.
    """
    found: Mapping[str, int | None] = find_places(row) if reading is None else {reading: read_answer(row, reading)}
    places = {place for place in found.values() if place is not None}
    if len(places) == 1:
        return places.pop()
    if len(places) > 1:
        ways = " and ".join(f"{LETTERS[place]} as {name}" for name, place in find_places(row).items())
        raise RowError(f"bad_answer: {row.text!r} is {ways}; set {KEY} to the one that is meant")
    how = "as a letter, a text or a number" if reading is None else f"by {KEY}: {reading}"
    raise RowError(f"bad_answer: {row.text!r} names none of the options {', '.join(row.choices)} {how}")


class Mcqa(Domain):
    """The multiple-choice domain: reads the published rows of MMLU, ARC, OpenBookQA, SciQ and SocialIQA.

    Args:
        option_style: ``letters``: the prompt lists the options, the answer is a letter; ``texts``: the answer is the
            option's text.
        generative: generate some reasoning and a letter instead of scoring the options.
        choices: the columns with an option each, where rows have no list of them (CSV): two to eight.
        question: with ``choices``, the column with the question.
        answer: with ``choices``, the column with the right option.
        answer_is: how the right option of a list or of ``choices`` is named: ``column`` (its column's name, or the
            number or letter at the end of it), ``letter``, ``text``, ``number_from_0`` or ``number_from_1``. Unset, a
            run reads all labelled rows of a source in the one way that fits them, and refuses them where two do.
    """

    name = "mcqa"
    forms: tuple[tuple[str, ...], ...] = (
        ("question", "choices"),
        ("question_stem", "choices"),
        ("question", "correct_answer", "distractor1", "distractor2", "distractor3"),
        ("context", "question", "answerA", "answerB", "answerC"),
    )
    columns = pa.schema([("question", pa.string()), ("choices", pa.list_(pa.string()))])
    # options are scored; only signals of some arms generate text
    defaults = make_greedy_defaults(8, "world_knowledge", stop=("\n",))
    answering = "scored"
    settles = ("answer_is",)

    @classmethod
    def traits(cls, options: Mapping[str, object]) -> DomainTraits:
        """Return the traits: with ``generative``, several lines of at most 512 tokens (the paper gives no limit)."""
        if options.get("generative"):
            return DomainTraits(make_greedy_defaults(512, "world_knowledge"), "reasoned")
        return super().traits(options)

    @check_arguments
    def __init__(
        self,
        *,
        option_style: Literal["letters", "texts"] = "letters",
        generative: bool = False,
        choices: Sequence[str] = (),
        question: str = "question",
        answer: str = "answer",
        answer_is: Literal["column", "letter", "text", "number_from_0", "number_from_1"] | None = None,
    ) -> None:
        if generative and option_style != "letters":
            raise ConfigError("a generative answer names a letter; give option_style: letters")
        if choices and not 2 <= len(choices) <= len(LETTERS):
            raise ConfigError(f"choices is {choices!r}; give a list of 2 to {len(LETTERS)} columns")
        if answer_is == "column" and not choices:
            raise ConfigError(
                "answer_is: column is for rows with choices; give letter, text or a number, or leave it out"
            )
        self._answer_is = answer_is
        self._letters = option_style == "letters"
        self._generative, self.head = generative, INSTRUCTION if generative else ""
        self._choices, self._question_in, self._answer_in = tuple(choices), question, answer
        if choices:
            self.forms = ((question, *choices),)

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the question (SocialIQA's after its context) and the options, in the row's order (SciQ's shuffled)."""
        row = self._read_row(raw)
        return {"question": row.question, "choices": row.choices}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the right option's letter; ``None`` without an answer; ``RowError`` ``bad_answer`` of another one."""
        row = self._read_row(raw)
        if row.key is None or not (key := row.text):
            return None
        if row.keys is None:
            return LETTERS[find_place(row, self._answer_is)]
        if len(row.keys) != len(row.choices) or row.keys.count(key) != 1:
            raise RowError(f"bad_answer: {row.key!r} is not one of {', '.join(row.keys)}")
        return LETTERS[row.keys.index(key)]

    def settle(self, rows: Iterable[Mapping[str, object]], where: str) -> Json:
        """Return the reading that fits all answers of a source's labelled rows; ``ConfigError`` if two fit."""
        read = (attempt(self._read_row, raw)[0] for raw in rows)
        rows_of = (row for row in read if row and row.keys is None and attempt(format_cell, row.key)[0])
        reading = choose_reading(rows_of, where)
        return {} if reading is None else {"answer_is": reading}

    def _read_row(self, raw: Mapping[str, object]) -> ChoiceRow:
        if self._choices:
            texts = [_read_text(raw, name) for name in self._choices]
            row = ChoiceRow(_read_text(raw, self._question_in), texts, None, raw.get(self._answer_in), self._choices)
        elif "choices" in raw:
            row = _read_choices(raw)
        elif "distractor1" in raw:  # SciQ, whose order must not reveal the right option
            question, right = _read_text(raw, "question"), _read_text(raw, "correct_answer")
            texts = [right, *(_read_text(raw, f"distractor{number}") for number in (1, 2, 3))]
            texts.sort(key=lambda choice: hashlib.sha256(f"{question}\n{choice}".encode()).digest())
            row = ChoiceRow(question, texts, texts, right)
        else:  # SocialIQA
            texts = [_read_text(raw, f"answer{letter}") for letter in "ABC"]
            question = f"{_read_text(raw, 'context')} {_read_text(raw, 'question')}"
            row = ChoiceRow(question, texts, ["1", "2", "3"], raw.get("label"))
        if len(row.choices) < 2:
            raise RowError(f"no_options: the question has {len(row.choices)}, and needs 2 to {len(LETTERS)}")
        if len(row.choices) > len(LETTERS):
            raise RowError(f"too_many_options: the question has {len(row.choices)}, and may have {len(LETTERS)}")
        if len(set(map(to_one_line, row.choices))) < len(row.choices):
            raise RowError(f"duplicate_options: {row.choices}")
        return row

    def question(self, example: Example) -> str:
        """Return the question, the lettered options (if the answer is a letter), and the cue line."""
        if not self._letters:
            return f"Question: {example['question']}\n{CUE}"
        options = [f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, example["choices"], strict=False)]
        return f"{example['question']}\n{''.join(options)}{CUE}"

    def identity(self, example: Example) -> Identity:
        """Return the question and its options, independent of the option style."""
        return plain_identity(example["question"], example["choices"])

    def options(self, example: Example) -> tuple[str, ...] | None:
        """Return a space and the letter, or the text, of every option; ``None`` if the answer is generated."""
        return None if self._generative else self._list_answers(example)

    def num_answers(self, example: Example) -> int:
        """Return the number of options."""
        return len(example["choices"])

    def _list_answers(self, example: Example) -> tuple[str, ...]:
        choices = example["choices"]
        return tuple(f" {answer}" for answer in (LETTERS[: len(choices)] if self._letters else choices))

    def answer(self, label: str, example: Example) -> str:
        """Return the option's completion; after a generative prompt the closing statement without any reasoning."""
        return f" The answer is ({label})." if self._generative else self._list_answers(example)[LETTERS.index(label)]

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the letter of the option that the completion is or, with ``generative``, states at last; or None."""
        letters = LETTERS[: len(example["choices"])]
        if self._generative:
            stated = _STATEMENT.findall(completion)
            letter = "".join(stated[-1]) if stated else ""
            return letter if letter and letter in letters else None
        answers = map(to_one_line, self._list_answers(example))
        return dict(zip(answers, letters, strict=True)).get(to_one_line(completion))


def _read_choices(raw: JsonView) -> ChoiceRow:
    """Read a row in our format or MMLU's (a list), or in ARC's or OpenBookQA's (a struct, by label)."""
    question = _read_text(raw, "question_stem" if "question_stem" in raw else "question")
    listed = raw["choices"]
    struct = isinstance(listed, Mapping)
    texts = listed.get("text") if struct else listed
    if texts is None:
        raise RowError("null_field: choices is empty")
    if not isinstance(texts, list):
        raise RowError(f"no_options: choices is {texts!r}, not a list")
    named = {f"choices[{place}]": text for place, text in enumerate(texts)}
    choices = [_read_text(named, name) for name in named]
    if not struct:
        return ChoiceRow(question, choices, None, raw.get("answer", raw.get("answerKey")))
    names = listed.get("label") or ()
    if None in names:
        raise RowError("null_field: an option has no label")
    return ChoiceRow(question, choices, [str(name).strip() for name in names], raw.get("answerKey", raw.get("answer")))


def _read_text(raw: Mapping[str, object], name: str) -> str:
    text = raw[name]
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"null_field: {name} is {text!r}, not a text")
    return text.strip()
