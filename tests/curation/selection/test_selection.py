import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.config import BudgetConfig
from curation.errors import BudgetError
from curation.hashing import hash64, hash_unit
from curation.selection import Candidates
from curation.selection.budget import FitPurity, GradedScores, Oracle, Pool, Share, Threshold, check_pool
from curation.selection.top_n import TopN

SCORES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.5, np.inf, -np.inf, np.nan]), st.floats(-3, 3, width=32))
ROWS = st.dictionaries(st.integers(0, 2**62), SCORES, min_size=1, max_size=60)


def _candidates(rows, dtype=np.float32):
    ids = np.fromiter(rows.keys(), np.int64, len(rows))
    return Candidates(row_ids_N=ids, raw_score_N=np.fromiter(rows.values(), dtype, len(rows)))


def _full_sort(rows, budget, seed):
    """The same rule, stated as a sort of all rows."""
    eligible = [(row, score) for row, score in rows.items() if score > -np.inf]
    eligible.sort(key=lambda item: (-item[1], int(hash64(np.array([item[0]]), seed)[0])))
    return [row for row, _ in eligible[:budget]], len(eligible)


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, share=st.floats(0, 1), seed=st.integers(0, 1000), order=st.randoms())
def test_top_n_is_a_full_sort_and_knows_no_order(rows, share, seed, order):
    _, num_eligible = _full_sort(rows, 0, seed)
    if num_eligible == 0:
        return
    budget = max(1, round(share * num_eligible))
    expected, _ = _full_sort(rows, budget, seed)
    cut = TopN().cut(_candidates(rows), budget, seed)
    assert cut.row_ids_n.tolist() == expected
    assert cut.threshold == rows[expected[-1]]
    shuffled = list(rows.items())
    order.shuffle(shuffled)
    assert TopN().cut(_candidates(dict(shuffled)), budget, seed).row_ids_n.tolist() == expected


def test_top_n_equals_a_full_sort_of_many_tied_rows():
    rng = np.random.default_rng(0)
    ids = rng.permutation(200_000).astype(np.int64)
    scores = np.round(rng.normal(size=200_000), 1).astype(np.float32)
    for budget in (1, 777, 50_000, 200_000):
        cut = TopN().cut(Candidates(row_ids_N=ids, raw_score_N=scores), budget, 3)
        expected = ids[np.lexsort((hash64(ids, 3), -scores))][:budget]
        assert np.array_equal(cut.row_ids_n, expected)


def test_ties_break_by_seed_and_not_by_position():
    rows = Candidates(row_ids_N=np.arange(10_000), raw_score_N=np.ones(10_000, np.float32))
    first, again, other = (TopN().cut(rows, 1000, seed).row_ids_n for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert len(np.intersect1d(first, other)) < 200  # 100 expected
    assert abs(first.mean() - 5000) < 500  # a draw by position would give 500 or 9,500


def test_raw_scores_rank_where_float32_trust_saturates():
    logits = np.array([25.0, 40.0, 18.0, 30.0], np.float32)
    trust = (1 / (1 + np.exp(-logits))).astype(np.float32)
    assert (trust == 1).all()
    ids = np.arange(4)
    seed = next(
        s for s in range(50) if TopN().cut(Candidates(row_ids_N=ids, raw_score_N=trust), 1, s).row_ids_n[0] != 1
    )
    cut = TopN().cut(Candidates(row_ids_N=ids, raw_score_N=logits), 3, seed)
    assert cut.row_ids_n.tolist() == [1, 3, 0]
    assert cut.threshold == 25.0


def test_rows_without_a_score_are_never_selected():
    scores = np.array([np.nan, 0.3, -np.inf, -5.0])
    rows = Candidates(row_ids_N=np.arange(4), raw_score_N=scores)
    assert TopN().cut(rows, 2, 0).row_ids_n.tolist() == [1, 3]
    with pytest.raises(BudgetError, match=r"n = 3 .* the 2 of 4 .* set selection\.budget\.n to 2 or less") as caught:
        TopN().cut(rows, 3, 0)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(BudgetError, match="0 of 1"):
        TopN().cut(Candidates(row_ids_N=np.arange(1), raw_score_N=np.array([np.nan])), 1, 0)
    with pytest.raises(BudgetError, match="0 is not a positive"):
        TopN().cut(rows, 0, 0)


def draw(ids, seed):
    return Candidates(row_ids_N=ids, raw_score_N=hash_unit(ids, seed))


def test_uniform_draw_is_uniform_nested_and_seeded():
    ids = np.arange(2000) + (3 << 40)
    counts = np.zeros(2000)
    for seed in range(300):
        counts[TopN().cut(draw(ids, seed), 500, seed).row_ids_n - (3 << 40)] += 1
    # 300 draws at 1/4: mean 75, standard deviation 7.5
    assert counts.mean() == 75
    assert counts.std() == pytest.approx(7.5, rel=0.1)
    small, large = (TopN().cut(draw(ids, 7), n, 7).row_ids_n for n in (100, 400))
    assert np.array_equal(small, large[:100])


def test_candidates_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        Candidates(row_ids_N=np.arange(3), raw_score_N=np.zeros(2))


def oracle(num_right: int) -> int:
    return Oracle(cap=2000).count(Pool(num_rows=1, num_right=num_right, seed=0)).n


def share(share: float, num_rows: int) -> int:
    return Share(share=share).count(Pool(num_rows=num_rows, seed=0)).n


def fit_purity(num_right_fit: int, num_fit: int, num_right: int) -> int:
    """Of rows that the reference arm accepts at a trust of a half, beside as many right ones that it does not."""
    trust_M = np.repeat([0.5, 0.49], num_fit).astype(np.float32)
    correct_M = np.append(np.arange(num_fit) < num_right_fit, np.ones(num_fit, dtype=bool))
    measured = GradedScores(trust_M, trust_M, correct_M)
    return FitPurity().count(Pool(num_rows=1, num_right=num_right, measured=measured, seed=0)).n


def threshold(num_above: int, least: float) -> int:
    scores: Any = SimpleNamespace(num_trusted=lambda trust: num_above if trust == least else -1)
    found = Threshold(threshold=least).count(Pool(num_rows=1, scores=scores, seed=0))
    assert found.is_cut
    return found.n


def test_budgets():
    assert oracle(1500) == 1500 and oracle(9000) == 2000
    assert share(0.25, 1003) == 250
    assert fit_purity(755, 1000, 1000) == 755 and fit_purity(15, 22, 22) == 15
    assert threshold(7, 0.9) == 7
    check_pool(BudgetConfig(n=70), 70)
    check_pool(BudgetConfig(share=0.5), 1)


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (
            lambda: oracle(0),
            r"budget\.oracle: no weak label of the pool is right, which makes the budget 0",
        ),
        (lambda: share(0.01, 99), r"budget\.share: 0\.01 of 99 labelled rows is less than one"),
        (
            lambda: fit_purity(2, 5, 2),
            r"budget\.fit_purity: purity 2/5 on the fit set times 2 right weak labels",
        ),
        (lambda: threshold(0, 0.9), r"budget\.threshold: no row has a trust of at least 0\.9"),
        (lambda: check_pool(BudgetConfig(n=71), 70), r"n = 71 is more than the 70 rows of the pool"),
    ],
)
def test_budgets_of_no_row_are_refused(budget, told):
    with pytest.raises(BudgetError, match=told):
        budget()
