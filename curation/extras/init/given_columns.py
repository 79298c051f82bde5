"""Finds columns with labels that were made elsewhere, and with their confidence."""

from collections.abc import Sequence

from curation.config.given import GivenConfig
from curation.domains.given import GRADES
from curation.extras.init.table import TableFiles, is_id

CONFIDENCES = ("confidence", "conf", "score", "probability", "prob", "certainty", "logprob")
"""Last words of the names of columns with the confidence of a label."""
COMPLETIONS = ("prediction", "predicted", "pred", "completion", "output", "response", "generated", "guess")
"""Words in the names of columns with a model's answer."""
GRADINGS = ("ok", "right", "correct", "grade", "is_right", "is_correct")
"""Names of columns that say whether a model's answer is right."""


def find_given_columns(
    labelled: TableFiles, answer: str, common: Sequence[str], answers: Sequence[str]
) -> GivenConfig | None:
    """Return the columns of labels made elsewhere; ``None`` unless exactly one column can hold the labels.

    The file must also have a column of confidences. The labels are values of the column ``answer``, or their column is
    named like a model's answer, or, if ``answer`` is a grade, like one of ``answers``.
    """
    sure = [name for name in common if _split_words(name)[-1] in CONFIDENCES and labelled.has_numbers(name)]
    others = [name for name in common if name not in (answer, *sure) and not is_id(name)]
    if not sure:
        return None
    golds = {*labelled.counts(answer)}
    is_grade = answer.casefold() in GRADINGS and {gold.lower() for gold in golds} <= {*GRADES}
    alike = [] if is_grade else [name for name in others if {*labelled.counts(name)} <= golds]
    known = [*COMPLETIONS, *(answers if is_grade else ())]
    found = alike or [name for name in others if name.casefold() in known or {*_split_words(name)} & {*COMPLETIONS}]
    if len(found) != 1:
        return None
    return GivenConfig(completion=found[0], confidence=tuple(sure), grade=answer if is_grade else None)


def _split_words(name: str) -> list[str]:
    return name.replace("-", "_").casefold().split("_")
