"""Means over the runs of several benchmarks, each benchmark with the same weight, with intervals.

Benchmarks are fixed, not a sample of a larger set, so their spread is no uncertainty. There are two sources of
uncertainty: the test rows, which each run's own interval covers, and the seeds, splits and trainings that differ
between the runs of a benchmark.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy

from curation.arrays import Float64s
from curation.metrics.estimates import TAIL, Estimate, average_over_seeds, make_undefined


def average_over_strata(estimates: Sequence[Estimate], strata: Sequence[str]) -> Estimate:
    """Return the unweighted mean over strata of the means of their estimates; ``n`` is the sum of the estimates' n.

    The interval combines the estimates' own, asymmetric intervals (MOVER: Zou and Donner, Statistics in Medicine 27,
    2008), treats the rows of different estimates as independent, and is NaN if an estimate has no bounds.
    """
    if not estimates:
        return make_undefined(0)
    return compute_weighted_mean(estimates, compute_weights(strata))


def compute_weighted_mean(estimates: Sequence[Estimate], weights: npt.ArrayLike) -> Estimate:
    """Return the mean of independent estimates with known weights, which add up to 1; ``n`` is the sum of their n.

    The interval is MOVER's (see :func:`average_over_strata`). It lies within the weighted means of the bounds, so a
    mean of shares stays between 0 and 1, and one estimate keeps its own interval.
    """
    weight = np.asarray(weights, dtype=np.float64)
    value, low, high = (
        np.array([getattr(item, name) for item in estimates], dtype=np.float64) for name in ("value", "low", "high")
    )
    mean = float(weight @ value)
    below = math.sqrt(float(np.square(weight * (value - low)).sum()))
    above = math.sqrt(float(np.square(weight * (high - value)).sum()))
    return Estimate(value=mean, low=mean - below, high=mean + above, n=sum(item.n for item in estimates))


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
