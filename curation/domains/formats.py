"""Bare answers and rollouts: completions of all arms must have one format, otherwise recovery measures the format.

A completion is a bare answer if it is the domain's own sentence for its label, and a rollout otherwise.
"""

from typing import Literal

from curation.domains import Domain, Example, attempt

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
