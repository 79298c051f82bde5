"""Rewards of a student's answers: whether its label is that of its row, by the domain's own rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from curation.domains import Domain, Example, attempt


@dataclass(frozen=True, kw_only=True)
class Task:
    """A row to learn from."""

    row_id: int
    prompt: list[int]
    """Token ids."""
    example: Example
    label: str | None
    """The trusted label: the teacher's, or in gold arms the gold one. ``None``: unparsed; no answer agrees with it."""


class Graded(NamedTuple):
    """The reward of an answer and how it came about."""

    reward: float
    right: bool
    parsed: bool
    problem: str | None
    """Why the domain could not grade it; the reward is then 0."""


def grade(domain: Domain, tasks: Sequence[Task], texts: Sequence[str], *, format_reward: float) -> list[Graded]:
    """Each answer's reward: 1 if it is right, and ``format_reward`` if a label can be read from it."""
    return [_grade(domain, task, text, format_reward) for task, text in zip(tasks, texts, strict=True)]


def _grade(domain: Domain, task: Task, text: str, format_reward: float) -> Graded:
    label, problem = attempt(domain.parse, text, task.example)
    right = None
    if not problem and task.label is not None:
        right, problem = attempt(domain.is_correct, label, task.label)
    if problem:
        return Graded(0.0, False, False, problem)
    parsed = label is not None
    return Graded(float(bool(right)) + format_reward * parsed, bool(right), parsed, None)
