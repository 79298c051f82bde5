"""Free text by configuration: a prompt from a template, a reference answer in a column, and a check.

Not one of the paper's tasks. The label is the whole completion without white space around it. ``check`` says when it is
right: a rule of this file; a judge, whom a stage of its own asks; or a user's command (``CHECKER``), which the grade
stage, rollouts and rewards run alone.
"""

import difflib
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field

from curation.config.base import check_arguments
from curation.config.external import Column
from curation.config.inputs import make_greedy_defaults
from curation.domains import Domain, Example, format_cell
from curation.domains.identity import normalise_prose
from curation.domains.templates import Template
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text
from curation.registry import load_code

CHECKER = "curation.extras.checker.command"
"""The module of the check by a command, imported when a domain names one."""
REMOVED = "command"
"""The option ``check`` of a trust package whose run graded by a command, which the package leaves out."""
Verdict = bool | RowError
"""Whether a completion is right, or the error if that is undecidable."""
_NUMBER = re.compile(
    r"(?:(?<![\w.,)\]])[-+\u2212])?"
    r"(?:(?:\d{1,3}(?:,\d{3})+|\d{1,300})(?:\.\d{1,300})?|(?<!\d)\.\d{1,300})(?:[eE][-+]?\d{1,4})?"
)
"""A number; a sign after a letter, a digit or a bracket is a dash or a minus of a difference."""
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class Check(ABC):
    """A grader of completions."""

    @property
    def digest(self) -> str | None:
        """Digest of the program that grades and of its files; None for a rule."""
        return None

    @abstractmethod
    def __call__(
        self, completions: Sequence[str], references: Sequence[str], rows: Sequence[Mapping[str, object]]
    ) -> list[Verdict]:
        """Return a verdict for each completion; ``rows`` are the columns of which each prompt was made."""


class _Rule(Check):
    """A check of one completion and one reference at a time."""

    def __call__(
        self, completions: Sequence[str], references: Sequence[str], rows: Sequence[Mapping[str, object]]
    ) -> list[Verdict]:
        """Return a verdict for each completion, without its row."""
        verdicts: list[Verdict] = []
        for completion, reference in zip(completions, references, strict=True):
            try:
                verdicts.append(self.right(completion, reference))
            except RowError as error:
                verdicts.append(error)
        return verdicts

    @abstractmethod
    def right(self, completion: str, reference: str) -> bool:
        """Return whether a completion is right, or raise ``RowError``: ``bad_reference``, ``check_failed``."""


class Equal(_Rule):
    """The texts are equal, without white space around them, and in one form of Unicode (NFC)."""

    def right(self, completion: str, reference: str) -> bool:
        """Return whether the texts are equal in this sense."""
        return unicodedata.normalize("NFC", completion.strip()) == unicodedata.normalize("NFC", reference.strip())


class Normalised(_Rule):
    """The texts are equal without letter case, white space, quotation marks and punctuation at words' ends."""

    def right(self, completion: str, reference: str) -> bool:
        """Return whether the normalised texts are equal (``curation.domains.identity.normalise_prose``)."""
        return normalise_prose(completion) == normalise_prose(reference)


Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Number(_Rule):
    """The last number of the completion is that of the reference, which is a number alone.

    Args:
        absolute: the largest difference.
        relative: the largest difference as a share of the reference; of 0, none. With both, either will do.
    """

    @check_arguments
    def __init__(self, *, absolute: Tolerance = 0, relative: Tolerance = 0) -> None:
        self._absolute, self._relative = Decimal(str(absolute)), Decimal(str(relative))

    def right(self, completion: str, reference: str) -> bool:
        """Return whether the numbers are equal, up to the tolerance."""
        if (wanted := _NUMBER.fullmatch(reference.strip())) is None:
            raise RowError(f"bad_reference: {quote_text(reference)} is not a number")
        if not (found := _NUMBER.findall(completion)):
            return False
        signs = str.maketrans({",": None, "\N{MINUS SIGN}": "-"})
        gold, answer = Decimal(wanted[0].translate(signs)), Decimal(found[-1].translate(signs))
        return gold == answer or abs(gold - answer) <= max(self._absolute, self._relative * abs(gold))


class JsonValue(_Rule):
    """The completion is a JSON value equal to the reference; in a fenced block, that."""

    def right(self, completion: str, reference: str) -> bool:
        """Return whether the values are equal; numbers compare by value, and true is not 1."""
        try:
            wanted = _parse_json(reference)
        except (ValueError, RecursionError):
            raise RowError(f"bad_reference: {quote_text(reference)} is not JSON") from None
        fenced = _FENCED.search(completion)
        try:
            return _equals(_parse_json(fenced[1] if fenced else completion), wanted)
        except (ValueError, RecursionError):
            return False


def _parse_json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def _equals(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equals(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equals, one, other))
    return bool(one == other)


KEY = "check.judge"
FIELDS = ("prompt", "reference", "answer")
"""Names that the template may read."""
PROMPT = """Task:
{{ prompt }}
{% if reference is defined %}
Reference answer:
{{ reference }}
{% endif %}
Answer to judge:
{{ answer }}

Is the answer to judge right{% if reference is defined %} by the reference answer{% endif %}? Reply with yes or no.
Reply:"""


Word = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]
"""A text without white space around it; ``yes`` and ``no`` are texts, too."""


class JudgeCheck(Normalised):
    """A check by a model that chooses between two words; called directly, it compares normalised texts.

    The model is that of the section ``judge``, which the stage :class:`curation.stages.signal.JudgeByChoice` asks. No
    stage can ask it about votes of several answers and the teacher's own rollouts of gold arms.

    Args:
        prompt: a Jinja template over ``prompt`` (what the teacher was asked), ``reference`` and ``answer``.
        right: the word that says right.
        wrong: the word that says wrong.
    """

    @check_arguments
    def __init__(self, *, prompt: str = PROMPT, right: Word = "yes", wrong: Word = "no") -> None:
        self._template = Template(prompt, key=f"{KEY}.prompt")
        for name in self._template.columns:
            if name not in FIELDS:
                near = difflib.get_close_matches(name, FIELDS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{KEY}.prompt: reads {name!r}, and it has {', '.join(FIELDS)} alone{hint}")
        if "answer" not in self._template.columns:
            raise ConfigError(
                f"{KEY}.prompt: does not read the answer, so that all answers to a row would have one verdict; put "
                "{{ answer }} in it"
            )
        if right.lower() == wrong.lower():
            raise ConfigError(f"{KEY}.wrong: {wrong!r} is also the word for right; give another one")
        self._words = right, wrong

    def question(self, prompt: str, reference: str | None, answer: str) -> str:
        """Return the judge's prompt about an answer, or raise as the template; without reference, it lacks the name."""
        fields: Mapping[str, object] = {"prompt": prompt, "answer": answer}
        return self._template.render(fields if reference is None else {**fields, "reference": reference})

    def options(self, question: str) -> tuple[str, str]:
        """Return the words for right and wrong as they continue a prompt: after a space, unless it ends in one."""
        space = "" if question[-1:].isspace() else " "
        right, wrong = self._words
        return f"{space}{right}", f"{space}{wrong}"


_RULES: Mapping[str, Any] = {
    "equal": Equal,
    "normalised": Normalised,
    "number": Number,
    "json": JsonValue,
    "judge": JudgeCheck,
}


def check_of(value: object) -> Check | None:
    """Return the check that the option names, alone or with options in a mapping; or raise ``ConfigError``.

    None stands for the command of a trust package, which brings none.
    """
    if value == REMOVED:
        return None
    if isinstance(value, str) and value in _RULES:
        value = {value: {}}
    name = next(iter(value), "") if isinstance(value, Mapping) else ""
    if isinstance(value, Mapping) and "command" in value:
        name, made_by, options = "command", load_code(f"{CHECKER}:CommandCheck"), value
    elif isinstance(value, Mapping) and len(value) == 1 and name in _RULES:
        made_by, options = _RULES[name], value[name]
    else:
        raise ConfigError(
            f"check: {value!r} is none of {', '.join((*_RULES, 'command'))}; give one, or one with its options, as "
            "{number: {relative: 0.01}} or {command: [python, check.py]}"
        )
    if not isinstance(options, Mapping):
        raise ConfigError(f"check.{name}: {options!r} is not a mapping of options; docs/data-forms.md lists them")
    try:
        check: Check = made_by(**options)
    except (ConfigError, TypeError) as error:
        where = "" if str(error).startswith("check.") else f"check.{name}: "
        raise ConfigError(f"{where}{error}; docs/data-forms.md lists its options") from error
    return check


class Text(Domain):
    """The domain of free text with a reference answer.

    Args:
        prompt: a Jinja template over the columns, in a sandbox (:mod:`curation.domains.templates`).
        reference: the column with the reference answer.
        check: how a completion is graded: ``equal``, ``normalised``, ``number``, ``json``, ``judge`` or ``command``,
            or a mapping of one of them to its options.
    """

    name = "text"
    columns = pa.schema([("question", pa.string()), ("fields", pa.string())])
    """``question``: the rendered prompt. ``fields``: the columns that the template reads, as a JSON object."""
    defaults = make_greedy_defaults(256, "quantitative_reasoning")
    answering = "written"

    @check_arguments
    def __init__(self, *, prompt: str, reference: Column, check: object = "equal") -> None:
        self._template, self._reference, self._check = Template(prompt, key="domain.prompt"), reference, check_of(check)
        if reference in self._template.columns:
            raise ConfigError(
                f"domain.prompt: reads {reference!r}, the column with the reference answer, so that the teacher would "
                "see it; take it out"
            )
        self.forms = (self._template.columns,)

    @property
    def checker(self) -> str | None:
        """A digest of the checking command and its files, or ``None``; ``ConfigError`` if one is missing."""
        return None if self._check is None else self._check.digest

    @property
    def is_equality(self) -> bool:
        """Whether the rule is ``equal``."""
        return isinstance(self._check, Equal)

    def read(self, raw: Mapping[str, object]) -> dict[str, Any]:
        """Return the rendered prompt and the columns that it reads."""
        question = self._template.render(raw)
        if not question.strip():
            raise RowError("null_field: the prompt is empty")
        fields = {name: raw[name] for name in self._template.columns}
        return {"question": question, "fields": json.dumps(fields, default=str, ensure_ascii=False)}

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the reference answer, with lists, mappings and booleans as JSON; ``None`` if the row has none."""
        value = raw.get(self._reference)
        if value is None:
            return None
        is_json = isinstance(value, Mapping | list | bool)
        return json.dumps(value, default=str, ensure_ascii=False) if is_json else format_cell(value)

    def question(self, example: Example) -> str:
        """Return the rendered prompt."""
        return str(example["question"])

    def answer(self, label: str, example: Example) -> str:
        """Return the label, after a space unless the prompt ends in white space."""
        return label if str(example.get("question", ""))[-1:].isspace() else f" {label}"

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether the rule says right; for a command, which grades rows (:meth:`check`), whether texts agree."""
        if label is None:
            return False
        if not isinstance(self._check, _Rule):
            return normalise_prose(label) == normalise_prose(gold)
        (verdict,) = self._check([label], [gold], [])
        if isinstance(verdict, RowError):
            raise verdict
        return verdict

    def gold_problem(self, gold: str, example: Example) -> str:
        """Return the domain's own reason, or "" if a program grades."""
        return super().gold_problem(gold, example) if isinstance(self._check, _Rule) else ""

    def check(self, labels: Sequence[str | None], golds: Sequence[str], examples: Sequence[Example]) -> list[Verdict]:
        """Return a verdict for each row, by the rule or the command; an unparsed label is wrong."""
        if self._check is None:
            raise ConfigError(
                "check: these rows are graded by a command, and a trust package brings none; give check: {command: "
                "[...]}"
            )
        asked = [place for place, label in enumerate(labels) if label is not None]
        is_rule = isinstance(self._check, _Rule)
        rows = [] if is_rule else [json.loads(examples[place]["fields"]) for place in asked]
        verdicts = self._check([str(labels[place]) for place in asked], [golds[place] for place in asked], rows)
        by_place = dict(zip(asked, verdicts, strict=True))
        return [by_place.get(place, False) for place in range(len(labels))]
