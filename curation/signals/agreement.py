"""Agreement with the weak label of samples (after Wang et al. 2023; ours), or of another teacher (paper's ensemble)."""

import math
from collections.abc import Sequence

from curation.config import DecodingConfig
from curation.domains import Domain, Example
from curation.signals import Answer, SignalMethod, Weak, label_request, matches_weak_label
from curation.teachers import Request
from curation.teachers.completions import compute_pair_sureness, subtract_baselines


class EnsembleAgreement(SignalMethod):
    """1 if the domain's rule finds both teachers' labels equal, else 0; the second teacher is asked."""

    name = "ensemble_agreement"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return the question that the weak teacher was asked."""
        return [label_request(domain, row_id, example)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return 1 or 0; an unparsed label agrees with none."""
        return float(matches_weak_label(domain, answers[0].completion, example, weak))


class SelfConsistency(SignalMethod):
    """Share of ``num_samples`` sampled labels that equal the weak label.

    If options are scored, nothing is sampled: one pass gives the limit of the share, which is the probability of
    the chosen option among the options at ``temperature``. A calibrated choice uses calibrated scores.
    """

    name = "self_consistency"

    def __init__(self, *, num_samples: int = 8, temperature: float = 0.7) -> None:
        self._num_samples = num_samples
        self._temperature = temperature

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return the weak teacher's question, once per sample."""
        request = label_request(domain, row_id, example)
        return [request] * (self._num_samples if request.is_drawn else 1)

    def decoding(self, base: DecodingConfig) -> DecodingConfig:
        """Return the decoding of the weak labels with this signal's temperature."""
        return base.model_copy(update={"temperature": self._temperature})

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the share, in [0, 1]; unparsed samples agree with no label."""
        if answers[0].option_logprobs is not None:
            scores = subtract_baselines(answers[0].option_logprobs, answers[0].baselines)  # as the label was chosen
            options, logprobs = domain.options(example) or (), [score / self._temperature for score in scores]
            if domain.in_pairs:
                return compute_pair_sureness(logprobs)["option_share"]
            weights = [math.exp(logprob - max(logprobs)) for logprob in logprobs]
            return weights[options.index(weak.completion)] / sum(weights)
        return sum(matches_weak_label(domain, answer.completion, example, weak) for answer in answers) / len(answers)
