"""Signals: scores that arms need beyond the labelling pass, one float per pool row, in a column of the labels table.

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
    "judge": "curation.signals.methods:JudgeVerdict",  # grades, and never selects
    "chosen_verdict": "curation.signals.methods:ChosenVerdict",  # likewise
}
"""The class of each built-in signal, by column of the labels table."""

READS_UNPARSED = frozenset({"judge"})
"""Signals that are also asked of rows without a label; arms that rank by other signals leave such rows out."""

ASKS_UNADAPTED = frozenset({"verbalized_confidence"})
"""Signals that ask an adapted teacher's original model, since a model that was trained to write only labels cannot
answer a question in words."""


@dataclass(frozen=True, kw_only=True)
class Weak:
    """The weak teacher's answer on a row."""

    label: str | None
    """The parsed label; None if the completion cannot be parsed."""
    completion: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one request."""

    completion: str
    """The generated text, or the most likely option."""
    mean_logprob: float | None
    """Mean natural-log probability of the completion's tokens; None for an empty completion."""
    option_logprobs: tuple[float, ...] | None = None
    """Summed natural-log probability of each option, in the request's order; None if the request had no options."""
    baselines: tuple[float, ...] | None = None
    """Scores subtracted from ``option_logprobs`` before the choice if it is calibrated (``Request.baselines``)."""


class SignalMethod(ABC):
    """A signal: one float per row, read from a model's answers; None for a row whose method raises ``RowError``."""

    name: str
    """The signal's column of the labels table."""

    @abstractmethod
    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return requests about a row, usually one; an empty list if nothing can be asked.

        The i-th requests of all rows are sent to the model together, with their own seed, so repeated ones are samples.
        """

    def decoding(self, base: DecodingConfig) -> DecodingConfig:
        """Return the decoding of answers, given that of weak labels or a judge; by default the same."""
        return base

    @abstractmethod
    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the signal from one answer per request, in order; None if nothing can be read."""


def get_signal(name: str, **options: object) -> SignalMethod:
    """Return the signal of a column, or of a class ``module:Class``; ``ConfigError`` if it refuses ``options``."""
    made_by = load_code(SIGNALS.get(name, name))
    check_options("signals.options", made_by, **options)
    return cast(SignalMethod, made_by(**options))


def matches_weak_label(domain: Domain, completion: str, example: Example, weak: Weak) -> bool:
    """Return whether a completion states the weak label; False if it cannot be parsed or compared."""
    label, _ = attempt(domain.parse, completion, example)
    if label is None or weak.label is None:
        return False
    return bool(attempt(domain.is_correct, label, weak.label)[0])


def label_request(domain: Domain, row_id: int, example: Example) -> Request:
    """Return the request of the labelling pass for a row; ``domain`` is adapted to the decoding (``as_asked``)."""
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
        baseline_prompts=tuple(domain.prompt(other) for other in blank),
    )
