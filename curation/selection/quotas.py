"""Selection by stratum: each difficulty bin gets a share of the budget and takes its top-scoring rows."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools, Float64s, Int64s
from curation.errors import BudgetError
from curation.selection import Candidates, Cut
from curation.selection.capped import walk_batches


def assign_bins(difficulty_N: Float64s, num_bins: int) -> Int64s:
    """Return the difficulty bin of each row, int64 [N]; bins have about equal size, and equal difficulties share a bin.

    Bins count from 0, the easiest; rows of unknown difficulty (NaN) are in the bin ``num_bins``.
    """
    known_N = np.isfinite(difficulty_N)
    bin_N = np.full(len(difficulty_N), num_bins, dtype=np.int64)
    if known_N.any():
        edges = np.quantile(difficulty_N[known_N], np.arange(1, num_bins) / num_bins)
        bin_N[known_N] = np.searchsorted(edges, difficulty_N[known_N], side="right")
    return bin_N


def allocate(weights_S: npt.ArrayLike, sizes_S: npt.ArrayLike, n: int) -> Int64s:
    """Distribute ``n`` places over S strata in proportion to their weights, none above its size, int64 [S].

    The places that a full stratum cannot take go to the others in the same proportion. Fractions go to the largest
    remainders; of equal remainders the first stratum wins (Hamilton's method). Strata of weight 0 are filled last.

    Raises:
        BudgetError: there are fewer rows than places.
    """
    weights = np.asarray(weights_S, dtype=np.float64)
    sizes = np.asarray(sizes_S, dtype=np.int64)
    if n > sizes.sum():
        raise BudgetError(
            f"selection.budget: n = {n:,} is more than the {sizes.sum():,} rows that may be drawn; lower n"
        )
    quotas = np.zeros(len(sizes), dtype=np.int64)
    while (left := n - int(quotas.sum())) > 0:
        room = sizes - quotas
        open_S = (room > 0) & (weights > 0)
        share = np.where(open_S, weights, 0.0) if open_S.any() else room.astype(np.float64)
        ideal = left * share / share.sum()
        full_S = (room > 0) & (ideal >= room)
        if full_S.any():  # the next round distributes the places that they cannot take
            quotas[full_S] = sizes[full_S]
            continue
        rounded = np.floor(ideal).astype(np.int64)
        largest = np.argsort(np.round(rounded - ideal, 9), kind="stable")[: left - int(rounded.sum())]
        rounded[largest] += 1
        quotas += rounded
    return quotas


class ByStratum(ABC):
    """A selection rule with a quota per difficulty bin, in proportion to weights and never above the bin's size."""

    def cut(self, candidates: Candidates, budget: int, seed: int) -> Cut:
        """Return each bin's top rows, ranked together."""
        stratum_N = candidates.stratum_N
        assert stratum_N is not None, "curation.arms declares that the rule reads it"
        sizes_S = _count_by_bin(candidates, np.isfinite(candidates.raw_score_N))
        quotas_S = allocate(self.weights(candidates, sizes_S), sizes_S, budget)
        rows = (candidates.row_ids_N, candidates.raw_score_N, lambda place_M: stratum_N[place_M].astype(np.uint64))
        taken = walk_batches([rows], budget, quotas_S, seed)
        return Cut(row_ids_n=taken.row_ids_n, threshold=float(taken.score_n[-1]))

    @abstractmethod
    def weights(self, candidates: Candidates, sizes_S: Int64s) -> npt.ArrayLike:
        """Return the weight of each bin; ``sizes_S`` are the bins' numbers of rows that may be selected."""


class Stratified(ByStratum):
    """A selection rule with quotas in proportion to the bins' sizes."""

    def weights(self, candidates: Candidates, sizes_S: Int64s) -> npt.ArrayLike:
        """Return the bins' sizes."""
        return sizes_S


class DistributionAware(ByStratum):
    """A selection rule with quotas in proportion to the teacher's accuracy (paper, App. "Baseline Details")."""

    def weights(self, candidates: Candidates, sizes_S: Int64s) -> npt.ArrayLike:
        """Return the teacher's accuracy in each bin."""
        assert candidates.accuracy_S is not None, "curation.arms declares that the rule reads it"
        return candidates.accuracy_S


class Matched(ByStratum):
    """A selection rule with quotas in proportion to the number of each bin's rows that the reference arm selects."""

    def weights(self, candidates: Candidates, sizes_S: Int64s) -> npt.ArrayLike:
        """Return the number of rows of each bin that the reference arm selects."""
        assert candidates.reference_M is not None, "curation.arms declares that the rule reads it"
        return _count_by_bin(candidates, np.isin(candidates.row_ids_N, candidates.reference_M))


def _count_by_bin(candidates: Candidates, which_N: Bools) -> Int64s:
    assert candidates.stratum_N is not None, "curation.arms declares that the rule reads it"
    return np.bincount(candidates.stratum_N[which_N], minlength=candidates.num_strata)
