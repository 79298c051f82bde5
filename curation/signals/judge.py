"""A judge model: is a label right although the domain's own rule calls it wrong (paper: Omni-Judge, on Omni-MATH)?

:class:`ChosenVerdict` asks about all labels of a domain whose check is a judge, and lets it choose between two words.

Asked only where gold labels are known: to grade, never to select. A row without a label is shown by the end of what the
teacher wrote, where an answer stands that is not in the form that was asked for; it is right by the judge's word alone.
The paper gives no prompt; the verdict line is in the form that Omni-Judge gives, the wording is ours.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from curation.domains import Domain, Example
from curation.domains.checks.judge import JudgeCheck
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
"""Characters of a completion without a label that are shown, from its end."""
_FIELD = re.compile(r"equivalence\s+judge?ment\W*(true|false)\b", re.IGNORECASE)
_VERDICT = re.compile(r"\b(true|false)\b", re.IGNORECASE)


class JudgeVerdict(SignalMethod):
    """1 where the judge's verdict is TRUE, 0 where it is FALSE.

    It stands in the field that the question names, which a justification may follow; the last such field counts. In a
    reply without it the words TRUE and FALSE count as far as they agree.
    """

    name = "judge"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return the row's prompt, its gold label (``gold`` of the example) and weak label, or the completion's end.

        None where nothing was written.
        """
        if weak.label is not None:
            question = QUESTION.format(gold=example["gold"], label=weak.label)
        elif end := weak.completion.strip()[-END:]:
            question = UNPARSED.format(gold=example["gold"], end=end)
        else:
            return []
        return [Request(row_id=row_id, prompt=domain.prompt(example) + question)]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return 1, 0, or None where it gives no verdict."""
        text = answers[0].completion
        verdicts = {word.lower() for word in _FIELD.findall(text)[-1:] or _VERDICT.findall(text)}
        return float(verdicts == {"true"}) if len(verdicts) == 1 else None


class ChosenVerdict(SignalMethod):
    """The probability of the word for right, of the two words that a judge may choose.

    Args:
        options: those of :class:`curation.domains.checks.judge.JudgeCheck`.
    """

    name = "chosen_verdict"

    def __init__(self, **options: Any) -> None:
        self._check = JudgeCheck(**options)

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return the judge's prompt about the label, with the two words as options.

        ``gold`` of the example is the reference, where it has one.

        Raises:
            RowError: the template fails on the row.
        """
        assert weak.label is not None, "rows without a label are not asked about"
        question = self._check.question(domain.prompt(example), example.get("gold"), weak.label)
        return [Request(row_id=row_id, prompt=question, options=self._check.options(question))]

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the softmax of both words' log-probabilities at the word for right, in [0, 1]; None without them."""
        logprobs = answers[0].option_logprobs
        if logprobs is None or any(one is None or math.isnan(one) for one in logprobs):
            return None
        right, wrong = logprobs
        return 1 / (1 + math.exp(min(wrong - right, 700.0)))
