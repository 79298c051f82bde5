"""Paired differences of rankings against scikit-learn, the formulas written out, and resampling."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from curation.metrics import compute_auc_difference, compute_proportion, compute_purity_difference


def scores(rng, num_rows, *, ties):
    correct_N = rng.random(num_rows) < 0.3
    base_N = correct_N + rng.normal(0, 1.5, num_rows)
    first_N, second_N = (base_N + rng.normal(0, scale, num_rows) for scale in (0.5, 1.5))
    if ties:
        first_N, second_N = np.round(first_N), np.round(second_N)
    return first_N, second_N, correct_N


@pytest.mark.parametrize("ties", [False, True])
def test_the_value_is_scikit_learns_and_the_variance_that_of_all_pairs(ties):
    first_N, second_N, correct_N = scores(np.random.default_rng(0), 300, ties=ties)
    found = compute_auc_difference(first_N, second_N, correct_N)
    assert found.value == pytest.approx(
        roc_auc_score(correct_N, first_N) - roc_auc_score(correct_N, second_N), abs=1e-12
    )
    kernels = []
    for score_N in (first_N, second_N):  # DeLong's, with all pairs of a right and a wrong row
        right_P1, wrong_1Q = score_N[correct_N][:, None], score_N[~correct_N][None]
        kernels.append((right_P1 > wrong_1Q) + 0.5 * (right_P1 == wrong_1Q))
    by_right, by_wrong = ((kernels[0] - kernels[1]).mean(axis=axis) for axis in (1, 0))
    variance = by_right.var(ddof=1) / len(by_right) + by_wrong.var(ddof=1) / len(by_wrong)
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6)


@pytest.mark.long
def test_the_interval_is_about_as_wide_as_that_of_resampled_rows():
    rng = np.random.default_rng(1)
    first_N, second_N, correct_N = scores(rng, 500, ties=False)
    draws = []
    for _ in range(400):
        rows = rng.integers(0, 500, 500)
        draws.append(roc_auc_score(correct_N[rows], first_N[rows]) - roc_auc_score(correct_N[rows], second_N[rows]))
    found = compute_auc_difference(first_N, second_N, correct_N)
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(draws), rel=0.15)


def test_equal_scores_differ_by_nothing_and_one_class_is_undefined():
    first_N, _, correct_N = scores(np.random.default_rng(2), 100, ties=False)
    same = compute_auc_difference(first_N, 3 * first_N + 1, correct_N)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert np.isnan(compute_auc_difference(first_N, first_N, np.ones(100, dtype=bool)).value)
    with pytest.raises(ValueError):
        compute_auc_difference(first_N, first_N[:-1], correct_N)


def test_only_rows_that_one_of_two_selections_has_decide():
    correct_N = np.array([1, 1, 0, 1, 0, 0, 1, 0], dtype=bool)
    found = compute_purity_difference(
        [0, 1, 2, 3], [0, 1, 4, 5], correct_N
    )  # beside rows 0 and 1: 1 of 2 right, and 0 of 2
    mine, theirs = compute_proportion(1, 2), compute_proportion(0, 2)
    assert found.value == pytest.approx(0.5 * (mine.value - theirs.value)) and found.n == 4
    assert found.low == pytest.approx(0.5 * (0.5 - np.hypot(0.5 - mine.low, theirs.high)))
    assert found.high == pytest.approx(0.5 * (0.5 + (mine.high - 0.5)))
    same = compute_purity_difference([2, 1], [1, 2], correct_N)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    with pytest.raises(ValueError, match="one size"):
        compute_purity_difference([0, 1], [0], correct_N)


def test_the_interval_of_purity_covers_the_difference():
    rng, covered = np.random.default_rng(3), 0
    shares = (0.7, 0.62)
    for _ in range(300):
        correct_N = np.concatenate([rng.random(100) < 0.9, rng.random(200) < shares[0], rng.random(200) < shares[1]])
        first, second = np.arange(300), np.concatenate([np.arange(100), np.arange(300, 500)])
        found = compute_purity_difference(first, second, correct_N)
        covered += found.low <= (shares[0] - shares[1]) * 200 / 300 <= found.high
    assert covered >= 0.93 * 300
