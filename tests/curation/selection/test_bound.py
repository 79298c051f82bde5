"""The bound of a top-n that is found in passes, against the sort of all rows in memory."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from curation.errors import BudgetError
from curation.hashing import hash64
from curation.selection import Candidates, bound
from curation.selection.bound import find_exact_bound, merge_counts, tally
from curation.selection.top_n import TopN

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, -3.4e38]


def sorted_ids(ids_N, scores_N, n, seed):
    """The ids of the n first rows, by a sort of Python tuples."""
    rows = [
        (-score, int(tie), int(row))
        for score, tie, row in zip(scores_N.tolist(), hash64(ids_N, seed), ids_N, strict=True)
        if score > -np.inf
    ]
    return {row for _, _, row in sorted(rows)[:n]}


def bound_of(rows, n, seed):
    """The bound of rows in parts."""
    return find_exact_bound(lambda asked: tally(asked, rows), n, seed)


def selected(ids_N, scores_N, n, seed, *, parts=3):
    """The selected ids, and how often the rows were read."""
    reads = []

    def counted(asked):
        reads.append(None)
        return tally(asked, zip(np.array_split(ids_N, parts), np.array_split(scores_N, parts), strict=True))

    found = find_exact_bound(counted, n, seed)
    assert found.num_selected == n and found.seed == seed
    return set(ids_N[found.passes(ids_N, scores_N)].tolist()), len(reads)


def test_a_window_that_ends_below_zero_holds_no_zero(monkeypatch):
    monkeypatch.setattr(bound, "COLLECTED_ROWS", 0)
    monkeypatch.setattr(bound, "STRIDE", 3)
    monkeypatch.setattr(bound, "MARGIN", 0.5)
    for dtype in (np.float32, np.float64):
        scores_N = np.array([0.0, 0.0, -1.0, np.finfo(np.float32).min, -1e-45], dtype=dtype)
        ids_N = np.arange(5)
        for n in range(1, 6):
            assert selected(ids_N, scores_N, n, 0)[0] == sorted_ids(ids_N, scores_N, n, 0)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    scores=st.lists(st.one_of(st.sampled_from(SPECIAL), st.floats(width=32)), min_size=1, max_size=60),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0, 1),
    few=st.sampled_from([0, 3, 1 << 20]),
    stride=st.sampled_from([1, 3, 256]),
)
def test_the_bound_selects_what_a_sort_selects(scores, dtype, seed, share, few, stride):
    with np.errstate(over="ignore"):
        scores_N = np.array(scores, dtype=dtype)
    ids_N = np.random.default_rng(seed).permutation(10 * len(scores_N))[: len(scores_N)]
    num = int((scores_N > -np.inf).sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "COLLECTED_ROWS", few)
        patch.setattr(bound, "SLICE_ROWS", 7)
        patch.setattr(bound, "STRIDE", stride)
        patch.setattr(bound, "MARGIN", 0.5)  # the window often misses the n-th row
        if num == 0:
            with pytest.raises(BudgetError, match="n = 1 is more than the 0 of"):
                selected(ids_N, scores_N, 1, seed)
            return
        n = max(1, round(share * num))
        assert selected(ids_N, scores_N, n, seed)[0] == sorted_ids(ids_N, scores_N, n, seed)


@pytest.mark.parametrize("kind", ["normal", "rounded", "equal", "sigmoid"])
def test_order_and_parts_do_not_matter(kind):
    rng = np.random.default_rng(0)
    num = 100_000
    scores_N = rng.normal(size=num).astype(np.float32)
    scores_N = {
        "normal": scores_N,
        "rounded": np.round(scores_N, 1),
        "equal": np.zeros(num, dtype=np.float32),
        "sigmoid": expit(20 * scores_N),
    }[kind]
    scores_N[rng.random(num) < 0.01] = np.nan
    ids_N = rng.integers(0, 1 << 45, num)
    for n in (1, 30_000, int((~np.isnan(scores_N)).sum())):
        oracle = TopN().cut(Candidates(row_ids_N=ids_N, raw_score_N=scores_N), n, 7)
        found = bound_of([(ids_N, scores_N)], n, 7)
        passes_N = found.passes(ids_N, scores_N)
        assert np.array_equal(np.sort(ids_N[passes_N]), np.sort(oracle.row_ids_n)) and found.score == oracle.threshold
        for order in (rng.permutation(num), np.argsort(scores_N), np.argsort(-scores_N)):
            parts = zip(np.array_split(ids_N[order], 20), np.array_split(scores_N[order], 20), strict=True)
            assert bound_of([*parts], n, 7) == found


def test_answers_for_parts_add_up():
    rng = np.random.default_rng(1)
    ids_N, scores_N = rng.permutation(1_000_000), rng.random(1_000_000, dtype=np.float32)
    parts = list(zip(np.array_split(ids_N, 9), np.array_split(scores_N, 9), strict=True))
    asked_of = []

    def counted(asked):
        asked_of.append(asked)
        return merge_counts(
            pickle.loads(pickle.dumps(tally(pickle.loads(pickle.dumps(asked)), [part]))) for part in parts[::-1]
        )

    found = find_exact_bound(counted, 600_000, 3)
    assert len(asked_of) == 2 and found == bound_of(parts, 600_000, 3)


def test_few_passes_do_and_only_few_rows_are_kept(monkeypatch):
    monkeypatch.setattr(bound, "COLLECTED_ROWS", 1000)
    rng = np.random.default_rng(2)
    ids_N = np.arange(400_000)
    assert selected(ids_N, rng.random(400_000, dtype=np.float32), 100_000, 0)[1] == 3
    assert selected(ids_N, rng.random(400_000), 100_000, 0)[1] == 3
    assert selected(ids_N, np.zeros(400_000, dtype=np.float32), 100_000, 0)[1] == 4  # all tie: two for the hash
    scores_N = rng.random(400_000, dtype=np.float32)
    held = []

    def counted(asked):
        answer = tally(asked, [(ids_N, scores_N)])
        held.append(len(answer.row_ids_M))
        assert answer.keys_M is None or len(answer.keys_M) == held[-1]
        return answer

    find_exact_bound(counted, 100_000, 0)
    assert len(held) == 3 and held[:2] == [0, 0] and 0 < held[2] <= 1000


def test_what_cannot_be_selected_is_refused_as_by_a_sort():
    scores_N = np.array([1, np.nan, -np.inf, 2], dtype=np.float32)
    rows = Candidates(row_ids_N=np.arange(4), raw_score_N=scores_N)
    for n in (0, -3, 3):
        with pytest.raises(BudgetError) as wanted:
            TopN().cut(rows, n, 0)
        with pytest.raises(BudgetError) as found:
            bound_of([(rows.row_ids_N, scores_N)], n, 0)
        assert str(found.value) == str(wanted.value)
    with pytest.raises(BudgetError, match="n = 1 is more than the 0 of 0 pool rows"):
        bound_of([], 1, 0)
    with pytest.raises(ValueError, match="32 bits and of 64 bits in one search"):
        bound_of([(np.arange(2), np.ones(2, dtype)) for dtype in (np.float32, np.float64)], 1, 0)
