"""Verdicts of a judge model on labels that the domain's own rule calls wrong (paper: Omni-Judge, on Omni-MATH).

:class:`ChosenVerdict` asks about all labels of a domain whose check is a judge, and lets it choose between two words.

:class:`JudgeVerdict` needs gold labels: it grades and never selects. For a row without a label, the judge sees the end
of the completion, which may have an answer in another form than requested; the judge alone decides on such a row.
The paper gives no prompt; the verdict line has the form that Omni-Judge gives, and the wording is ours.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from curation.domains import Domain, Example
from curation.domains.checks import JudgeCheck
from curation.signals import Answer, SignalMethod, Weak
from curation.teachers import Request

QUESTION = """

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


class JudgeVerdict(SignalMethod):
    """1 if the judge's verdict is TRUE, 0 if it is FALSE.

    The verdict is read from the last field with the name that the question gives. In a reply without that field, the
    words TRUE and FALSE count if they all agree.
    """

    name = "judge"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return a question with prompt, ``gold`` and weak label or completion's end; none for an empty completion."""
        if weak.label is not None:
            question = QUESTION.format(gold=example["gold"], label=weak.label)
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
    """Probability of the word for right among a judge's two; ``options`` are those of ``domains.checks.JudgeCheck``."""

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
