"""Forecasts from a random sample: means and totals of a finite population, rates from batches, sums of estimates."""

import math
from collections.abc import Iterable

import numpy as np
import scipy
from numpy.typing import ArrayLike

from curation.metrics.estimates import TAIL, Estimate, make_undefined


def compute_population_mean(sample_N: ArrayLike, population: int, *, is_part: bool = True) -> Estimate:
    """Return the mean of a number over a ``population`` of rows, from a simple random sample without replacement.

    The interval is the t interval with Hall's correction for skewness ("On the Removal of Skewness by Transformation",
    JRSS B 1992): lengths of texts are skewed, and the plain t interval would miss too often on the high side. Its
    variance is that of a finite population. With ``is_part`` the sample is drawn from the population itself, so a
    sample of all rows has no error. Otherwise it is drawn from other rows of the same distribution.

    The mean is NaN for no rows; one row has a mean and no interval.
    """
    values_N = np.asarray(sample_N, dtype=np.float64)
    n = len(values_N)
    if not n or population < 1:
        return make_undefined(n)
    if is_part and n > population:
        raise ValueError(f"a sample of {n} rows is not part of a population of {population}")
    mean = float(values_N.mean())
    if n == 1 and not (is_part and population == 1):
        return Estimate(value=mean, low=math.nan, high=math.nan, n=n)
    sd = float(values_N.std(ddof=1)) if n > 1 else 0.0
    if not sd or (is_part and n == population):
        return make_exact(mean, n)
    variance = sd**2 * (1 / n - 1 / population if is_part else 1 / n + 1 / population)
    skewness = float(((values_N - mean) ** 3).mean()) / sd**3
    quantile, root_n = float(scipy.special.stdtrit(n - 1, 1 - TAIL)), math.sqrt(n)
    ends = [quantile, -quantile]
    if abs(skewness) >= 1e-8:  # Hall's cubic transformation of the t statistic, inverted
        roots = [math.cbrt(1 + skewness / root_n * (y - skewness / (6 * root_n))) for y in ends]
        ends = [3 * root_n / skewness * (root - 1) for root in roots]
    low, high = (mean - math.sqrt(variance) * end for end in ends)
    return Estimate(value=mean, low=min(low, mean), high=max(high, mean), n=n)


def compute_ratio(parts_M: ArrayLike, wholes_M: ArrayLike) -> Estimate:
    """Return the sum of ``parts_M`` over that of ``wholes_M``, e.g. seconds per row; n is the number of batches, M.

    The interval is the t interval of the ratio estimator (Cochran, "Sampling Techniques", 1977, section 6.4), with the
    variance of the batches' deviations, which are independent if batches are long. The ratio is NaN without a batch;
    one batch has a ratio and no interval.
    """
    over_M, under_M = np.asarray(parts_M, dtype=np.float64), np.asarray(wholes_M, dtype=np.float64)
    m = len(over_M)
    if not m or not under_M.sum() > 0:
        return make_undefined(m)
    value = float(over_M.sum() / under_M.sum())
    if m == 1:
        return Estimate(value=value, low=math.nan, high=math.nan, n=m)
    residual_M = over_M - value * under_M
    error = math.sqrt(float((residual_M**2).sum()) / (m - 1) / m) / float(under_M.mean())
    margin = float(scipy.special.stdtrit(m - 1, 1 - TAIL)) * error
    return Estimate(value=value, low=max(0.0, value - margin), high=value + margin, n=m)


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate multiplied by ``factor``, which is known and not negative."""
    value, low, high = (factor * x for x in (estimate.value, estimate.low, estimate.high))
    return Estimate(value=value, low=low, high=high, n=estimate.n)


def sum_together(estimates: Iterable[Estimate]) -> Estimate:
    """Return the sum of estimates from one sample of n rows; their bounds add up, since they share one error."""
    items = list(estimates)
    value, low, high = (math.fsum(getattr(item, name) for item in items) for name in ("value", "low", "high"))
    return Estimate(value=value, low=low, high=high, n=max((item.n for item in items), default=0))


def add_exact(estimate: Estimate, number: float) -> Estimate:
    """Return the sum of an estimate and a number that is known exactly."""
    value, low, high = (number + x for x in (estimate.value, estimate.low, estimate.high))
    return Estimate(value=value, low=low, high=high, n=estimate.n)


def make_exact(value: float, n: int = 0) -> Estimate:
    """Return a number that is known exactly as an estimate without error."""
    return Estimate(value=value, low=value, high=value, n=n)


def make_rough(value: float, n: int) -> Estimate:
    """Return a value of unknown error as an estimate without an interval."""
    return Estimate(value=value, low=math.nan, high=math.nan, n=n)
