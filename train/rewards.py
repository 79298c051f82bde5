"""Rewards of a student's answers: whether an answer's label equals that of its row, by the domain's own rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from curation.domains import Domain, Example, attempt
from curation.domains.grading import check_labels
from curation.errors import RowError
from curation.escaping import format_error


@dataclass(frozen=True, kw_only=True)
class RolloutTask:
    """A row to learn from."""

    row_id: int
    prompt: list[int]
    """Token ids."""
    example: Example
    label: str | None
    """The trusted label: the teacher's, or in gold arms the gold one; ``None`` if unparsed (no answer is right)."""


class AnswerReward(NamedTuple):
    """The reward of an answer and its reasons."""

    reward: float
    right: bool
    parsed: bool
    problem: str | None
    """The reason why the domain could not grade the answer, whose reward is then 0."""


def grade(
    domain: Domain, tasks: Sequence[RolloutTask], texts: Sequence[str], *, format_reward: float
) -> list[AnswerReward]:
    """Return each answer's reward: 1 if it is right, plus ``format_reward`` if a label can be read from it."""
    read = [attempt(domain.parse, text, task.example) for task, text in zip(tasks, texts, strict=True)]
    asked = [
        place
        for place, (task, (_, problem)) in enumerate(zip(tasks, read, strict=True))
        if not problem and task.label is not None
    ]
    labels, golds = [read[place][0] for place in asked], [str(tasks[place].label) for place in asked]
    verdicts = dict(
        zip(asked, check_labels(domain, labels, golds, [tasks[place].example for place in asked]), strict=True)
    )
    found = []
    for place, (label, problem) in enumerate(read):
        verdict, parsed = verdicts.get(place, False), label is not None
        if isinstance(verdict, RowError):
            found.append(AnswerReward(0.0, False, False, format_error(verdict)))
        elif problem:
            found.append(AnswerReward(0.0, False, False, problem))
        else:
            found.append(AnswerReward(float(verdict) + format_reward * parsed, verdict, parsed, None))
    return found
