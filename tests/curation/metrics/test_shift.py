import json
import math
import time

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.linear_model import Ridge

from curation import metrics
from curation.metrics.shift import Shift, _fit_ridge, compare_samples


def _states(n, dims, seed, mean=0.0, scale=1.0):
    """Rows of a correlated normal distribution, whose covariance is that of all seeds."""
    mix = np.random.default_rng(99).normal(size=(dims, dims)) / np.sqrt(np.arange(1, dims + 1))
    return (scale * np.random.default_rng(seed).normal(size=(n, dims)) @ mix.T + mean).astype(np.float16)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "dims"), [(20, 6), (30, 200)])
def test_one_distribution_differs_in_5_percent(rows, dims):
    trials = 200
    found = [compare_samples(_states(rows, dims, 2 * i), _states(rows, dims, 2 * i + 1), seed=i) for i in range(trials)]
    num_differing = sum(shift.differs for shift in found)
    # Exact level .05: outside these bounds with a probability below 0.2 %.
    assert binom.ppf(0.001, trials, 0.05) <= num_differing <= binom.ppf(0.999, trials, 0.05)
    assert np.mean([shift.auc.low <= 0.5 <= shift.auc.high for shift in found]) > 0.89
    assert np.mean([shift.p_value for shift in found]) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    ("rows", "dims", "mean", "scale", "strengths"),
    [
        (400, 32, 0.4, 1.0, {"clear", "severe"}),
        (400, 32, 0.0, 1.25, {"slight", "clear", "severe"}),  # spread alone
        (60, 1024, 1.0, 1.0, {"severe"}),  # far fewer rows than dimensions
    ],
)
def test_a_shift_of_mean_or_spread_is_found(rows, dims, mean, scale, strengths):
    source = _states(rows, dims, 1)
    found = [compare_samples(source, _states(rows, dims, 2 + i, mean, scale), seed=i) for i in range(5)]
    assert {shift.strength for shift in found} <= strengths
    for shift in found:
        assert shift.differs
        assert 0.5 < shift.auc.low <= shift.auc.value <= shift.auc.high
        assert shift.strength in shift.warning()


def test_small_p_values_and_perfect_separation():
    shift = compare_samples(_states(300, 16, 1), _states(200, 16, 2, mean=50), seed=0)
    assert (shift.strength, shift.auc.value) == ("severe", 1.0)
    assert 0.9 < shift.auc.low < 1
    assert 0 < shift.p_value < 1e-30
    assert (shift.num_source, shift.num_pool, shift.auc.n) == (300, 200, 250)
    assert json.loads(json.dumps(shift.to_json()))["differs"] is True


def test_rows_with_nan_or_infinity_are_left_out():
    source, pool = _states(80, 8, 1), _states(90, 8, 2)
    source[:7, 3], pool[5, 0], pool[6, 7] = np.nan, np.inf, -np.inf
    shift = compare_samples(source, pool, seed=0)
    assert (shift.num_source, shift.num_pool) == (73, 88)
    assert math.isfinite(shift.auc.value)


def test_max_rows_and_seed():
    source, pool = _states(300, 8, 1), _states(500, 8, 2, mean=0.1)
    shift = compare_samples(source, pool, seed=3, max_rows=120)
    assert (shift.num_source, shift.num_pool, shift.auc.n) == (120, 120, 120)
    assert shift == compare_samples(source, pool, seed=3, max_rows=120)
    assert shift.p_value != compare_samples(source, pool, seed=4, max_rows=120).p_value


@pytest.mark.parametrize(("num_source", "num_pool"), [(0, 0), (0, 50), (19, 500), (500, 1)])
def test_too_few_rows_are_untested(num_source, num_pool):
    shift = compare_samples(_states(num_source, 4, 1), _states(num_pool, 4, 2, mean=9), seed=0)
    assert (shift.strength, shift.differs, shift.p_value) == ("untested", False, 1.0)
    assert math.isnan(shift.auc.value)
    assert f"{num_source} labelled rows and {num_pool} of the pool" in shift.warning()
    assert shift.to_json()["auc"]["value"] is None
    assert compare_samples(np.zeros((0, 1)), _states(30, 4, 1), seed=0).strength == "untested"


def test_states_that_are_all_alike_do_not_differ():
    shift = compare_samples(np.ones((40, 5)), np.ones((40, 5)), seed=0)
    assert (shift.auc.value, shift.strength, shift.warning()) == (0.5, "none shown", None)
    constant = np.zeros((60, 3))
    assert compare_samples(constant, constant + 1, seed=0).strength == "severe"


@pytest.mark.parametrize("pool", [np.zeros((30, 5)), np.zeros(30), np.zeros((30, 4, 1))])
def test_other_shapes_are_refused(pool):
    with pytest.raises(ValueError, match=r"not \[N, D\] and \[M, D\]"):
        compare_samples(np.zeros((30, 4)), pool, seed=0)


@pytest.mark.parametrize(
    ("auc", "p_value", "strength"),
    [(0.55, 0.2, "none shown"), (0.55, 0.01, "slight"), (0.6, 0.01, "clear"), (0.8, 0.01, "severe")],
)
def test_strength_goes_by_the_stated_bands(auc, p_value, strength):
    estimate = metrics.Estimate(value=auc, low=auc - 0.05, high=auc + 0.05, n=1000)
    shift = Shift(auc=estimate, p_value=p_value, num_source=1000, num_pool=1000)
    assert shift.strength == strength
    assert (shift.warning() is None) == (strength == "none shown")


@pytest.mark.parametrize(("rows", "dims"), [(300, 40), (50, 200)])
def test_ridge_equals_scikit_learn(rows, dims):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, dims)).astype(np.float32)
    is_pool = rng.random(rows) < 0.4
    exact = Ridge(alpha=0.1 * dims, fit_intercept=False).fit(features, is_pool - is_pool.mean()).coef_
    assert np.abs(_fit_ridge(features, is_pool) - exact).max() < 0.01 * np.abs(exact).max()


def test_rank_test_is_that_of_the_auc():
    """AUC and p-value are of one statistic: an AUC of 0.5 has p = 0.5."""
    rng = np.random.default_rng(0)
    shift = compare_samples(rng.normal(size=(400, 4)), rng.normal(0.1, 1, size=(400, 4)), seed=1)
    statistic = shift.auc.value * 200 * 200
    deviation = math.sqrt(200 * 200 * 401 / 12)
    normal = 0.5 * math.erfc((statistic - 0.5 - 200 * 200 / 2) / deviation / math.sqrt(2))
    assert shift.p_value == pytest.approx(normal, rel=1e-6)


@pytest.mark.long
def test_five_thousand_rows_of_1024_take_seconds():
    rng = np.random.default_rng(0)
    source, pool = rng.normal(size=(2, 5000, 1024)).astype(np.float16)
    start = time.process_time()
    compare_samples(source, pool, seed=0)
    assert time.process_time() - start < 10  # 1.6 s on a slow core
