"""Totals of a finite population from a sample: coverage by simulation, and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from curation.metrics import Estimate
from curation.metrics.totals import (
    add_exact,
    compute_population_mean,
    compute_ratio,
    make_rough,
    scale_estimate,
    sum_together,
)

REPEATS = 1500


def covered(population_N: np.ndarray, n: int, seed: int) -> tuple[float, float]:
    """Shares of samples whose interval has the population's mean, of ours and of the plain t interval."""
    rng, truth = np.random.default_rng(seed), population_N.mean()
    ours = plain = 0
    for _ in range(REPEATS):
        sample_n = rng.choice(population_N, size=n, replace=False)
        found = compute_population_mean(sample_n, len(population_N))
        ours += found.low <= truth <= found.high
        error = sample_n.std(ddof=1) * math.sqrt(1 / n - 1 / len(population_N))
        plain += abs(sample_n.mean() - truth) <= stats.t.ppf(0.975, n - 1) * error
    return ours / REPEATS, plain / REPEATS


@pytest.mark.parametrize("sigma", [0.0, 0.6, 1.2])
def test_the_interval_of_a_mean_covers_as_often_as_it_says_of_skewed_lengths_too(sigma: float):
    rng = np.random.default_rng(1)
    values_N = rng.normal(100, 20, 2000) if not sigma else np.round(np.exp(rng.normal(4, sigma, 2000)))
    ours, plain = covered(values_N, 200, seed=2)
    assert 0.93 <= ours <= 0.975  # of 1,500 repeats the standard error is 0.006
    assert ours >= plain - 0.004


def test_the_interval_of_a_mean_without_skewness_is_the_t_interval_of_a_finite_population():
    sample_n = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = compute_population_mean(sample_n, 20)
    margin = stats.t.ppf(0.975, 4) * sample_n.std(ddof=1) * math.sqrt(1 / 5 - 1 / 20)
    assert (found.value, found.low, found.high, found.n) == pytest.approx((3, 3 - margin, 3 + margin, 5))
    assert compute_population_mean(sample_n, 5) == Estimate(
        value=3, low=3, high=3, n=5
    )  # all rows: nothing is left open
    other = compute_population_mean(sample_n, 20, is_part=False)
    assert other.high - 3 == pytest.approx(margin * math.sqrt((1 / 5 + 1 / 20) / (1 / 5 - 1 / 20)))
    assert math.isnan(compute_population_mean([4.0], 10).low) and math.isnan(compute_population_mean([], 10).value)
    with pytest.raises(ValueError, match="not part of a population of 4"):
        compute_population_mean(sample_n, 4)


def test_the_interval_of_a_rate_covers_as_often_as_it_says():
    rng, inside = np.random.default_rng(3), 0
    for _ in range(REPEATS):
        rows_M = rng.integers(50, 80, 12)
        seconds_M = rows_M * 0.02 + rng.normal(0, 0.1, 12)
        found = compute_ratio(seconds_M, rows_M)
        inside += found.low <= 0.02 <= found.high
    assert 0.93 <= inside / REPEATS <= 0.97
    assert compute_ratio([2.0, 4.0], [1, 2]).value == 2 and math.isnan(compute_ratio([], []).value)
    assert math.isnan(compute_ratio([2.0], [1]).low)


def test_sums_and_multiples():
    a, b = Estimate(value=10, low=7, high=14, n=5), Estimate(value=1, low=-3, high=4, n=2)
    assert sum_together([a, b]) == Estimate(value=11, low=4, high=18, n=5)
    assert add_exact(a, 2) == Estimate(value=12, low=9, high=16, n=5)
    assert scale_estimate(a, 2) == Estimate(value=20, low=14, high=28, n=5)
    assert math.isnan(sum_together([a, make_rough(1, 2)]).low)  # of a rough part, the sum is rough
