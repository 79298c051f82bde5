"""Estimates with their n and 95 % interval: shares (exact) and means over seeds (t)."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import scipy
from pydantic import BeforeValidator

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
NORMAL_QUANTILE = 1.959963984540054
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that reads ``null`` in JSON as NaN."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value, the bounds of its 95 % interval and its number of rows; value and bounds are NaN if undefined."""

    value: Number
    low: Number
    high: Number
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """Return the estimate as a JSON object; ``null`` for values that are not finite."""
        numbers: dict[str, float | int] = {**asdict(self), "n": int(self.n)}
        return {
            name: x if isinstance(x, int) else float(x) if math.isfinite(x) else None for name, x in numbers.items()
        }


@dataclass(frozen=True, kw_only=True)
class SeedEstimate(Estimate):
    """A mean over ``n`` runs, its t interval and the runs' standard deviation ``sd`` (of a sample: n - 1)."""

    sd: float


def compute_proportion(num_right: int, n: int, *, confidence: float = CONFIDENCE, inflation: float = 1.0) -> Estimate:
    """Return a share of rows with its exact interval (Clopper and Pearson 1934); NaN for no rows.

    With the ``inflation`` of rows in clusters (``curation.metrics.clusters``) it is that of n / ``inflation`` rows.
    """
    if not 0 <= num_right <= n:
        raise ValueError(f"num_right {num_right} is not between 0 and n = {n}")
    if n == 0:
        return make_undefined(0)
    tail = (1 - confidence) / 2
    right, wrong = num_right / inflation, (n - num_right) / inflation
    low = float(scipy.special.betaincinv(right, wrong + 1, tail)) if right > 0 else 0.0
    high = float(scipy.special.betaincinv(right + 1, wrong, 1 - tail)) if wrong > 0 else 1.0
    return Estimate(value=num_right / n, low=low, high=high, n=int(n))


def average_over_seeds(values: Sequence[float]) -> SeedEstimate:
    """Return the mean of a number over runs that differ only in their seed, with its t interval and standard deviation.

    The interval covers other seeds on the same test rows, but not other test rows, which each run's own interval does.
    One run has a mean and no spread (NaN). Without runs all are NaN. The caller leaves out, and counts, runs in which
    the number is undefined.
    """
    runs = np.asarray(values, dtype=np.float64)
    if not np.isfinite(runs).all():
        raise ValueError(f"{int((~np.isfinite(runs)).sum())} of {len(runs)} runs have no finite value: leave them out")
    n = len(runs)
    mean = float(runs.mean()) if n else math.nan
    sd = float(runs.std(ddof=1)) if n > 1 else math.nan
    margin = float(scipy.special.stdtrit(n - 1, 1 - TAIL)) * sd / math.sqrt(n) if n > 1 else math.nan
    return SeedEstimate(value=mean, low=mean - margin, high=mean + margin, n=n, sd=sd)


def make_undefined(n: int) -> Estimate:
    """Return an undefined estimate over ``n`` rows."""
    return Estimate(value=math.nan, low=math.nan, high=math.nan, n=n)
