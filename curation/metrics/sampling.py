"""Shares in a finite population, estimated from a simple random sample of it without replacement."""

import bisect

import scipy

from curation.metrics.estimates import CONFIDENCE, Estimate, make_undefined


def compute_finite_share(num_right: int, n: int, size: int, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return the share of right rows among ``size`` rows, ``n`` of them drawn, with its exact interval; NaN if n is 0.

    The interval holds the shares that neither one-sided hypergeometric test rejects at half the level (Konijn,
    "Statistical Theory of Sample Survey Design and Analysis", 1973; Buonaccorsi, The American Statistician 41, 1987).
    Its coverage is at least ``confidence`` for every number of right rows. For a large population it approaches that of
    Clopper and Pearson (:func:`curation.metrics.compute_proportion`); if all rows are drawn it is a point.
    """
    if not 0 <= num_right <= n <= size:
        raise ValueError(f"num_right {num_right}, n {n} and size {size} do not ascend from 0")
    if n == 0:
        return make_undefined(0)
    tail = (1 - confidence) / 2
    possible = range(num_right, size - (n - num_right) + 1)  # numbers of right rows in the population
    drawn = scipy.stats.hypergeom
    low = bisect.bisect_left(possible, True, key=lambda total: bool(drawn.sf(num_right - 1, size, total, n) > tail))
    high = bisect.bisect_left(possible, True, key=lambda total: bool(drawn.cdf(num_right, size, total, n) <= tail))
    return Estimate(value=num_right / n, low=possible[low] / size, high=possible[high - 1] / size, n=n)
