"""Completions of a domain: their format, and wrappers for constrained decoding and for labels made elsewhere.

Completions of all arms must have one format, bare answers or rollouts, otherwise recovery measures the format. A
completion is a bare answer if it is the domain's own sentence for its label, and a rollout otherwise. Completions,
grades and numbers of labels made elsewhere are columns of the source.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from curation.config import DecodingConfig
from curation.config.external import GivenConfig
from curation.domains import Domain, Example, attempt, format_cell
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text
from curation.json_types import Json
from curation.label_columns import WEAK_COMPLETION
from curation.tables.schemas import GIVEN_TYPE

Format = Literal["answer", "rollout", "label"]
"""Format of completions; ``label`` means that students learn from labels alone, whatever the completions are."""
GoldSource = Literal["answer", "solution", "sample", "label"]
"""The completions of gold arms: the domain's sentence, worked solutions, right rollouts, or labels alone."""
GoldWanted = Literal["auto", "solutions", "samples", "answers"]
"""Values of ``selection.gold_rollouts.source``."""

NEARLY_ALL = 0.95
"""Minimum share of bare answers, or of rows with solutions, that counts as all (our choice)."""


def is_bare(domain: Domain, completion: str, label: str, example: Example) -> bool:
    """Return whether a completion is only its label, apart from surrounding white space; a chosen option always is."""
    if attempt(domain.options, example)[0] is not None:
        return True
    answer, _ = attempt(domain.answer, label, example)
    return answer is not None and completion.strip() == answer.strip()


def choose_format(num_bare: int, num_rows: int) -> Format:
    """Return the format of ``num_rows`` completions of which ``num_bare`` are bare answers; ``answer`` without rows."""
    return "answer" if num_bare >= NEARLY_ALL * num_rows else "rollout"


def choose_gold_source(weak: Format, wanted: GoldWanted, *, num_gold: int, num_solved: int) -> GoldSource:
    """Return the source of gold arms' completions, given the weak arms' format (``selection.gold_rollouts.source``).

    ``num_solved`` of the ``num_gold`` rows with a gold label have a worked solution. Solutions and samples are never
    mixed; otherwise the rows of an arm would differ in more than their labels.
    """
    if weak == "answer" or wanted == "answers":
        return "answer"
    if wanted == "auto":
        return "solution" if num_solved and num_solved >= NEARLY_ALL * num_gold else "sample"
    return "solution" if wanted == "solutions" else "sample"


class _DomainWrapper:
    """A wrapper of a domain, to which it delegates all members that it does not define."""

    _domain: Domain

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("_domain", "_given"):  # a copy looks them up before it has them
                raise AttributeError(name)
            return getattr(self._domain, name)


class Constrained(_DomainWrapper):
    """A domain with its ``candidates`` as options."""

    def __init__(self, domain: Domain, *, stepwise: bool) -> None:
        self._domain = domain
        self.stepwise = stepwise
        """Whether answers are drawn token by token instead of scored as a whole."""

    def options(self, example: Example) -> tuple[str, ...] | None:
        """Return the possible answers of a row, or ``None`` if the domain does not list them."""
        return self._domain.candidates(example)


def as_asked(domain: Domain, decoding: DecodingConfig) -> Domain:
    """Return the domain as ``decoding`` asks it: with ``constrained``, by its listed answers."""
    if not decoding.constrained:
        return domain
    return cast(Domain, Constrained(domain, stepwise=decoding.constrained == "stepwise"))


RIGHT, WRONG = "grade: right", "grade: wrong"
"""Gold labels of graded rows: they say whether the given label is right, not what the right one is."""
GRADES = {"1": RIGHT, "true": RIGHT, "0": WRONG, "false": WRONG}
"""Values of a grade column in lower case, and their gold labels."""


class GivenLabels(_DomainWrapper):
    """A wrapper of a domain that also reads the columns with labels made elsewhere.

    ``ConfigError`` if the domain has a column with the name of one that the wrapper adds.

    The domain may have two methods: ``unordered`` returns the domain for rows whose answers are shown in the order of
    their columns; ``restated`` turns a text that it cannot parse into a completion with the same answer, or None.
    """

    def __init__(self, domain: Domain, given: GivenConfig) -> None:
        unordered = getattr(domain, "unordered", None)
        self._domain = domain if unordered is None else unordered()
        self._given = given
        self.given_numbers = tuple(given.numbers.values())
        """The columns of the numbers."""
        numbers = [pa.field(name, GIVEN_TYPE) for name in self.given_numbers]
        added = [pa.field(WEAK_COMPLETION, pa.string()), *numbers]
        if taken := {field.name for field in added} & set(domain.columns.names):
            raise ConfigError(
                f"domain: {domain.name} has a column {min(taken)!r} of its own, and labels made elsewhere "
                "need that name; rename it"
            )
        self.columns = pa.schema([*domain.columns, *added])
        """The domain's own columns, the completion, and the numbers."""

    @property
    def forms(self) -> tuple[tuple[str, ...], ...]:
        """The domain's own row formats, each with the columns of completion and numbers."""
        named = (self._given.completion, *self._given.confidence)
        return tuple(tuple(dict.fromkeys((*form, *named))) for form in self._domain.forms)

    def read(self, raw: Mapping[str, object]) -> Json:
        """Return the domain's example, completion and numbers; ``RowError`` ``null_field``, ``bad_value`` of these."""
        example, name = dict(self._domain.read(raw)), self._given.completion
        if raw[name] is None or not (completion := format_cell(raw[name])):
            raise RowError(f"null_field: {name} is empty")
        example[WEAK_COMPLETION] = completion
        for source, column in self._given.numbers.items():
            value: Any = raw[source]
            try:
                number = None if value is None or not format_cell(value) else float(value)
            except (TypeError, ValueError):
                raise RowError(f"bad_value: {source} is {quote_text(format_cell(value))}, not a number") from None
            example[column] = number if number is not None and math.isfinite(number) else None
        return example

    def gold(self, raw: Mapping[str, object]) -> str | None:
        """Return the row's grade, ``RIGHT`` or ``WRONG`` (``RowError``: ``bad_grade``), or the domain's gold label."""
        name = self._given.grade
        if name is None or (value := raw.get(name)) is None:
            return self._domain.gold(raw)
        if (grade := GRADES.get(format_cell(value).lower())) is None:
            raise RowError(f"bad_grade: {name} is {quote_text(format_cell(value))}, not one of {', '.join(GRADES)}")
        return grade

    def is_correct(self, label: str | None, gold: str) -> bool:
        """Return whether the grade or, without one, the domain says right; an unparsed label is wrong."""
        if gold in (RIGHT, WRONG):
            return label is not None and gold == RIGHT
        return self._domain.is_correct(label, gold)

    def check(
        self, labels: Sequence[str | None], golds: Sequence[str], examples: Sequence[Example]
    ) -> list[bool | RowError]:
        """Return the grades of rows that have one, and the domain's verdicts on the others."""
        asked = [place for place, gold in enumerate(golds) if gold not in (RIGHT, WRONG)]
        verdicts = self._domain.check(
            [labels[place] for place in asked], [golds[place] for place in asked], [examples[place] for place in asked]
        )
        by_place = dict(zip(asked, verdicts, strict=True))
        pairs = enumerate(zip(labels, golds, strict=True))
        return [by_place.get(place, label is not None and gold == RIGHT) for place, (label, gold) in pairs]

    def gold_problem(self, gold: str, example: Example) -> str:
        """Return the domain's own reason, or "" for a grade, which says only whether the given label is right."""
        return "" if gold in (RIGHT, WRONG) else self._domain.gold_problem(gold, example)

    def given_completion(self, example: Example) -> str:
        """Return a row's completion as a teacher of the domain writes it: of a bare label the domain's sentence."""
        text: str = example[WEAK_COMPLETION]
        label, _ = attempt(self._domain.parse, text, example)
        if label is None:  # no two classes differ by case alone
            label = self._by_case.get(" ".join(text.split()).casefold())
            text = text if label is None else label
        if label is not None:
            return self._domain.answer(label, example) if is_bare(self._domain, text, label, example) else text
        if (restated := getattr(self._domain, "restated", None)) is not None:
            return restated(text) or text
        sentence, _ = attempt(self._domain.answer, text, example)
        if sentence is not None and attempt(self._domain.parse, sentence, example)[0] == text:
            return sentence
        return text

    @cached_property
    def _by_case(self) -> dict[str, str]:
        """Labels of a closed set by their case-folded names and words."""
        labels = self._domain.closed_labels() or ()
        words = {label: attempt(self._domain.answer, label, {})[0] or label for label in labels}
        return {" ".join(text.split()).casefold(): label for label in labels for text in (words[label], label)}


def get_given_completion(domain: Domain, example: Example) -> str | None:
    """Return the completion that came with a row (:meth:`GivenLabels.given_completion`); ``None`` in other domains."""
    given = getattr(domain, "given_completion", None)
    return None if given is None else str(given(example))


def get_given_numbers(domain: Domain) -> tuple[str, ...]:
    """Return the columns of numbers that came with labels made elsewhere; none for other domains."""
    return getattr(domain, "given_numbers", ())
