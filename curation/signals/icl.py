"""ICL + internal confidence: the weak answer's probability after demonstrations (paper, App. "Baseline Details")."""

from collections.abc import Sequence

from curation.domains import Domain, Example
from curation.signals import Answer, SignalMethod, Weak
from curation.teachers import Request


class IclMeanLogprob(SignalMethod):
    """Mean log-probability of the weak completion, given without them, after ``shots``: examples with ``gold``."""

    name = "icl_mean_logprob"

    def __init__(self, *, shots: Sequence[Example]) -> None:
        self._shots = tuple(shots)

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return a request with the weak completion as the only option; an empty list for an empty completion."""
        if not weak.completion:
            return []
        prompt = domain.prompt(example, shots=self._shots)
        return [Request(row_id=row_id, prompt=prompt, options=(weak.completion,))]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the mean log-probability, at most 0."""
        return answers[0].mean_logprob
