"""The signals that ask a model once more about a row and its weak answer (paper, App. "Baseline Details")."""

import math
import re
from collections.abc import Sequence
from typing import Any

from curation.config import DecodingConfig
from curation.domains import Domain, Example
from curation.domains.text import JudgeCheck
from curation.signals import Answer, SignalMethod, Weak, label_request, matches_weak_label
from curation.teachers import Request
from curation.teachers.completions import compute_pair_sureness, subtract_baselines

VERDICT_QUESTION = "\n\nIs the answer above correct? Reply with Yes or No.\nVerdict:"
VERDICTS = (" Yes", " No")

JUDGE_QUESTION = """

A reference answer and a student's final answer to the task above:
Reference answer: {gold}
Student's answer: {label}
Do the two state the same answer? End with the line "Equivalence Judgement: TRUE" or "Equivalence Judgement: FALSE".
"""
UNPARSED = """

A reference answer and the end of a student's solution to the task above:
Reference answer: {gold}
End of the student's solution: {end}
Does the solution come to the reference answer? Without a final answer it does not. End with the line "Equivalence \
Judgement: TRUE" or "Equivalence Judgement: FALSE".
"""
END = 500
"""Number of characters that are shown from the end of a completion without a label."""
_FIELD = re.compile(r"equivalence\s+judge?ment\W*(true|false)\b", re.IGNORECASE)
_VERDICT = re.compile(r"\b(true|false)\b", re.IGNORECASE)


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
    """Share of ``num_samples`` sampled labels that equal the weak label (after Wang et al. 2023; ours).

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


class Verifier(SignalMethod):
    """Log-odds that a causal model calls an answer right; their sigmoid is the probability among the two verdicts.

    Like CompassVerifier, except that its own prompt shows the gold answer, which a pool lacks.
    """

    name = "reward"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return a request with prompt, weak answer and question, whose options are the two verdicts."""
        prompt = f"{domain.prompt(example)}{weak.completion}{VERDICT_QUESTION}"
        return [Request(row_id=row_id, prompt=prompt, options=VERDICTS)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the log-odds, a real number, or None if the options have no log-probabilities."""
        if answers[0].option_logprobs is None:
            return None
        yes, no = answers[0].option_logprobs
        return yes - no


class JudgeVerdict(SignalMethod):
    """Verdict of a judge on a label that the domain's own rule calls wrong (paper: Omni-Judge): 1 if TRUE, 0 if FALSE.

    It needs gold labels: it grades and never selects. For a row without a label, the judge sees the end of the
    completion, which may have an answer in another form than requested, and alone decides. The verdict is read from the
    last field with the name that the question gives; in a reply without that field, the words TRUE and FALSE count if
    they all agree. The paper gives no prompt; the verdict line has the form that Omni-Judge gives, the wording is ours.
    """

    name = "judge"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return a question with prompt, ``gold`` and weak label or completion's end; none for an empty completion."""
        if weak.label is not None:
            question = JUDGE_QUESTION.format(gold=example["gold"], label=weak.label)
        elif end := weak.completion.strip()[-END:]:
            question = UNPARSED.format(gold=example["gold"], end=end)
        else:
            return []
        return [Request(row_id=row_id, prompt=domain.prompt(example) + question)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return 1, 0, or None if the judge gives no verdict."""
        text = answers[0].completion
        verdicts = {word.lower() for word in _FIELD.findall(text)[-1:] or _VERDICT.findall(text)}
        return float(verdicts == {"true"}) if len(verdicts) == 1 else None


class ChosenVerdict(SignalMethod):
    """Probability that a judge chooses the word for right over that for wrong, in a domain whose check is a judge.

    ``options`` are those of ``domains.text.JudgeCheck``.
    """

    name = "chosen_verdict"

    def __init__(self, **options: Any) -> None:
        self._check = JudgeCheck(**options)

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return the judge's prompt about the label, with ``gold`` if known; ``RowError`` if the template fails."""
        assert weak.label is not None, "rows without a label are not asked about"
        question = self._check.question(domain.prompt(example), example.get("gold"), weak.label)
        return [Request(row_id=row_id, prompt=question, options=self._check.options(question))]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the word for right's softmax probability, in [0, 1]; None without both log-probabilities."""
        logprobs = answers[0].option_logprobs
        if logprobs is None or any(one is None or math.isnan(one) for one in logprobs):
            return None
        right, wrong = logprobs
        return 1 / (1 + math.exp(min(wrong - right, 700.0)))
