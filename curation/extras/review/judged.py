"""The rows of a review with people's verdicts, and the shares of right labels estimated from the strata."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools
from curation.extras.review.folder import Review
from curation.extras.review.log import Standing, VerdictLine
from curation.json_types import Json
from curation.metrics import compute_finite_share, compute_weighted_mean
from curation.selection.review import Stratum

Answer = Literal["right", "wrong", "unsure", "disputed", "none"]
ANSWERS: tuple[Answer, ...] = ("right", "wrong", "unsure", "disputed", "none")


class VerdictCounts(NamedTuple):
    """The number of rows by answer."""

    right: int
    wrong: int
    unsure: int
    disputed: int
    none: int

    @property
    def decided(self) -> int:
        """Number of rows that are right or wrong."""
        return self.right + self.wrong

    @property
    def open(self) -> int:
        """Number of judged rows that are neither right nor wrong."""
        return self.unsure + self.disputed


@dataclass(frozen=True, kw_only=True, eq=False)
class ReviewedRows:
    """The rows of a review [M] with their answers."""

    review: Review
    answer_M: npt.NDArray[np.str_]
    """Answer for each row, one of ``ANSWERS``."""
    people: dict[str, int]
    """Number of verdicts by person."""
    num_shared: int
    """Number of rows with verdicts of several people."""

    def count(self, rows_M: Bools | None = None) -> VerdictCounts:
        """Count the answers for the rows of a mask, or for all rows."""
        answers = self.answer_M if rows_M is None else self.answer_M[rows_M]
        return VerdictCounts(*(int((answers == answer).sum()) for answer in ANSWERS))

    @property
    def counts(self) -> list[VerdictCounts]:
        """Counts of answers by stratum."""
        return [self.count(self.column("stratum") == index) for index in range(len(self.review.strata))]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the review's rows [M]."""
        column: npt.NDArray[Any] = self.review.rows[name].to_numpy()
        return column

    def ids_of(self, answer: Answer) -> list[int]:
        """Return the ids of the rows with an answer."""
        ids: list[int] = self.column("row_id")[self.answer_M == answer].tolist()
        return ids


def judge(review: Review, standing: Standing) -> ReviewedRows:
    """Return the rows of a review with their answers according to the verdicts that count."""
    row_ids = review.rows["row_id"].to_pylist()
    verdicts = [standing.get(row_id, {}) for row_id in row_ids]
    people: dict[str, int] = {}
    for of_row in verdicts:
        for person in of_row:
            people[person] = people.get(person, 0) + 1
    return ReviewedRows(
        review=review,
        answer_M=np.array([answer_of(of_row) for of_row in verdicts], dtype=np.str_),
        people=dict(sorted(people.items())),
        num_shared=sum(len(of_row) > 1 for of_row in verdicts),
    )


def answer_of(verdicts: dict[str, VerdictLine]) -> Answer:
    """Return the common answer of several people; unsure is outvoted, and right against wrong is disputed."""
    said = {entry.verdict for entry in verdicts.values()}
    if {"right", "wrong"} <= said:
        return "disputed"
    for answer in ("right", "wrong"):
        if answer in said:
            return answer
    return "unsure" if said else "none"


def estimate_share_right(strata: Sequence[Stratum], counts: Sequence[VerdictCounts], *, selected: bool) -> Json | None:
    """Return the share of right labels among the selected rows, or among the region's rows below the cut.

    ``value`` and its interval cover the rows that people could decide. ``if_wrong`` and ``if_right`` count every open
    row (unsure or disputed) as wrong or as right. Each stratum has an exact interval as a finite population; MOVER
    combines several strata. Rows without a verdict are assumed missing at random, since rows are shown in random order.
    Return None if the region has no such rows, or a stratum has no decided row yet.
    """
    pairs = [(item, count) for item, count in zip(strata, counts, strict=True) if item.selected == selected]
    if not pairs or not all(count.decided for _, count in pairs):
        return None
    sizes_S = np.array([item.num_rows for item, _ in pairs], dtype=np.float64)
    decided, wrong, right = (
        compute_weighted_mean(
            [
                compute_finite_share(
                    count.right + right * count.open, count.decided + judged * count.open, item.num_rows
                )
                for item, count in pairs
            ],
            sizes_S / sizes_S.sum(),
        )
        for judged, right in ((False, False), (True, False), (True, True))  # open rows: left out, wrong, right
    )
    total = VerdictCounts(*(sum(column) for column in zip(*(count for _, count in pairs), strict=True)))
    return {
        **decided.to_json(),
        "num_rows": int(sizes_S.sum()),
        "method": "exact (hypergeometric)" if len(pairs) == 1 else "stratified (exact in each stratum, MOVER)",
        "num_strata": len(pairs),
        "answers": total._asdict(),
        "if_wrong": wrong.to_json(),
        "if_right": right.to_json(),
    }


def describe_strata(strata: Sequence[Stratum], counts: Sequence[VerdictCounts]) -> list[Json]:
    """Return every stratum with its counts of answers and the share of right labels among decided rows."""
    return [
        {
            **asdict(item),
            "inclusion": item.num_drawn / item.num_rows,
            "answers": count._asdict(),
            "right": compute_finite_share(count.right, count.decided, item.num_rows).to_json(),
        }
        for item, count in zip(strata, counts, strict=True)
    ]
