"""Multiple choice with two to eight options (paper, App. "Evaluation Details", world knowledge).

The label is the letter of an option, A to H. By default the options are scored as completions of the prompt;
``generative`` lets the teacher reason first (the paper's ablation). The paper leaves open, and we chose: the prompts,
letters or full texts, the order of SciQ's options, and that options that differ only in case are different (genetics
asks for ``Aa``), but not options that differ only in whitespace. Prompts contain neither MMLU's subject nor SciQ's
support.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from curation.config.base import check_arguments
from curation.config.defaults import DomainTraits, make_greedy_defaults
from curation.domains import Domain, Example, SettledOptions, attempt, format_cell
from curation.domains.answer_readings import LETTERS, AnswerTally, StatedAnswer, find_place, squeeze_spaces
from curation.domains.identity import Identity, plain_identity
from curation.errors import ConfigError, RowError
from curation.json_types import Json, JsonView

CUE = "Answer:"
INSTRUCTION = 'Reason in a few sentences, then end with "The answer is (X)", where X is the letter of an option.'
_STATEMENT = re.compile(r"(?i:the answer is)[\s:*]*(?:\(([A-Z])\)|([A-Z])(?=[*\s]*(?:[.,;!\n]|$)))")


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
        key = "" if row.key is None else format_cell(row.key)
        if not key:
            return None
        if row.keys is not None:
            if len(row.keys) != len(row.choices) or row.keys.count(key) != 1:
                raise RowError(f"bad_answer: {row.key!r} is not one of {', '.join(row.keys)}")
            return LETTERS[row.keys.index(key)]
        return LETTERS[find_place(self._make_stated(row), self._answer_is)]

    def _make_stated(self, row: "_ChoiceRow") -> StatedAnswer:
        is_number = isinstance(row.key, int | float) and not isinstance(row.key, bool)
        return StatedAnswer(format_cell(row.key), is_number, row.choices, self._choices)

    def settle(self, rows: Iterable[Mapping[str, object]], where: str) -> SettledOptions:
        """Return the reading that fits all answers of a source's labelled rows; ``ConfigError`` if two fit."""
        tally = AnswerTally()
        for raw in rows:
            row, _ = attempt(self._read_row, raw)
            if row is not None and row.keys is None and attempt(format_cell, row.key)[0]:
                tally.add(self._make_stated(row))
        reading, warning = tally.decide(where)
        return SettledOptions({} if reading is None else {"answer_is": reading}, warning)

    def _read_row(self, raw: Mapping[str, object]) -> "_ChoiceRow":
        if self._choices:
            texts = [_read_text(raw, name) for name in self._choices]
            row = _ChoiceRow(_read_text(raw, self._question_in), texts, None, raw.get(self._answer_in))
        elif "choices" in raw:
            row = _read_choices(raw)
        elif "distractor1" in raw:  # SciQ, whose order must not reveal the right option
            question, right = _read_text(raw, "question"), _read_text(raw, "correct_answer")
            texts = [right, *(_read_text(raw, f"distractor{number}") for number in (1, 2, 3))]
            texts.sort(key=lambda choice: hashlib.sha256(f"{question}\n{choice}".encode()).digest())
            row = _ChoiceRow(question, texts, texts, right)
        else:  # SocialIQA
            texts = [_read_text(raw, f"answer{letter}") for letter in "ABC"]
            question = f"{_read_text(raw, 'context')} {_read_text(raw, 'question')}"
            row = _ChoiceRow(question, texts, ["1", "2", "3"], raw.get("label"))
        if len(row.choices) < 2:
            raise RowError(f"no_options: the question has {len(row.choices)}, and needs 2 to {len(LETTERS)}")
        if len(row.choices) > len(LETTERS):
            raise RowError(f"too_many_options: the question has {len(row.choices)}, and may have {len(LETTERS)}")
        if len(set(map(squeeze_spaces, row.choices))) < len(row.choices):
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
        answers = map(squeeze_spaces, self._list_answers(example))
        return dict(zip(answers, letters, strict=True)).get(squeeze_spaces(completion))


class _ChoiceRow(NamedTuple):
    """A question in any format; ``key`` is its answer."""

    question: str
    choices: list[str]
    keys: list[str] | None
    """The names of the options, including ``key``; ``None`` if the file decides how answers name options."""
    key: Any


def _read_choices(raw: JsonView) -> _ChoiceRow:
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
        return _ChoiceRow(question, choices, None, raw.get("answer", raw.get("answerKey")))
    names = listed.get("label") or ()
    if None in names:
        raise RowError("null_field: an option has no label")
    return _ChoiceRow(question, choices, [str(name).strip() for name in names], raw.get("answerKey", raw.get("answer")))


def _read_text(raw: Mapping[str, object], name: str) -> str:
    text = raw[name]
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"null_field: {name} is {text!r}, not a text")
    return text.strip()
