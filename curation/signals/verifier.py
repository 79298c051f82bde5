"""A generative verifier, as in CompassVerifier, as the reward: log-odds that a causal model calls an answer right.

CompassVerifier's own prompt shows the gold answer, which a pool does not have; our prompt shows none.
"""

from collections.abc import Sequence

from curation.domains import Domain, Example
from curation.signals import Answer, SignalMethod, Weak
from curation.teachers import Request

QUESTION = "\n\nIs the answer above correct? Reply with Yes or No.\nVerdict:"
VERDICTS = (" Yes", " No")


class Verifier(SignalMethod):
    """Log-odds of the positive verdict; their sigmoid is its probability among the two verdicts."""

    name = "reward"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return a request with prompt, weak answer and question, whose options are the two verdicts."""
        prompt = f"{domain.prompt(example)}{weak.completion}{QUESTION}"
        return [Request(row_id=row_id, prompt=prompt, options=VERDICTS)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the log-odds, a real number, or None if the options have no log-probabilities."""
        if answers[0].option_logprobs is None:
            return None
        yes, no = answers[0].option_logprobs
        return yes - no
