"""A generative verifier, as in CompassVerifier, as the reward: how likely a causal model is to call the answer right.

CompassVerifier's own prompt shows it the gold answer, which a pool has not; the wording here is ours, and shows none.
"""

from collections.abc import Sequence

from curation.domains import Domain, Example
from curation.signals import Answer, SignalMethod, Weak
from curation.teachers import Request

QUESTION = "\n\nIs the answer above correct? Reply with Yes or No.\nVerdict:"
VERDICTS = (" Yes", " No")


class Verifier(SignalMethod):
    """Log-odds of the positive verdict; its sigmoid is the verdict's probability among the two."""

    name = "reward"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return the row's prompt and weak answer, and the question; the verdicts are scored."""
        prompt = f"{domain.prompt(example)}{weak.completion}{QUESTION}"
        return [Request(row_id=row_id, prompt=prompt, options=VERDICTS)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the log-odds, any real number."""
        if answers[0].option_logprobs is None:
            return None
        yes, no = answers[0].option_logprobs
        return yes - no
