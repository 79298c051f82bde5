"""Grading of weak labels by the domain's own rule, and reading of the table of grades."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curation.domains import Domain, Example, attempt
from curation.domains.identity import Identity, question_of
from curation.refs import TableRef
from curation.tables import io

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Graded:
    """Rows that were labelled without error and have a gold label, ascending by row id."""

    row_ids_N: npt.NDArray[np.int64]
    correct_N: Bools
    """Unparsed labels are wrong."""
    question_N: npt.NDArray[np.int64]
    """Equal for rows that ask the same question; of a row whose question is not known, its own id."""


def read_grades(grades: TableRef) -> Graded:
    """The content of a table of grades (schema ``schemas.GRADES``)."""
    known = "question" in io.open_table(grades).schema.names
    table = io.read(grades, columns=["row_id", "correct", *(["question"] if known else [])])
    return Graded(
        row_ids_N=table["row_id"].to_numpy(),
        correct_N=table["correct"].to_numpy(zero_copy_only=False).astype(np.bool_),
        question_N=pc.coalesce(table["question"] if known else table["row_id"], table["row_id"]).to_numpy(),
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


def questions(domain: Domain, examples: list[Example]) -> list[int | None]:
    """The hash of each row's question; ``None`` where the domain cannot say what identifies it."""
    found = (attempt(_identity, domain, example)[0] for example in examples)
    return [None if identity is None else question_of(domain.name, identity) for identity in found]


def _identity(domain: Domain, example: Example) -> Identity:
    text, parts = domain.identity(example)
    return Identity(str(text), tuple(map(str, parts)))
