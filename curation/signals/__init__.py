"""Signals: scores that arms need beyond the labelling pass, one float per pool row, in a column of the labels table.

A signal asks a model further questions about a row and its weak label (paper, App. "Baseline Details"). Each is one
file with one class and one line in ``curation.arms.TRUST``; :func:`measure` asks, by any teacher. A table of a
signal's values is filled while the same model labels rows, or by a pass of its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

import pyarrow as pa

from curation import arms
from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import Constrained, as_asked, get_given_completion
from curation.hashing import derive
from curation.json_types import JsonView
from curation.refs import TableRef, fingerprint
from curation.registry import check_options, load_code
from curation.storage.inside import run_around, to_record
from curation.storage.paths import Place
from curation.tables import commits, io, schemas
from curation.teachers import Request, Teacher
from curation.teachers.reward import RewardModel
from curation.teachers.wrapped import WrappedTeacher

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
    check_options("signals.options", made_by, options)
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


Row = tuple[int, Example, Weak]
"""Row id, example and weak label of a healthy row."""
Values = Mapping[int, float | None]
"""Values by row id; None if the signal's question cannot be made, answered or read."""
_READ = ["row_id", "completion", "mean_logprob", "option_logprobs", "error"]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A signal and the place of its values; pickled to every actor."""

    signal: str
    options: JsonView = field(default_factory=dict)
    seed: int
    uri: str

    def write(self, values: Values) -> pa.Table:
        """Write values as a fragment; return its row of ``commits.WRITTEN``, or no row if there are none."""
        if not values:
            return commits.WRITTEN.empty_table()
        columns = {"row_id": [*values], "value": [*values.values()], "error": [None] * len(values)}
        return commits.write_fragment(pa.table(columns, schema=schemas.SIGNAL), self.uri, schemas.SIGNAL)


def ask_of(
    signal: str,
    *,
    seed: int,
    options: Mapping[str, object],
    shots: TableRef | None,
    directory: Place,
    attempts: int = 0,
) -> Ask:
    """Return a signal whose table is in ``directory``, with a name that is unique to its settings.

    ``attempts``: how often it was measured again by request (``--redo``), each time into another table.
    """
    table = None if shots is None else to_record(shots.to_json(), run_around(directory))
    settings = {"options": options, "shots": table, "seed": seed}
    again = f".{attempts}" if attempts else ""
    name = f"{signal}-{fingerprint(settings)[:8]}{again}.lance"
    if shots is not None:
        options = {**options, "shots": io.read(shots, filter="error IS NULL").to_pylist()}
    return Ask(signal=signal, options=options, seed=seed, uri=str(directory / name))


def make_asks(
    signals: Mapping[str, JsonView], directory: Place, attempts: Mapping[str, int] = MappingProxyType({})
) -> tuple[Ask, ...]:
    """Return the signals to measure while rows are labelled; ``signals`` has arguments of ``ask_of`` and a ``stage``.

    ``attempts``: number of times each stage was redone by request, by its name.
    """
    asks = []
    for signal, settings in signals.items():
        arguments = {key: value for key, value in settings.items() if key != "stage"}
        asks.append(ask_of(signal, **arguments, directory=directory, attempts=attempts.get(settings["stage"], 0)))
    return tuple(asks)


def measure(
    signal: SignalMethod,
    domain: Domain,
    teacher: Teacher,
    rows: Iterable[Row],
    decoding: DecodingConfig,
    *,
    seed: int,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[int, float | None]:
    """Return the signal of each row by row id; only signals of ``READS_UNPARSED`` are asked of unparsed rows.

    ``decoding`` is that of the labelling pass; ``on_batch`` is called for each batch of answers.
    """
    domain = as_asked(domain, decoding)
    by_id = {row_id: (example, weak) for row_id, example, weak in rows}
    asked = {
        row_id: attempt(signal.requests, domain, row_id, example, weak)[0] or []
        for row_id, (example, weak) in by_id.items()
        if weak.label is not None or signal.name in READS_UNPARSED
    }
    answers: dict[int, list[Answer]] = {row_id: [] for row_id in asked}
    for turn in range(max(map(len, asked.values()), default=0)):
        requests = [of_row[turn] for of_row in asked.values() if len(of_row) > turn]
        asking = {request.row_id: request for request in requests}
        seed_of_turn = derive(seed, f"{signal.name}/{turn}")
        drawn = teacher.label(requests, signal.decoding(decoding), seed=seed_of_turn, states=False)
        for batch in drawn:
            on_batch()
            for row in batch.select(_READ).to_pylist():
                if row.pop("error") is None:
                    options, row_id = row.pop("option_logprobs"), row.pop("row_id")
                    less = teacher.baselines_of(asking[row_id]) if isinstance(teacher, WrappedTeacher) else None
                    scores = None if options is None else tuple(options)
                    answers[row_id].append(Answer(**row, option_logprobs=scores, baselines=less))
    values: dict[int, float | None] = dict.fromkeys(by_id)
    for row_id, requests in asked.items():
        if requests and len(answers[row_id]) == len(requests):
            example, weak = by_id[row_id]
            value, _ = attempt(signal.value, domain, example, weak, answers[row_id])
            values[row_id] = value if value is not None and math.isfinite(value) else None
    return values


def compute_rewards(model: RewardModel, domain: Domain, rows: Iterable[Row]) -> dict[int, float | None]:
    """Return the reward of each row's weak answer by row id; None for unparsed rows, and if it cannot be computed."""
    values: dict[int, float | None] = {}
    pairs: dict[int, tuple[str, str]] = {}
    for row_id, example, weak in rows:
        values[row_id] = None
        prompt, _ = attempt(domain.prompt, example)
        if prompt is not None and weak.label is not None:
            pairs[row_id] = (prompt, weak.completion)
    scores = model.score(list(pairs.values())).tolist()
    return values | {row_id: score for row_id, score in zip(pairs, scores, strict=True) if math.isfinite(score)}
