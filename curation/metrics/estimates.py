"""Estimates with their n and 95 % interval: shares (exact), of clustered rows and finite populations, and means.

Rows in clusters (``splits.group``) carry less information than independent rows. In means over the runs of several
benchmarks each has the same weight. Benchmarks are fixed, not a sample of a larger set, so their spread is no
uncertainty. There are two sources of uncertainty: the test rows, which each run's own interval covers, and the seeds,
splits and trainings that differ between the runs of a benchmark.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator

from curation.arrays import Bools, Float64s, Floats, Int64s

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
NORMAL_QUANTILE = 1.959963984540054
_BISECTIONS = 60
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that reads ``null`` in JSON as NaN."""


Clusters = Int64s | None
"""The cluster of each row, or None if rows are independent."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value, the bounds of its 95 % interval and its number of rows; value and bounds are NaN if undefined."""

    value: Number
    low: Number
    high: Number
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """Return the estimate as a JSON object; ``null`` for values that are not finite."""
        numbers = {name: float(x) if math.isfinite(x) else None for name, x in asdict(self).items()}
        return {**numbers, "n": int(self.n)}


def compute_proportion(num_right: int, n: int, *, confidence: float = CONFIDENCE, inflation: float = 1.0) -> Estimate:
    """Return a share of rows with its exact interval (Clopper and Pearson 1934); NaN for no rows.

    With the ``inflation`` of rows in clusters (:func:`compute_inflation`) it is that of n / ``inflation`` rows.
    """
    if not 0 <= num_right <= n:
        raise ValueError(f"num_right {num_right} is not between 0 and n = {n}")
    if n == 0:
        return make_undefined(0)
    low, high = bound_share(num_right / inflation, (n - num_right) / inflation, (1 - confidence) / 2)
    return Estimate(value=num_right / n, low=low, high=high, n=int(n))


def bound_share(right: float, wrong: float, tail: float) -> tuple[float, float]:
    """Return the bounds of a share by Clopper and Pearson, each with probability ``tail``; counts need not be whole."""
    low = float(scipy.special.betaincinv(right, wrong + 1, tail)) if right > 0 else 0.0
    high = float(scipy.special.betaincinv(right + 1, wrong, 1 - tail)) if wrong > 0 else 1.0
    return low, high


def average_over_seeds(values: Sequence[float]) -> Estimate:
    """Return the mean of a number over runs that differ only in their seed, with its t interval.

    The interval covers other seeds on the same test rows, but not other test rows, which each run's own interval does.
    One run has a mean and no interval (NaN). Without runs all are NaN. The caller leaves out, and counts, runs in which
    the number is undefined.
    """
    runs = np.asarray(values, dtype=np.float64)
    if not np.isfinite(runs).all():
        raise ValueError(f"{int((~np.isfinite(runs)).sum())} of {len(runs)} runs have no finite value: leave them out")
    n = len(runs)
    mean = float(runs.mean()) if n else math.nan
    margin = math.nan
    if n > 1:
        margin = float(scipy.special.stdtrit(n - 1, 1 - TAIL)) * float(runs.std(ddof=1)) / math.sqrt(n)
    return Estimate(value=mean, low=mean - margin, high=mean + margin, n=n)


def make_undefined(n: int) -> Estimate:
    """Return an undefined estimate over ``n`` rows."""
    return Estimate(value=math.nan, low=math.nan, high=math.nan, n=n)


NO_ROWS = 1e-9
"""Minimum effective number of independent rows; rows of one cluster have it, so their interval excludes nothing."""


def compute_inflation(influence_N: Floats, cluster_N: Clusters, *, confidence: float = CONFIDENCE) -> float:
    """Return the ratio of an estimate's variance to its variance with as many independent rows; at least 1.

    ``influence_N`` is each row's influence on the estimate, less its mean, in any unit. Rows without clusters are
    independent, which gives 1. Clusters are independent, so the variance is that of their sums (the design effect, Kish
    1965; for an AUC, Obuchowski 1997). G clusters estimate it with G - 1 degrees of freedom, so it is multiplied by the
    squared ratio of the quantiles of the t and the normal distribution, which gives the interval its confidence (Korn
    and Graubard 1998). If no row has influence, e.g. because all are right, a cluster counts as one row. One cluster
    gives inf.
    """
    if cluster_N is None or not len(cluster_N):
        return 1.0
    _, place_N, size_C = np.unique(cluster_N, return_inverse=True, return_counts=True)
    num_clusters = len(size_C)
    if num_clusters == 1:
        return math.inf
    by_rows = float(influence_N @ influence_N)
    if by_rows > 0:
        sum_C = np.bincount(place_N, influence_N)
        effect = num_clusters / (num_clusters - 1) * float(sum_C @ sum_C) / by_rows
    else:
        effect = len(cluster_N) / num_clusters
    as_many = len(cluster_N) ** 2 / float(size_C @ size_C)
    quantile = (1 + confidence) / 2
    ratio = float(scipy.special.stdtrit(as_many - 1, quantile)) / float(scipy.special.ndtri(quantile))
    return max(1.0, effect) * ratio**2


def compute_share_right(correct_N: Bools, cluster_N: Clusters = None, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return the share of right rows with its exact interval, widened for clusters; NaN for no rows."""
    right, n = int(correct_N.sum()), len(correct_N)
    times = compute_inflation(correct_N - right / max(n, 1), cluster_N, confidence=confidence)
    return compute_proportion(right, n, confidence=confidence, inflation=times)


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


def score_interval(num_first: float, num_second: float, n: float, *, num_rows: int) -> Estimate:
    """Return a paired difference with Tango's interval for counts out of ``n`` rows; its own n is ``num_rows``."""
    if num_rows == 0:
        return make_undefined(0)
    low, high = _score_bound(num_first, num_second, n), -_score_bound(num_second, num_first, n)
    return Estimate(value=(num_first - num_second) / n, low=low, high=high, n=num_rows)


def _score_bound(num_first: float, num_second: float, n: float) -> float:
    """Return the smallest difference that a one-sided score test at 2.5 % does not reject."""
    low, high = -1.0, (num_first - num_second) / n
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        linear = (2 * n - num_first + num_second) * middle - (num_first + num_second)
        constant = num_second * middle * (1 - middle)
        # The most likely share of rows that only the second model has right, given the difference.
        second_only = (math.sqrt(max(0.0, linear**2 + 8 * n * constant)) - linear) / (4 * n)
        variance = max(0.0, 2 * second_only + middle * (1 - middle))
        rejected = num_first - num_second - n * middle > NORMAL_QUANTILE * math.sqrt(n * variance)
        low, high = (middle, high) if rejected else (low, middle)
    return low


def average_over_strata(estimates: Sequence[Estimate], strata: Sequence[str]) -> Estimate:
    """Return the unweighted mean over strata of the means of their estimates; ``n`` is the sum of the estimates' n.

    The interval combines the estimates' own, asymmetric intervals (MOVER: Zou and Donner, Statistics in Medicine 27,
    2008), treats the rows of different estimates as independent, and is NaN if an estimate has no bounds.
    """
    if not estimates:
        return make_undefined(0)
    return compute_weighted_mean(estimates, compute_weights(strata))


def compute_weighted_mean(estimates: Sequence[Estimate], weights: ArrayLike) -> Estimate:
    """Return the mean of independent estimates with known weights, which add up to 1; ``n`` is the sum of their n.

    The interval is MOVER's (see :func:`average_over_strata`). It lies within the weighted means of the bounds, so a
    mean of shares stays between 0 and 1, and one estimate keeps its own interval.
    """
    weight = np.asarray(weights, dtype=np.float64)
    bounds = [(item.value, item.low, item.high) for item in estimates]
    value, low, high = np.array(bounds, dtype=np.float64).reshape(-1, 3).T
    mean = float(weight @ value)
    below = math.sqrt(float(np.square(weight * (value - low)).sum()))
    above = math.sqrt(float(np.square(weight * (high - value)).sum()))
    return Estimate(value=mean, low=mean - below, high=mean + above, n=sum(item.n for item in estimates))


def compute_difference(first: Estimate, second: Estimate) -> Estimate:
    """Return the first share minus the second, of different rows, with MOVER's interval (Newcombe 1998)."""
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value=value, low=low, high=high, n=first.n)


def average_over_runs(values: Sequence[float], strata: Sequence[str]) -> Estimate | None:
    """Return the unweighted mean over strata of their runs' means, with a t interval from the spread within strata.

    ``n`` is the number of runs. One stratum is averaged by :func:`average_over_seeds`; over several, the degrees of
    freedom are Satterthwaite's (Biometrics Bulletin 2, 1946). ``None`` if a stratum has a single run, or without runs.
    """
    runs = {name: np.array([v for v, of in zip(values, strata, strict=True) if of == name]) for name in strata}
    if not runs or min(map(len, runs.values())) < 2:
        return None
    if len(runs) == 1:
        return average_over_seeds(values)
    mean = float(compute_weights(strata) @ np.asarray(values, dtype=np.float64))
    parts = np.array([of.var(ddof=1) / len(of) for of in runs.values()]) / len(runs) ** 2
    freedom = np.array([len(of) - 1 for of in runs.values()])
    variance = float(parts.sum())
    margin = 0.0
    if variance:
        joined = variance**2 / float((parts**2 / freedom).sum())  # degrees of freedom
        margin = float(scipy.special.stdtrit(joined, 1 - TAIL)) * math.sqrt(variance)
    return Estimate(value=mean, low=mean - margin, high=mean + margin, n=len(values))


def compute_weights(strata: Sequence[str]) -> Float64s:
    """Return the weight of each of S runs in a mean over strata of the means of their runs, [S]."""
    names = list(strata)
    return np.array([1 / names.count(name) for name in names]) / len(set(names))


def as_scores(values: ArrayLike) -> Floats:
    """Return scores [N] as float64; infinite ones are allowed."""
    scores_N = np.asarray(values, dtype=np.float64)
    if scores_N.ndim != 1:
        raise ValueError(f"scores have shape {scores_N.shape}, not one dimension")
    if np.isnan(scores_N).any():
        raise ValueError(f"{int(np.isnan(scores_N).sum())} of {len(scores_N)} scores are NaN: leave those rows out")
    return scores_N


def as_flags(values: ArrayLike, *, over_runs: bool = False) -> Bools:
    """Return correctness [N] as booleans or, ``over_runs``, [N, J] with J at least 1."""
    given = np.asarray(values)
    flags: Bools = given.astype(np.bool_)
    is_shaped = given.ndim == 2 and given.shape[1] > 0 if over_runs else given.ndim == 1
    if not is_shaped or not np.array_equal(flags, given):
        shape = "over runs must be rows by runs, of" if over_runs else "must be one dimension of"
        raise ValueError(f"correctness {shape} booleans (or 0 and 1)")
    return flags


def check_same_length(*arrays: NDArray[Any]) -> None:
    """Raise ``ValueError`` if the arrays differ in length."""
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(f"lengths differ: {' and '.join(map(str, lengths))}")
