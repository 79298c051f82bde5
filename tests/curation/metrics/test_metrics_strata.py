import math

import numpy as np
import pytest
from scipy import stats

from curation import metrics


def test_one_stratum_is_the_t_interval_of_scipy():
    values = [0.41, 0.47, 0.44, 0.52]
    found = metrics.average_over_runs(values, ["a"] * 4)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high)) and found.n == 4


def test_two_strata_of_two_differences_are_welch_of_scipy():
    """Half the first mean plus half the second has the width of half of Welch's difference of the two."""
    one, two = [0.1, 0.3, 0.25], [0.7, 0.75, 0.6, 0.8]
    found = metrics.average_over_runs([*one, *two], ["a"] * 3 + ["b"] * 4)
    welch = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    assert found.value == pytest.approx((np.mean(one) + np.mean(two)) / 2)
    assert found.high - found.low == pytest.approx((welch.high - welch.low) / 2)
    assert metrics.average_over_runs([0.5, 0.5, 0.7, 0.7], ["a", "a", "b", "b"]).low == 0.6
    assert (
        metrics.average_over_runs([0.5, 0.6, 0.7], ["a", "a", "b"]) is None
        and metrics.average_over_runs([], []) is None
    )


def test_mean_over_strata_weighs_strata_alike_and_covers():
    shares = [
        metrics.compute_proportion(30, 100),
        metrics.compute_proportion(50, 100),
        metrics.compute_proportion(900, 1000),
    ]
    found = metrics.average_over_strata(shares, ["a", "a", "b"])
    assert found.value == pytest.approx(((0.3 + 0.5) / 2 + 0.9) / 2) and found.n == 1200
    assert metrics.average_over_strata(shares[:1], ["a"]) == shares[0]
    assert math.isnan(metrics.average_over_strata([], []).value)
    rng = np.random.default_rng(0)
    truths, sizes = np.array([0.2, 0.5, 0.97]), (60, 200, 90)
    covered = 0
    for _ in range(400):
        drawn = [metrics.compute_proportion(int(rng.binomial(n, p)), n) for p, n in zip(truths, sizes, strict=True)]
        estimate = metrics.average_over_strata(drawn, ["a", "b", "c"])
        covered += estimate.low <= truths.mean() <= estimate.high
    assert covered / 400 > 0.93
