"""Grading of weak labels by the domain's own rule, and reading of the table of grades."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.domains import Domain, attempt
from curation.refs import TableRef
from curation.tables import io

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Graded:
    """Rows that were labelled without error and have a gold label, ascending by row id."""

    row_ids_N: npt.NDArray[np.int64]
    correct_N: Bools
    """Unparsed labels are wrong."""
    question_N: npt.NDArray[np.int64] | None = None
    """The question that each row asks, by a hash; ``read_grades`` always gives it."""


def read_grades(grades: TableRef) -> Graded:
    """The content of a table of grades (schema ``schemas.GRADES``).

    In a table without the column ``question`` every row asks a question of its own.
    """
    has_question = "question" in io.open_table(grades).schema.names
    table = io.read(grades, columns=["row_id", "correct", *(["question"] if has_question else [])])
    return Graded(
        row_ids_N=table["row_id"].to_numpy(),
        correct_N=table["correct"].to_numpy(zero_copy_only=False).astype(np.bool_),
        question_N=table["question" if has_question else "row_id"].to_numpy(),
    )


def grade_pairs(labels: pa.Array, golds: pa.Array, domain: Domain) -> tuple[Bools, list[str | None]]:
    """Whether each weak label equals its gold label, bool [N], and why the rule could not decide, if it could not."""
    correct_N = np.zeros(len(labels), dtype=np.bool_)
    problems: list[str | None] = []
    for place, (label, gold) in enumerate(zip(labels.to_pylist(), golds.to_pylist(), strict=True)):
        right, problem = attempt(domain.is_correct, label, gold)
        correct_N[place] = bool(right)
        problems.append(problem or None)
    return correct_N, problems
