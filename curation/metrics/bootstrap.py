"""A bootstrap that resamples the counts of cells instead of single rows.

Rows of one class and (almost) one score share a cell, so a thousand resamples of a million rows cost hardly more than
those of ten thousand. Resampling cannot show variation that the sample lacks: the interval from a few rows, or from
identical rows, is too narrow, and that from a single row is a point.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curation.arrays import Floats, Int64s
from curation.metrics.estimates import TAIL, Estimate

RESAMPLES = 1000
_CHUNK = 50


def resample(
    counts: Int64s,
    statistic: Callable[[Int64s], Floats],
    seed: int,
    resamples: int = RESAMPLES,
    *,
    by_cluster: Any = None,
) -> Floats:
    """Return the statistic of ``resamples`` bootstrap draws, [R, ...]; each draw has as many rows as the sample.

    If ``by_cluster`` has the counts of each cluster of rows, a sparse matrix [K, cells], each draw takes K clusters
    instead.
    """
    if by_cluster is not None:
        num = by_cluster.shape[0]
        drawn_RK = np.random.default_rng(seed).multinomial(num, np.full(num, 1 / num), size=resamples)
        drawn = (by_cluster.T @ drawn_RK.T).T
        return np.concatenate([statistic(part) for part in np.split(drawn, range(_CHUNK, resamples, _CHUNK))])
    filled = np.flatnonzero(counts)
    drawn_RF = _draw_counts(counts.ravel()[filled].astype(np.int64).tobytes(), seed, resamples)
    values = []
    for chunk_RF in np.split(drawn_RF, range(_CHUNK, resamples, _CHUNK)):
        drawn = np.zeros((len(chunk_RF), counts.size), dtype=np.int64)
        drawn[:, filled] = chunk_RF
        values.append(statistic(drawn.reshape(len(chunk_RF), *counts.shape)))
    return np.concatenate(values)


@lru_cache(maxsize=4)
def _draw_counts(counts: bytes, seed: int, resamples: int) -> NDArray[Any]:
    """Draw counts of the F cells that have rows, [R, F]; cache them for the next statistic, since drawing is slow."""
    counts_F = np.frombuffer(counts, dtype=np.int64)
    num_rows, rng = int(counts_F.sum()), np.random.default_rng(seed)
    drawn_RF = np.empty((resamples, len(counts_F)), np.min_scalar_type(num_rows))
    for part_RF in np.split(drawn_RF, range(_CHUNK, resamples, _CHUNK)):
        part_RF[:] = rng.multinomial(num_rows, counts_F / num_rows, size=len(part_RF))
    return drawn_RF


def compute_percentiles(value: float, resampled_R: Floats, n: int) -> Estimate:
    """Return the value with quantiles of its resampled values as bounds; ignore draws where it is undefined (NaN)."""
    low, high = np.nanquantile(resampled_R, [TAIL, 1 - TAIL])
    return Estimate(value=value, low=float(low), high=float(high), n=n)


def compute_reflected(value: float, resampled_R: Floats, n: int, *, floor: float = -1.0) -> Estimate:
    """Return the basic bootstrap interval: quantiles mirrored at the value, widened to contain it, in [``floor``, 1].

    It suits statistics that resampling biases by the same amount as sampling did.
    """
    quantiles = compute_percentiles(value, resampled_R, n)
    low, high = 2 * value - quantiles.high, 2 * value - quantiles.low
    return Estimate(value=value, low=max(floor, min(low, value)), high=min(1.0, max(high, value)), n=n)
