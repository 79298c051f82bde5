"""The input of a rule (calibration rows and pool) and its result (cuts with their counts)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from curation.arrays import Bools, Floats, Int64s
from curation.selection.order import Ordered

Rule = Literal["fixed_sequence", "hoeffding", "hoeffding_bonferroni", "hoeffding_grid", "hoeffding_split"]
Kind = Literal["threshold", "top_k"]


class CandidateCuts(NamedTuple):
    """Cuts from the strictest on, with the numbers of calibration rows that pass each and of wrong ones among them."""

    threshold_G: Floats
    kept_G: Int64s
    wrong_G: Int64s

    def noise_G(self) -> Floats:
        """Return the observed noise of each cut; NaN if it keeps no row."""
        noise_G: Floats = np.where(self.kept_G > 0, self.wrong_G / np.maximum(self.kept_G, 1), np.nan)
        return noise_G


class RankedRows(NamedTuple):
    """The calibration rows that may be selected, best first; ``num_rows`` counts all calibration rows."""

    score_M: Floats
    wrong_M: Int64s
    """The number of wrong labels among the first 0, 1, 2 ... rows."""
    num_rows: int

    @staticmethod
    def sort(scores_M: Floats, correct_M: Bools) -> "RankedRows":
        """Sort calibration rows given in any order; rows with a score of -inf only count in ``num_rows``."""
        order = np.argsort(-scores_M)[: np.count_nonzero(scores_M > -np.inf)]
        wrong_M = np.concatenate([[0], np.cumsum(~correct_M[order])])
        return RankedRows(score_M=scores_M[order], wrong_M=wrong_M, num_rows=len(scores_M))

    def at(self, threshold_G: Floats) -> CandidateCuts:
        """Return the cuts that keep the rows with at least the given scores."""
        kept_G = np.searchsorted(-self.score_M, -threshold_G, side="right")
        return CandidateCuts(threshold_G, kept_G, self.wrong_M[kept_G])

    def prefix_ends(self, share_G: Floats) -> Floats:
        """Return the last row's score in the prefix of each share, except for prefixes that end at an unscored row."""
        last_G = compute_ranks(share_G, self.num_rows) - 1
        return self.score_M[last_G[last_G < len(self.score_M)]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """The input of a rule (see :func:`curation.selection.risk.calibrate`)."""

    rows: RankedRows
    scores_M: Floats
    correct_M: Bools
    pool: Ordered
    """Scores of the pool rows or, with a floor, of the pool rows at or above it."""
    alpha: float
    delta: float
    kind: Kind
    seed: int
    floor: float | None = None
    """Lowest score of ``pool``, and of the rows from which calibration rows were drawn; None if there is no floor."""

    def quantiles(self, share_G: Floats) -> Floats:
        """Return the scores at or above which these shares of the pool lie, at most all rows that may be selected."""
        return self.pool.at_ranks(np.minimum(compute_ranks(share_G, self.pool.num_rows), self.pool.num_scored))


class RuleResult(NamedTuple):
    """The result of a rule."""

    candidates: CandidateCuts
    bound_G: Floats
    place: int | None
    """Index of the chosen candidate or, if none is certified, of the one to show; None without candidates."""
    certified: bool
    needed: int | None = None
    needed_basis: str | None = None


def compute_ranks(share_G: Floats, num_rows: int) -> Int64s:
    """Return the number of rows in each given share, rounded up, at least 1."""
    rank_G: Int64s = np.maximum(np.ceil(share_G * num_rows - 1e-9), 1).astype(np.int64)
    return rank_G


def sort_distinct(scores_M: Floats) -> Floats:
    """Return each score once, descending."""
    return np.unique(scores_M)[::-1]
