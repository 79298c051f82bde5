import math

import numpy as np
import pytest
from scipy.stats import hypergeom

from curation.metrics import (
    Estimate,
    average_over_strata,
    compute_finite_share,
    compute_proportion,
    compute_weighted_mean,
)


@pytest.mark.parametrize(("size", "n"), [(1, 1), (7, 3), (12, 12), (25, 10), (40, 9)])
def test_a_share_of_a_finite_population_is_covered_for_every_number_of_right_rows(size: int, n: int):
    """The coverage by enumeration of all samples, and both bounds against a search through all populations."""
    found = [compute_finite_share(right, n, size) for right in range(n + 1)]
    for total in range(size + 1):
        chances = [hypergeom.pmf(right, size, total, n) for right in range(n + 1)]
        covered = sum(
            p for p, item in zip(chances, found, strict=True) if item.low - 1e-12 <= total / size <= item.high + 1e-12
        )
        assert covered >= 0.95 - 1e-9, total
    for right, item in enumerate(found):
        kept = [
            total
            for total in range(size + 1)
            if sum(hypergeom.pmf(x, size, total, n) for x in range(right, n + 1)) > 0.025
            and sum(hypergeom.pmf(x, size, total, n) for x in range(right + 1)) > 0.025
        ]
        assert (item.low, item.high) == (min(kept) / size, max(kept) / size)
        assert item.value == right / n and item.n == n


def test_a_share_of_a_large_population_has_the_interval_of_clopper_and_pearson():
    for right, n in ((0, 20), (7, 30), (150, 200), (200, 200)):
        ours, theirs = compute_finite_share(right, n, 100_000_000), compute_proportion(right, n)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-5)


def test_rows_that_were_all_drawn_leave_nothing_open():
    assert compute_finite_share(3, 4, 4) == Estimate(value=0.75, low=0.75, high=0.75, n=4)
    assert math.isnan(compute_finite_share(0, 0, 9).value)
    for numbers in ((3, 2, 9), (-1, 2, 9), (1, 10, 9)):
        with pytest.raises(ValueError, match="do not ascend"):
            compute_finite_share(*numbers)


def test_a_weighted_mean_is_the_formula_of_mover():
    shares = [compute_proportion(3, 10), compute_proportion(18, 20), compute_proportion(5, 5)]
    weights = np.array([0.5, 0.3, 0.2])
    found = compute_weighted_mean(shares, weights)
    assert found.value == pytest.approx(0.5 * 0.3 + 0.3 * 0.9 + 0.2)
    below = sum((w * (s.value - s.low)) ** 2 for w, s in zip(weights, shares, strict=True)) ** 0.5
    above = sum((w * (s.high - s.value)) ** 2 for w, s in zip(weights, shares, strict=True)) ** 0.5
    assert (found.low, found.high) == pytest.approx((found.value - below, found.value + above))
    assert found.n == 35 and 0 <= found.low <= found.high <= 1
    assert compute_weighted_mean(shares[:1], [1]) == shares[0]
    assert compute_weighted_mean(shares, [1 / 3] * 3) == average_over_strata(shares, ["a", "b", "c"])
