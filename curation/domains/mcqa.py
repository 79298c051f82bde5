"""Multiple choice with two to eight options (paper, App. "Evaluation Details", world knowledge).

The label is the letter of an option, A to H. By default the options are scored as completions of the prompt;
``generative`` lets the teacher reason first (the paper's ablation). The paper leaves open, and we chose: the prompts,
letters or full texts, the order of SciQ's options, and that options that differ only in case are different (genetics
asks for ``Aa``), but not options that differ only in whitespace. Prompts contain neither MMLU's subject nor SciQ's
support.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from curation.config.defaults import DomainTraits, greedy
from curation.domains import Domain, Example, Identity, cell, plain_identity
from curation.errors import ConfigError, RowError
from curation.json_types import Json, JsonView

LETTERS = "ABCDEFGH"
CUE = "Answer:"
INSTRUCTION = 'Reason in a few sentences, then end with "The answer is (X)", where X is the letter of an option.'
_NUMBER = re.compile(r"\d+$")
_STATEMENT = re.compile(r"(?i:the answer is)[\s:*]*(?:\(([A-Z])\)|([A-Z])(?=[*\s]*(?:[.,;!\n]|$)))")


class Mcqa(Domain):
    """The multiple-choice domain: reads the published rows of MMLU, ARC, OpenBookQA, SciQ and SocialIQA.

    Args:
        option_style: ``letters``: the prompt lists the options, the answer is a letter; ``texts``: the answer is the
            option's text.
        generative: generate some reasoning and a letter instead of scoring the options.
        choices: the columns with an option each, where rows have no list of them (CSV): two to eight.
        question: with ``choices``, the column with the question.
        answer: with ``choices``, the column with the right option: its column's name, its letter, its text, or the
            number at the end of its column's name.

    Raises:
        ConfigError: the style is unknown, ``generative`` is set with ``texts``, or the columns are not two to eight.
    """

    name = "mcqa"
    forms: tuple[tuple[str, ...], ...] = (
        ("question", "choices"),
        ("question_stem", "choices"),
        ("question", "correct_answer", "distractor1", "distractor2", "distractor3"),
        ("context", "question", "answerA", "answerB", "answerC"),
    )
    columns = pa.schema([("question", pa.string()), ("choices", pa.list_(pa.string()))])
    defaults = greedy(8, "world_knowledge", stop=("\n",))  # options are scored; only signals of some arms generate text
    answering = "scored"

    @classmethod
    def traits(cls, options: Mapping[str, object]) -> DomainTraits:
        """With ``generative``, several lines of at most 512 tokens (the paper gives no limit)."""
        if options.get("generative"):
            return DomainTraits(greedy(512, "world_knowledge"), "reasoned")
        return super().traits(options)

    def __init__(
        self,
        *,
        option_style: Literal["letters", "texts"] = "letters",
        generative: bool = False,
        choices: Sequence[str] = (),
        question: str = "question",
        answer: str = "answer",
    ) -> None:
        if option_style not in ("letters", "texts"):
            raise ConfigError(f"option_style is {option_style!r}; give letters or texts")
        if generative and option_style != "letters":
            raise ConfigError("a generative answer names a letter; give option_style: letters")
        if isinstance(choices, str) or (choices and not 2 <= len(choices) <= len(LETTERS)):
            raise ConfigError(f"choices is {choices!r}; give a list of 2 to {len(LETTERS)} columns")
        self._letters = option_style == "letters"
        self._generative, self.head = generative, INSTRUCTION if generative else ""
        self._choices, self._question_in, self._answer_in = tuple(choices), question, answer
        if choices:
            self.forms = ((question, *choices),)

    def read(self, raw: Mapping[str, object]) -> Json:
        """The question (SocialIQA's after its context) and the options, in the row's order (SciQ's shuffled).

        Raises:
            RowError: ``null_field``, ``no_options``, ``too_many_options``, ``duplicate_options``.
        """
        row = self._row(raw)
        return {"question": row.question, "choices": row.choices}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """The letter of the right option; ``None`` if the row has no answer.

        Raises:
            RowError: as :meth:`read`; ``bad_answer`` if the answer is not exactly one of the options.
        """
        row = self._row(raw)
        key = "" if row.key is None else cell(row.key)
        if not key:
            return None
        if len(row.keys) != len(row.choices) or row.keys.count(key) != 1:
            raise RowError(f"bad_answer: {row.key!r} is not one of {', '.join(row.keys)}")
        return LETTERS[row.keys.index(key)]

    def _row(self, raw: Mapping[str, object]) -> "_ChoiceRow":
        if not self._choices:
            return _checked(_published(raw))
        texts = [_text(raw, name) for name in self._choices]
        answer = raw.get(self._answer_in)
        given = "" if answer is None else cell(answer)
        place = _place(given, self._choices, texts)
        key = given if place is None else self._choices[place]
        return _checked(_ChoiceRow(_text(raw, self._question_in), texts, list(self._choices), key))

    def question(self, example: Example) -> str:
        """The question, the lettered options (if the answer is a letter), and the cue line."""
        if not self._letters:
            return f"Question: {example['question']}\n{CUE}"
        options = [f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, example["choices"], strict=False)]
        return f"{example['question']}\n{''.join(options)}{CUE}"

    def identity(self, example: Example) -> Identity:
        """The question and its options, independent of the option style."""
        return plain_identity(example["question"], example["choices"])

    def options(self, example: Example) -> tuple[str, ...] | None:
        """A space and the letter, or the text, of every option; ``None`` if the answer is generated."""
        return None if self._generative else self._answers(example)

    def num_answers(self, example: Example) -> int:
        """The number of options."""
        return len(example["choices"])

    def _answers(self, example: Example) -> tuple[str, ...]:
        choices = example["choices"]
        return tuple(f" {answer}" for answer in (LETTERS[: len(choices)] if self._letters else choices))

    def answer(self, label: str, example: Example) -> str:
        """The option's completion; after a generative prompt the closing statement without any reasoning."""
        return f" The answer is ({label})." if self._generative else self._answers(example)[LETTERS.index(label)]

    def parse(self, completion: str, example: Example) -> str | None:
        """The letter of the option that equals the completion, up to whitespace; ``None`` if there is none.

        With ``generative``: the letter that the completion's last statement names.
        """
        letters = LETTERS[: len(example["choices"])]
        if self._generative:
            stated = _STATEMENT.findall(completion)
            letter = "".join(stated[-1]) if stated else ""
            return letter if letter and letter in letters else None
        answers = map(_squeeze, self._answers(example))
        return dict(zip(answers, letters, strict=True)).get(_squeeze(completion))


class _ChoiceRow(NamedTuple):
    """A question in any format. ``keys`` has a name per option; ``key`` is the one that the row's answer gives."""

    question: str
    choices: list[str]
    keys: list[str]
    key: Any


def _published(raw: Mapping[str, object]) -> _ChoiceRow:
    return _listed(raw) if "choices" in raw else _sciq(raw) if "distractor1" in raw else _socialiqa(raw)


def _checked(row: _ChoiceRow) -> _ChoiceRow:
    if len(row.choices) < 2:
        raise RowError(f"no_options: the question has {len(row.choices)}, and needs 2 to {len(LETTERS)}")
    if len(row.choices) > len(LETTERS):
        raise RowError(f"too_many_options: the question has {len(row.choices)}, and may have {len(LETTERS)}")
    if len(set(map(_squeeze, row.choices))) < len(row.choices):
        raise RowError(f"duplicate_options: {row.choices}")
    return row


def _listed(raw: JsonView) -> _ChoiceRow:
    """Reads our format and MMLU's (a list, answered by position), ARC's and OpenBookQA's (a struct, by label)."""
    question = _text(raw, "question_stem" if "question_stem" in raw else "question")
    listed = raw["choices"]
    struct = isinstance(listed, Mapping)
    texts = listed.get("text") if struct else listed
    if texts is None:
        raise RowError("null_field: choices is empty")
    if not isinstance(texts, list):
        raise RowError(f"no_options: choices is {texts!r}, not a list")
    choices = [_stripped(text, f"choices[{place}]") for place, text in enumerate(texts)]
    names = listed.get("label") or () if struct else range(len(choices))
    if None in names:
        raise RowError("null_field: an option has no label")
    return _ChoiceRow(
        question, choices, [str(name).strip() for name in names], raw.get("answerKey" if struct else "answer")
    )


def _sciq(raw: Mapping[str, object]) -> _ChoiceRow:
    """Options ordered by a hash of question and option, so that their order does not reveal the right one."""
    question, right = _text(raw, "question"), _text(raw, "correct_answer")
    choices = [right, *(_text(raw, f"distractor{number}") for number in (1, 2, 3))]
    choices.sort(key=lambda choice: hashlib.sha256(f"{question}\n{choice}".encode()).digest())
    return _ChoiceRow(question, choices, choices, right)


def _socialiqa(raw: Mapping[str, object]) -> _ChoiceRow:
    choices = [_text(raw, f"answer{letter}") for letter in "ABC"]
    return _ChoiceRow(f"{_text(raw, 'context')} {_text(raw, 'question')}", choices, ["1", "2", "3"], raw.get("label"))


def _text(raw: Mapping[str, object], name: str) -> str:
    return _stripped(raw[name], name)


def _stripped(text: object, name: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"null_field: {name} is {text!r}, not a text")
    return text.strip()


def _place(answer: str, columns: Sequence[str], texts: Sequence[str]) -> int | None:
    """The option that an answer names: its column, its letter, its text, or the number that ends its column's name."""
    numbers = [found[0].lstrip("0") or "0" if (found := _NUMBER.search(name)) else "" for name in columns]
    for names in (columns, LETTERS[: len(texts)], texts, numbers):
        known = [name.casefold() for name in names]
        if answer and known.count(answer.casefold()) == 1:
            return known.index(answer.casefold())
    return None


def _squeeze(text: str) -> str:
    return " ".join(text.split())
