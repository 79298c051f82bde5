"""Quotas by stratum: bins of difficulty, places dealt in proportion, and the rows that take them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.errors import BudgetError
from curation.hashing import hash_unit
from curation.selection import Candidates
from curation.selection.quotas import ByStratum, allocate, assign_bins
from curation.selection.top_n import TopN

STRATA = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.5, 40.0]), st.integers(0, 12)), min_size=1, max_size=6
)


def restated(weights, sizes, n):
    """Place by place: the next one goes where most is missing of an unrounded share, found by bisecting the level."""
    weights, sizes = list(map(float, weights)), list(sizes)
    if not any(w for w, size in zip(weights, sizes, strict=True) if size) or n == 0:
        weights = list(map(float, sizes))
    whole = sum(size for w, size in zip(weights, sizes, strict=True) if w)
    if n > whole:  # what has weight is full, the others share the rest by their sizes
        rest = [0 if w else size for w, size in zip(weights, sizes, strict=True)]
        more = restated(rest, rest, n - whole)
        return [size if w else extra for w, size, extra in zip(weights, sizes, more, strict=True)]
    low, high = 0.0, 1e9
    for _ in range(200):
        level = (low + high) / 2
        taken = sum(min(w * level, size) for w, size in zip(weights, sizes, strict=True))
        low, high = (level, high) if taken < n else (low, level)
    exact = [min(w * high, size) for w, size in zip(weights, sizes, strict=True)]
    quotas = [int(share + 1e-6) for share in exact]
    order = sorted(range(len(exact)), key=lambda s: (round(quotas[s] - exact[s], 6), s))
    for stratum in order[: n - sum(quotas)]:
        quotas[stratum] += 1
    return quotas


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(rows=STRATA, part=st.floats(0, 1))
def test_allocation_is_the_rule_stated_place_by_place(rows, part):
    weights, sizes = zip(*rows, strict=True)
    n = round(part * sum(sizes))
    quotas = allocate(weights, sizes, n)
    assert quotas.sum() == n and (quotas >= 0).all() and (quotas <= sizes).all()
    assert quotas.tolist() == restated(weights, sizes, n)


def test_allocation_is_proportional_to_less_than_a_place():
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights, n = rng.exponential(size=11), int(rng.integers(1, 5000))
        quotas = allocate(weights, np.full(11, 10_000), n)
        assert np.abs(quotas - n * weights / weights.sum()).max() < 1
    assert allocate([6.4, 0.9, 0.9, 0.9, 0.9], [100] * 5, 10).tolist() == [6, 1, 1, 1, 1]
    assert allocate([1, 1, 1], [5, 5, 5], 2).tolist() == [1, 1, 0]
    assert allocate([3, 1, 0], [2, 4, 10], 4).tolist() == [2, 2, 0]  # what the full one leaves goes to the open one
    assert allocate([3, 1, 0], [2, 4, 10], 8).tolist() == [2, 4, 2]  # weight 0 comes last
    with pytest.raises(BudgetError, match="n = 17 is more than the 16 rows that may be drawn"):
        allocate([3, 1, 0], [2, 4, 10], 17)


def test_strata_are_bins_of_equal_size_that_split_no_tie():
    rng = np.random.default_rng(1)
    difficulty_N = rng.normal(size=1000)
    difficulty_N[::10] = np.nan
    bin_N = assign_bins(difficulty_N, 9)
    assert np.bincount(bin_N).tolist() == [100] * 10 and (bin_N[::10] == 9).all()
    order = np.argsort(difficulty_N[bin_N < 9])
    assert (np.diff(bin_N[bin_N < 9][order]) >= 0).all()
    tied_N = rng.integers(0, 3, 1000).astype(float)
    bins = assign_bins(tied_N, 10)
    assert all(len(set(bins[tied_N == value])) == 1 for value in range(3)) and len(set(bins)) == 3
    assert assign_bins(np.full(4, np.nan), 5).tolist() == [5] * 4
    assert assign_bins(np.array([1.0, 2.0]), 1).tolist() == [0, 0]


class Weighted(ByStratum):
    def __init__(self, *weights: int) -> None:
        self._weights = weights

    def weights(self, candidates: Candidates, sizes_S: np.ndarray) -> tuple[int, ...]:
        return self._weights


def test_quotas_take_the_best_of_each_stratum_in_one_order():
    rng = np.random.default_rng(2)
    ids, stratum_N = rng.permutation(500), rng.integers(0, 4, 500)
    scores = hash_unit(ids, 3)
    rows = Candidates(row_ids_N=ids, raw_score_N=scores, stratum_N=stratum_N, num_strata=4)
    cut = Weighted(10, 0, 3, 27).cut(rows, 40, 5)
    assert set(cut.row_ids_n) == {
        row
        for stratum, quota in enumerate((10, 0, 3, 27))
        for row in sorted(ids[stratum_N == stratum], key=lambda row: -hash_unit(np.array([row]), 3)[0])[:quota]
    }
    ranked = scores[[int(np.flatnonzero(ids == row)[0]) for row in cut.row_ids_n]]
    assert (np.diff(ranked) < 0).all() and cut.threshold == ranked[-1]
    alone = Candidates(row_ids_N=ids, raw_score_N=scores, stratum_N=np.zeros(500, np.int64), num_strata=1)
    assert np.array_equal(Weighted(1).cut(alone, 40, 5).row_ids_n, TopN().cut(rows, 40, 5).row_ids_n)


def test_quotas_that_cannot_be_met_are_refused():
    rows = Candidates(row_ids_N=np.arange(3), raw_score_N=np.ones(3), stratum_N=np.array([0, 0, 1]), num_strata=2)
    assert sorted(Weighted(1, 2).cut(rows, 3, 0).row_ids_n) == [0, 1, 2]  # a full stratum's places go to the others
    with pytest.raises(BudgetError, match="n = 4 is more than the 3 rows"):
        Weighted(2, 1).cut(rows, 4, 0)
