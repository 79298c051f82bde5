"""Selection of an arm's training rows by pure functions of scores, row ids and a seed; the select stage writes them."""

from dataclasses import dataclass
from typing import Protocol

from curation.arrays import Float64s, Floats, Int64s


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The rows to choose from, in any order, with their scores.

    ``row_ids_N`` are unique. ``raw_score_N`` is finite or +inf for a row that may be selected, larger is better; NaN or
    -inf marks a row that is never selected (an error row, a label without a readable confidence). The other fields are
    set for the rules that read them (``curation.arms.Rule``).
    """

    row_ids_N: Int64s
    raw_score_N: Floats
    stratum_N: Int64s | None = None
    """Difficulty bin of each row, counted from 0, the easiest; the last bin has the rows of unknown difficulty."""
    num_strata: int = 0
    accuracy_S: Float64s | None = None
    """Share of right labels in each bin; as it needs gold labels, an arm whose rule reads it is an oracle."""
    reference_M: Int64s | None = None
    """The rows that the budget's reference arm selects."""

    def __post_init__(self) -> None:
        if self.row_ids_N.ndim != 1 or self.row_ids_N.shape != self.raw_score_N.shape:
            raise ValueError(f"shapes differ: row ids {self.row_ids_N.shape}, scores {self.raw_score_N.shape}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """The selected rows, best first; ``threshold`` is the raw score of the last of them."""

    row_ids_n: Int64s
    threshold: float | None


class Selector(Protocol):
    """An arm's rule, which cuts the candidates down to a budget; it is constructed without arguments."""

    def cut(self, candidates: Candidates, budget: int, seed: int) -> Cut:
        """Return the selected rows; they do not depend on the order of the candidates."""
