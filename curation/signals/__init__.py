"""Signals: what an arm needs beyond the labelling pass, one float a pool row, stored as a column of the labels table.

A signal asks a model further questions about a row and its weak label (paper, App. "Baseline Details"). Each is one
file with one class and one line in ``curation.arms.TRUST``; :func:`curation.signals.measure.measure` asks, by any
teacher.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from curation import arms
from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import Constrained, get_given_completion
from curation.registry import check_options, load_code
from curation.teachers import Request

SIGNALS = {
    **{column: signal.made_by for column, signal in arms.find_signals(arms.ARMS).items()},
    "judge": "curation.signals.judge:JudgeVerdict",  # grades, and never selects
    "chosen_verdict": "curation.signals.judge:ChosenVerdict",  # likewise
}
"""The class of each signal that comes with this package, by column."""

READS_UNPARSED = frozenset({"judge"})
"""Signals that are asked of rows without a label, too; the others serve arms that rank, which leave those rows out."""

ASKS_UNADAPTED = frozenset({"verbalized_confidence"})
"""Signals that ask an adapted teacher's model as it was before: one that was taught to write labels and nothing else
cannot answer a question in words."""


@dataclass(frozen=True, kw_only=True)
class Weak:
    """The weak teacher's answer on a row."""

    label: str | None
    """None: unparsed."""
    completion: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one request."""

    completion: str
    """Generated, or the likeliest option."""
    mean_logprob: float | None
    """Mean natural-log probability of the completion's tokens; None for an empty one."""
    option_logprobs: tuple[float, ...] | None = None
    """Summed natural-log probability of each option, in the request's order; None where it had none."""
    baselines: tuple[float, ...] | None = None
    """Scores subtracted from these before one is chosen, where the choice is calibrated (``Request.baselines``)."""


class SignalMethod(ABC):
    """One float a row, read from a model's answers; a row for which a method raises ``RowError`` has none."""

    name: str
    """The column of the labels table."""

    @abstractmethod
    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return requests about a row, usually one question; none where nothing can be asked.

        The i-th requests of all rows go to the model together, with a seed of their own: repeated ones are samples.
        """

    def decoding(self, base: DecodingConfig) -> DecodingConfig:
        """Return how answers are drawn, given how the weak labels, or a judge's answers, are: by default alike."""
        return base

    @abstractmethod
    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the signal, from one answer a request, in their order; None where nothing can be read."""


def get_signal(name: str, **options: object) -> SignalMethod:
    """Return the signal of a column (``SIGNALS``), or of a class ``module:Class``, made with ``options``.

    Raises:
        ConfigError: options that the class does not take.
    """
    made_by = load_code(SIGNALS.get(name, name))
    check_options("signals.options", made_by, **options)
    return cast(SignalMethod, made_by(**options))


def matches_weak_label(domain: Domain, completion: str, example: Example, weak: Weak) -> bool:
    """Return whether a completion states the weak label; one that cannot be read, or compared, states another."""
    label, _ = attempt(domain.parse, completion, example)
    if label is None or weak.label is None:
        return False
    return bool(attempt(domain.is_correct, label, weak.label)[0])


def label_request(domain: Domain, row_id: int, example: Example) -> Request:
    """Return the question that the labelling pass asks of a row, by a domain as its decoding asks it (``as_asked``)."""
    options, stepwise = domain.options(example), isinstance(domain, Constrained) and domain.stepwise
    given = get_given_completion(domain, example)
    blank = () if options is None or stepwise else domain.content_free(example)
    return Request(
        row_id=row_id,
        prompt=domain.prompt(example),
        options=options,
        stepwise=stepwise,
        in_pairs=domain.in_pairs,
        given=given,
        content_free=tuple(domain.prompt(other) for other in blank),
    )
