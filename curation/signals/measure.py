"""Computes signals of many rows by asking a teacher, and rewards by a model with a reward head."""

import math
from collections.abc import Callable, Iterable

from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import as_asked
from curation.hashing import derive
from curation.signals import READS_UNPARSED, Answer, SignalMethod, Weak
from curation.teachers import Teacher
from curation.teachers.reward import RewardModel
from curation.teachers.wrapped import WrappedTeacher

Row = tuple[int, Example, Weak]
"""Row id, example and weak label of a healthy row."""
_READ = ["row_id", "completion", "mean_logprob", "option_logprobs", "error"]


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
    """Return the signal of each row by row id; None if it cannot be asked, answered or read.

    ``decoding`` is that of the labelling pass; ``on_batch`` is called for each batch of answers. Only signals of
    ``READS_UNPARSED`` are asked of unparsed rows.
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
    """Return the reward of each row's weak answer by row id, a real number, or None if it cannot be computed.

    Unparsed rows have no reward, since arms that rank leave them out.
    """
    values: dict[int, float | None] = {}
    pairs: dict[int, tuple[str, str]] = {}
    for row_id, example, weak in rows:
        values[row_id] = None
        prompt, _ = attempt(domain.prompt, example)
        if prompt is not None and weak.label is not None:
            pairs[row_id] = (prompt, weak.completion)
    scores = model.score(list(pairs.values())).tolist()
    return values | {row_id: score for row_id, score in zip(pairs, scores, strict=True) if math.isfinite(score)}
