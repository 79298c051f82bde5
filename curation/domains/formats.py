"""Bare answers and rollouts: what the completions of the arms must have in common, lest recovery measures a format.

A completion is a bare answer where it is the domain's own sentence for its label, and a rollout otherwise.
"""

from typing import Literal

from curation.domains import Domain, Example, attempt

Format = Literal["answer", "rollout"]
GoldSource = Literal["answer", "solution", "sample"]
"""What gold arms train on: the domain's sentence for the label, worked solutions, the teacher's own right rollouts."""
GoldWanted = Literal["auto", "solutions", "samples", "answers"]
"""What ``selection.gold_rollouts.source`` may say."""

NEARLY_ALL = 0.95
"""The share from which on completions count as bare answers, and rows as solved by the dataset (ours)."""


def is_bare(domain: Domain, completion: str, label: str, example: Example) -> bool:
    """Whether a completion says its label and nothing else, up to white space around it; a chosen option does."""
    if attempt(domain.options, example)[0] is not None:
        return True
    answer, _ = attempt(domain.answer, label, example)
    return answer is not None and completion.strip() == answer.strip()


def format_of(num_bare: int, num_rows: int) -> Format:
    """The format of completions of which so many are bare answers; without any there is nothing to differ from."""
    return "answer" if num_bare >= NEARLY_ALL * num_rows else "rollout"


def gold_source(weak: Format, wanted: GoldWanted, *, num_gold: int, num_solved: int) -> GoldSource:
    """What gold arms train on beside weak ones of the format ``weak``, as ``selection.gold_rollouts.source`` wants it.

    ``num_solved`` of ``num_gold`` rows with a gold label have a worked solution. Solutions and samples are not mixed:
    the rows of an arm would then differ in more than their labels.
    """
    if weak == "answer" or wanted == "answers":
        return "answer"
    if wanted == "auto":
        return "solution" if num_solved and num_solved >= NEARLY_ALL * num_gold else "sample"
    return "solution" if wanted == "solutions" else "sample"
