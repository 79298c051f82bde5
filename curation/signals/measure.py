"""Computes signals of many rows by asking a teacher, and rewards by a model with a reward head; and their table.

The table of a signal's values is filled while the same model labels rows, or by a pass of its own.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import as_asked
from curation.hashing import derive
from curation.json_types import JsonView
from curation.refs import TableRef, fingerprint
from curation.signals import READS_UNPARSED, Answer, SignalMethod, Weak
from curation.storage.inside import run_around, to_record
from curation.storage.paths import Place
from curation.tables import commits, io, schemas
from curation.teachers import Teacher
from curation.teachers.reward import RewardModel
from curation.teachers.wrapped import WrappedTeacher

Row = tuple[int, Example, Weak]
"""Row id, example and weak label of a healthy row."""
Values = Mapping[int, float | None]
"""Values by row id; None if the signal's question cannot be made, answered or read."""
NO_ERRORS: Mapping[int, str] = MappingProxyType({})
_READ = ["row_id", "completion", "mean_logprob", "option_logprobs", "error"]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A signal and the place of its values; pickled to every actor."""

    signal: str
    options: JsonView = field(default_factory=dict)
    seed: int
    uri: str

    def write(self, values: Values, errors: Mapping[int, str] = NO_ERRORS, *, note: JsonView | None = None) -> pa.Table:
        """Write values and errors as a fragment; return its row of ``commits.WRITTEN``, or no row if both are empty."""
        if not values and not errors:
            return commits.WRITTEN.empty_table()
        columns = {
            "row_id": [*values, *errors],
            "value": [*values.values(), *[None] * len(errors)],
            "error": [*[None] * len(values), *errors.values()],
        }
        return commits.write_fragment(pa.table(columns, schema=schemas.SIGNAL), self.uri, schemas.SIGNAL, note=note)


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

    ``attempts``: number of times it was measured again by request (``--redo``), each time into a table of its own.
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
    """Return the signals to measure as rows are labelled, given by name as arguments of ``ask_of`` and a ``stage``.

    ``attempts``: number of times each stage was redone by request, by its name.
    """
    found = []
    for signal, how in signals.items():
        arguments = {key: value for key, value in how.items() if key != "stage"}
        found.append(ask_of(signal, **arguments, directory=directory, attempts=attempts.get(how["stage"], 0)))
    return tuple(found)


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
