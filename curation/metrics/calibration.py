"""Calibration of trust scores: ECE, Brier score, reliability diagram.

Bins have equal width over [0, 1].

The bootstrap resamples the counts of cells instead of single rows. Rows of one class and (almost) one score share a
cell, so a thousand resamples of a million rows cost hardly more than those of ten thousand. Resampling cannot show
variation that the sample lacks: the interval from a few rows, or from identical rows, is too narrow, and that from a
single row is a point.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from curation.arrays import Bools, Floats, Int64s
from curation.metrics.estimates import (
    NORMAL_QUANTILE,
    TAIL,
    Clusters,
    Estimate,
    as_flags,
    as_scores,
    check_same_length,
    compute_proportion,
    make_undefined,
)

NUM_BINS = 15
"""Number of bins of the calibration error (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017)."""
_INNER_EDGES = np.arange(1, NUM_BINS) / NUM_BINS
_CELLS_PER_BIN, _CELLS_OF_MANY, _MANY_ROWS = 256, 32, 4096
"""Number of cells per bin for up to ``_MANY_ROWS`` rows, and for more: resampling time grows with the cells."""
RESAMPLES = 1000
_CHUNK = 50


class ReliabilityBin(NamedTuple):
    """A bin of the rows whose trust lies in (low, high]; the first bin includes 0."""

    low: float
    high: float
    mean_trust: float
    share_right: Estimate


def ece(
    trust_N: ArrayLike,
    correct_N: ArrayLike,
    *,
    seed: int = 0,
    cluster_N: Clusters = None,
) -> Estimate:
    """Return the expected calibration error over bins, with an interval for the population's error over the same bins.

    The estimate is biased upwards, because a bin's gap counts by its size even if it is noise. Both bounds follow from
    how a sum of absolute values varies. The lower bound uses signed noise for bins with a clear gap, and absolute noise
    for the others (the bootstrap of directionally differentiable functions, Fang and Santos 2019). The upper bound uses
    the signed noise of all bins, because the sum is convex. A gap is clear if it exceeds sqrt(log N) standard errors of
    calibrated trust. For other gaps these standard errors also serve as the noise, because a bin of a few rows that are
    all right has no observed noise.

    Here and in the other functions, clusters are resampled if ``cluster_N`` has the clusters of the rows.
    """
    trust, correct = _check_inputs(trust_N, correct_N)
    n = len(trust)
    if n == 0:
        return make_undefined(0)
    cells = _count_cells(trust, correct, cluster_N)
    gap_B = cells.gap_sums(cells.counts_C) / n
    calibrated_B = np.sqrt(cells.by_bin(cells.counts_C * cells.mean_trust_C * (1 - cells.mean_trust_C))) / n
    clear_B = np.abs(gap_B) > math.sqrt(math.log(n + 1)) * calibrated_B
    noise_RB = resample(cells.counts_C, cells.gap_sums, seed, by_cluster=cells.by_cluster) / n - gap_B
    noise_RB = np.where(clear_B, noise_RB, np.random.default_rng([seed, 1]).normal(0, calibrated_B, noise_RB.shape))
    signed_RB = np.sign(gap_B) * noise_RB
    value = float(np.abs(gap_B).sum())
    down = float(np.quantile(np.where(clear_B, signed_RB, np.abs(noise_RB)).sum(axis=1), 1 - TAIL))
    up = NORMAL_QUANTILE * float(signed_RB.sum(axis=1).std())
    return Estimate(value=value, low=max(0.0, value - max(0.0, down)), high=min(1.0, value + up), n=n)


def brier(trust_N: ArrayLike, correct_N: ArrayLike, *, seed: int = 0, cluster_N: Clusters = None) -> Estimate:
    """Return the Brier score, the mean squared distance of trust from 1 (right) or 0 (wrong), with its interval."""
    trust, correct = _check_inputs(trust_N, correct_N)
    if len(trust) == 0:
        return make_undefined(0)
    cells = _count_cells(trust, correct, cluster_N)
    value = float(((trust - correct) ** 2).mean())
    shift = value - float(cells.brier(cells.counts_C))
    low, high = np.nanquantile(
        resample(cells.counts_C, cells.brier, seed, by_cluster=cells.by_cluster) + shift, [TAIL, 1 - TAIL]
    )
    return Estimate(value=value, low=float(low), high=float(high), n=len(trust))


def compute_reliability(trust_N: ArrayLike, correct_N: ArrayLike) -> list[ReliabilityBin]:
    """Return the reliability diagram: mean trust and share of right labels of each bin that has rows."""
    trust, correct = _check_inputs(trust_N, correct_N)
    edges, bin_N = [0.0, *_INNER_EDGES.tolist(), 1.0], np.searchsorted(_INNER_EDGES, trust)
    counts, sums, rights = (np.bincount(bin_N, of_N, minlength=NUM_BINS) for of_N in (None, trust, correct))
    filled = [(edges[b], edges[b + 1], b) for b in np.flatnonzero(counts).tolist()]
    shares = {b: compute_proportion(int(rights[b]), int(counts[b])) for *_, b in filled}
    return [ReliabilityBin(low, high, float(sums[b] / counts[b]), shares[b]) for low, high, b in filled]


def _check_inputs(trust_N: ArrayLike, correct_N: ArrayLike) -> tuple[Floats, Bools]:
    """Return trust and correctness as arrays [N]; raise ``ValueError`` if a value or a length is invalid."""
    trust, correct = as_scores(trust_N), as_flags(correct_N)
    if len(trust) and not (trust.min() >= 0 and trust.max() <= 1):
        raise ValueError(f"trust scores range from {trust.min()} to {trust.max()}, not within [0, 1]")
    check_same_length(trust, correct)
    return trust, correct


class _Cells(NamedTuple):
    """Cells of one class and nearly equal trust, nested in the bins: rows, mean trust, class (0 or 1), each [C].

    A cell spans 1/256 of a bin, or 1/32 if there are many rows, so that the differences between its rows add no visible
    variance to a sum: within 1/32 of a bin of width 1/15 trust has a standard deviation of .0006. Only cells and bins
    with rows are stored; ``starts_B`` is the first cell of each bin.
    """

    counts_C: Int64s
    mean_trust_C: Floats
    right_C: Floats
    starts_B: Int64s
    by_cluster: Any = None
    """Counts of each cluster of rows, a sparse matrix [K, C], or None if rows are independent."""

    def by_bin(self, values: NDArray[Any]) -> Floats:
        """Return sums of values [..., C] over each bin, [..., B]."""
        return np.asarray(np.add.reduceat(values, self.starts_B, axis=-1))

    def gap_sums(self, counts: Int64s) -> Floats:
        """Return the sum of correctness minus trust over the rows of each bin, [..., B]."""
        return self.by_bin(counts * (self.right_C - self.mean_trust_C))

    def brier(self, counts: Int64s) -> Floats:
        """Return the Brier score of counts [..., C], [...]."""
        return np.asarray(counts @ (self.mean_trust_C - self.right_C) ** 2 / counts.sum(axis=-1))


def _count_cells(trust_N: Floats, correct_N: Bools, cluster_N: Int64s | None) -> _Cells:
    bin_N = np.searchsorted(_INNER_EDGES, trust_N)  # of (low, high]
    edges = np.concatenate([[0.0], _INNER_EDGES, [1.0]])
    width_N = np.maximum(edges[bin_N + 1] - edges[bin_N], np.finfo(np.float64).tiny)
    num = _CELLS_PER_BIN if len(trust_N) <= _MANY_ROWS else _CELLS_OF_MANY
    part_N = np.clip((trust_N - edges[bin_N]) / width_N * num, 0, num - 1).astype(np.int64)
    cell_N = (bin_N * num + part_N) * 2 + correct_N
    rows = np.bincount(cell_N)
    cell_C = np.flatnonzero(rows)
    counts_C, sums_C = rows[cell_C], np.bincount(cell_N, trust_N)[cell_C]
    starts_B = np.flatnonzero(np.diff(cell_C // (2 * num), prepend=-1))
    by_cluster = None
    if cluster_N is not None:
        _, place_N = np.unique(cluster_N, return_inverse=True)
        at = (place_N, np.searchsorted(cell_C, cell_N))
        by_cluster = scipy.sparse.coo_array(
            (np.ones(len(trust_N), dtype=np.int64), at), shape=(int(place_N.max()) + 1, len(cell_C))
        ).tocsr()
    return _Cells(counts_C, sums_C / counts_C, (cell_C % 2).astype(np.float64), starts_B, by_cluster)


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
    drawn_RF = _draw_counts(counts.astype(np.int64).tobytes(), seed, resamples)
    parts = np.split(drawn_RF, range(_CHUNK, resamples, _CHUNK))
    return np.concatenate([statistic(part_RF.astype(np.int64)) for part_RF in parts])


@lru_cache(maxsize=4)
def _draw_counts(counts: bytes, seed: int, resamples: int) -> NDArray[Any]:
    """Draw counts of the F cells, [R, F]; cached for the next statistic, since drawing is slow."""
    counts_F = np.frombuffer(counts, dtype=np.int64)
    num_rows, rng = int(counts_F.sum()), np.random.default_rng(seed)
    drawn_RF = np.empty((resamples, len(counts_F)), np.min_scalar_type(num_rows))
    for part_RF in np.split(drawn_RF, range(_CHUNK, resamples, _CHUNK)):
        part_RF[:] = rng.multinomial(num_rows, counts_F / num_rows, size=len(part_RF))
    return drawn_RF
