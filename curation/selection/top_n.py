"""Exact top-n on the raw score; a seeded hash of the row id breaks ties."""

from dataclasses import dataclass

import numpy as np

from curation.arrays import Floats, Int64s
from curation.errors import BudgetError
from curation.hashing import hash64
from curation.selection import Candidates, Cut


@dataclass(frozen=True, kw_only=True)
class TopN:
    """The n candidates with the highest raw score (paper, App. "Training Details", "Trust filtering").

    One partition of a copy of the scores finds the n-th largest. Only the selected rows are sorted, and only rows that
    tie at the n-th score are hashed. The result depends on ids, scores and seed, never on the order of the candidates.
    """

    def cut(self, candidates: Candidates, budget: int, seed: int) -> Cut:
        """Return the top ``budget`` rows in rank order; a ``BudgetError`` as of :func:`check_budget`."""
        row_ids_N, score_N = candidates.row_ids_N, candidates.raw_score_N
        eligible_N = score_N > -np.inf  # false for NaN, too
        num_eligible = int(np.count_nonzero(eligible_N))
        check_budget(budget, num_eligible, len(score_N))

        threshold = np.partition(score_N[eligible_N], num_eligible - budget)[num_eligible - budget]
        above = np.flatnonzero(score_N > threshold)
        tied = np.flatnonzero(score_N == threshold)
        num_wanted = budget - len(above)  # at least 1
        if num_wanted < len(tied):
            tied = tied[np.argpartition(hash64(row_ids_N[tied], seed), num_wanted - 1)[:num_wanted]]
        selected = np.concatenate([above, tied])
        return Cut(row_ids_n=sort_by_rank(row_ids_N[selected], score_N[selected], seed), threshold=float(threshold))


def sort_by_rank(row_ids_n: Int64s, raw_score_n: Floats, seed: int) -> Int64s:
    """Return the ids of selected rows by descending score, and at equal scores by ascending hash, int64 [n]."""
    # hash64 is a bijection for a given seed, so different ids never tie
    ranked_n: Int64s = row_ids_n[np.lexsort((hash64(row_ids_n, seed), -raw_score_n))]
    return ranked_n


def check_budget(budget: int, num_eligible: int, num_rows: int) -> None:
    """Raise ``BudgetError`` for a number of rows that is not positive, or larger than that of rows with a score."""
    if budget < 1:
        raise BudgetError(f"selection.budget: {budget} is not a positive number of rows; set selection.budget.n")
    if budget > num_eligible:
        raise BudgetError(
            f"selection.budget: n = {budget:,} is more than the {num_eligible:,} of {num_rows:,} pool rows that have a "
            + (f"score; set selection.budget.n to {num_eligible} or less" if num_eligible else "score")
        )
