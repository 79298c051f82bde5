"""Numbers with their n and 95 % interval: AUC, calibration, Brier score, purity, recovery and the exact paired test.

Two ways to an interval: exact (Clopper-Pearson) for shares, bootstrap for the rest. The bootstrap resamples counts of
cells, not rows: rows that agree in class and (almost) in score fall into one cell, so that a thousand resamples of a
million rows cost hardly more than those of ten thousand.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

CONFIDENCE = 0.95
NUM_BINS = 15
"""Bins of the calibration error (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017)."""
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL_QUANTILE = 1.959963984540054
_NUM_SCORE_CELLS = 4096
_CELLS_PER_BIN = 256
_CHUNK = 50


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value, the bounds of its 95 % interval and the number of rows behind it; NaN where it is not defined."""

    value: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """The estimate as a JSON object; ``null`` for what is not finite."""
        bounds = {"value": self.value, "low": self.low, "high": self.high}
        return {**{name: float(x) if math.isfinite(x) else None for name, x in bounds.items()}, "n": int(self.n)}


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """The rows whose trust lies in (low, high], the first bin with 0 as well."""

    low: float
    high: float
    mean_trust: float
    share_right: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        """The bin as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """The exact paired test of two models on the same rows.

    ``p_value`` is one-sided, for the alternative that the numerically ``better`` one is better; ``difference`` is the
    accuracy of the first minus that of the second.
    """

    num_first_only: int
    num_second_only: int
    p_value: float
    better: Literal["first", "second", "tie"]
    difference: Estimate

    def to_json(self) -> dict[str, Any]:
        """The test as a JSON object."""
        return {**asdict(self), "difference": self.difference.to_json()}


def proportion(num_right: int, n: int) -> Estimate:
    """A share of rows with its exact interval (Clopper and Pearson 1934); NaN for no rows."""
    from scipy.special import betaincinv

    if not 0 <= num_right <= n:
        raise ValueError(f"num_right {num_right} is not between 0 and n = {n}")
    if n == 0:
        return _undefined(0)
    low = float(betaincinv(num_right, n - num_right + 1, _TAIL)) if num_right > 0 else 0.0
    high = float(betaincinv(num_right + 1, n - num_right, 1 - _TAIL)) if num_right < n else 1.0
    return Estimate(value=num_right / n, low=low, high=high, n=int(n))


def auc_value(scores_N: npt.ArrayLike, correct_N: npt.ArrayLike) -> float:
    """The area under the ROC curve, ties counted half; NaN when one class is missing. Exact, O(N log N)."""
    scores, correct = _scores(scores_N), _flags(correct_N)
    _same_length(scores, correct)
    return float(_auc_of_counts(_counts_by_score(scores, correct)))


def auc(scores_N: npt.ArrayLike, correct_N: npt.ArrayLike, *, seed: int = 0, resamples: int = 1000) -> Estimate:
    """The area under the ROC curve with its bootstrap interval; NaN when one class is missing.

    The value is exact. With more than 4,096 distinct scores the resampled ones share as many cells by rank, and the
    interval is moved by what this grouping changes in the value (below 1e-4). Where the classes are separated perfectly
    every resample is too, and the interval is a point.
    """
    scores, correct = _scores(scores_N), _flags(correct_N)
    _same_length(scores, correct)
    counts_2G = _counts_by_score(scores, correct)
    value = float(_auc_of_counts(counts_2G))
    if math.isnan(value):
        return _undefined(len(correct))
    cells_2C = _grouped_by_rank(counts_2G)
    shift = value - float(_auc_of_counts(cells_2C))
    resampled_R = _resample(cells_2C, _auc_of_counts, seed, resamples) + shift
    return _percentiles(value, resampled_R, len(correct))


def ece(trust_N: npt.ArrayLike, correct_N: npt.ArrayLike, *, bins: int = NUM_BINS, seed: int = 0) -> Estimate:
    """The expected calibration error over equal-width bins of [0, 1], with a bootstrap interval.

    The estimate is biased upwards, the more so the fewer rows a bin has, and resampling adds the same bias once more;
    so the interval reflects the resampled values about the estimate (the basic bootstrap) instead of reading their
    quantiles, and is widened to hold the estimate itself. In simulations of 500 and 5,000 rows it held an error of 0.2
    in 87 and 95 %, one of 0.025 in 86 % (the quantiles themselves: 0 and 57 %), but 0 in only 39 and 47 %: near perfect
    calibration read the low bound as an upper limit on what is shown, not as proof of an error.
    """
    trust, correct = _trust(trust_N), _flags(correct_N)
    _same_length(trust, correct)
    if len(trust) == 0:
        return _undefined(0)
    n = len(trust)
    value = float(np.abs(np.bincount(_bin_of(trust, bins), correct - trust, minlength=bins)).sum() / n)
    counts_C, mean_trust_C, right_C = _calibration_cells(trust, correct, bins)
    gap_C = right_C - mean_trust_C

    def ece_of_counts(counts: Counts) -> Floats:
        gaps = (counts * gap_C).reshape(*counts.shape[:-1], bins, -1).sum(axis=-1)
        return np.asarray(np.abs(gaps).sum(axis=-1) / n)

    resampled = _percentiles(value, _resample(counts_C, ece_of_counts, seed, 1000), n)
    low, high = 2 * value - resampled.high, 2 * value - resampled.low
    return Estimate(value=value, low=max(0.0, min(low, value)), high=min(1.0, max(high, value)), n=n)


def brier(trust_N: npt.ArrayLike, correct_N: npt.ArrayLike, *, seed: int = 0) -> Estimate:
    """The Brier score, the mean squared distance of trust from right (1) or wrong (0), with a bootstrap interval."""
    trust, correct = _trust(trust_N), _flags(correct_N)
    _same_length(trust, correct)
    if len(trust) == 0:
        return _undefined(0)
    n = len(trust)
    counts_C, mean_trust_C, right_C = _calibration_cells(trust, correct, NUM_BINS)
    error_C = (mean_trust_C - right_C) ** 2
    value = float(np.mean((trust - correct) ** 2))
    shift = value - float(counts_C @ error_C) / n
    resampled_R = _resample(counts_C, lambda counts: np.asarray(counts @ error_C / n), seed, 1000) + shift
    return _percentiles(value, resampled_R, n)


def reliability(trust_N: npt.ArrayLike, correct_N: npt.ArrayLike, bins: int = NUM_BINS) -> list[ReliabilityBin]:
    """The reliability diagram: mean trust and share of right labels of each equal-width bin that has rows."""
    trust, correct = _trust(trust_N), _flags(correct_N)
    _same_length(trust, correct)
    bin_N = _bin_of(trust, bins)
    counts, sums = np.bincount(bin_N, minlength=bins), np.bincount(bin_N, trust, minlength=bins)
    rights = np.bincount(bin_N, correct, minlength=bins)
    return [
        ReliabilityBin(
            low=b / bins,
            high=(b + 1) / bins,
            mean_trust=float(sums[b] / counts[b]),
            share_right=float(rights[b] / counts[b]),
            n=int(counts[b]),
        )
        for b in np.flatnonzero(counts).tolist()
    ]


def purity_curve(correct_N: npt.ArrayLike, points: Sequence[int]) -> list[Estimate]:
    """The share of right labels among the first n rows, for each n of ``points``; the rows in rank order."""
    right_N = np.cumsum(_flags(correct_N))
    for n in points:
        if not 1 <= n <= len(right_N):
            raise ValueError(f"point {n} is not between 1 and the {len(right_N)} ranked rows")
    return [proportion(int(right_N[n - 1]), n) for n in points]


def recovery(arm: float, base: float, ground_truth: float) -> float | None:
    """(arm - base) / (ground truth - base) of three accuracies (paper, eq. "Recovery"); None where the two are equal.

    1 is full recovery. Where ground truth falls below base the ratio is given as it is, and means little.
    """
    gap = ground_truth - base
    return (arm - base) / gap if gap else None


def paired_test(first_correct_N: npt.ArrayLike, second_correct_N: npt.ArrayLike) -> PairedTest:
    """The exact one-sided paired test on per-row correctness (paper, App. "Statistical Significance Tests").

    p = P(Bin(num_first_only + num_second_only, 1/2) >= the larger of the two); 1 without discordant rows. The interval
    of the difference is the adjusted Wald one (Agresti and Min, Statistics in Medicine 24, 2005): half a row added to
    each cell of the paired table.
    """
    from scipy.special import betainc

    first, second = _flags(first_correct_N), _flags(second_correct_N)
    _same_length(first, second)
    n = len(first)
    num_first, num_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    most, num_discordant = max(num_first, num_second), num_first + num_second
    p_value = float(betainc(most, num_discordant - most + 1, 0.5)) if most > 0 else 1.0
    return PairedTest(
        num_first_only=num_first,
        num_second_only=num_second,
        p_value=p_value,
        better="tie" if num_first == num_second else "first" if num_first > num_second else "second",
        difference=_paired_difference(num_first, num_second, n),
    )


def _paired_difference(num_first: int, num_second: int, n: int) -> Estimate:
    if n == 0:
        return _undefined(0)
    net, adjusted_n = num_first - num_second, n + 2
    centre = net / adjusted_n
    margin = _NORMAL_QUANTILE * math.sqrt(num_first + num_second + 1 - net**2 / adjusted_n) / adjusted_n
    return Estimate(value=net / n, low=max(-1.0, centre - margin), high=min(1.0, centre + margin), n=n)


def _counts_by_score(scores_N: Floats, correct_N: Flags) -> Counts:
    """Wrong and right rows at each distinct score, in ascending order of the score, int64 [2, G]."""
    distinct_G, group_N = np.unique(scores_N, return_inverse=True)
    num_groups = len(distinct_G)
    return np.bincount(group_N + num_groups * correct_N, minlength=2 * num_groups).reshape(2, num_groups)


def _grouped_by_rank(counts_2G: Counts) -> Counts:
    """The counts in at most 4,096 cells of about equal size that keep the order of the scores, [2, C]."""
    if counts_2G.shape[1] <= _NUM_SCORE_CELLS:
        return counts_2G
    rows_G = counts_2G.sum(axis=0)
    cell_G = (np.cumsum(rows_G) - rows_G) * _NUM_SCORE_CELLS // rows_G.sum()
    starts = np.flatnonzero(np.diff(cell_G, prepend=-1))
    return np.asarray(np.add.reduceat(counts_2G, starts, axis=1))


def _auc_of_counts(counts_2G: Counts) -> Floats:
    """AUC of each set of counts [..., 2, G], NaN where a class is missing, [...]."""
    wrong, right = counts_2G[..., 0, :], counts_2G[..., 1, :]
    below = np.cumsum(wrong, axis=-1) - wrong
    pairs = 2.0 * wrong.sum(axis=-1) * right.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray((right * (2 * below + wrong)).sum(axis=-1) / pairs)


def _bin_of(trust_N: Floats, bins: int) -> Counts:
    """The bin (low, high] of each trust score, int64 [N]."""
    if bins < 1:
        raise ValueError(f"bins {bins} is not positive")
    return np.searchsorted(np.arange(1, bins) / bins, trust_N, side="left")


def _calibration_cells(trust_N: Floats, correct_N: Flags, bins: int) -> tuple[Counts, Floats, Floats]:
    """Cells of one class and nearly one trust, nested in the bins: rows, mean trust, class (0 or 1), each [C].

    A cell spans 1/256 of a bin, so that what its rows differ by adds nothing to a sum's variance that could be seen.
    """
    bin_N = _bin_of(trust_N, bins)
    part_N = np.clip((trust_N * bins - bin_N) * _CELLS_PER_BIN, 0, _CELLS_PER_BIN - 1).astype(np.int64)
    cell_N = (bin_N * _CELLS_PER_BIN + part_N) * 2 + correct_N
    num_cells = bins * _CELLS_PER_BIN * 2
    counts_C = np.bincount(cell_N, minlength=num_cells)
    mean_trust_C = np.bincount(cell_N, trust_N, minlength=num_cells) / np.maximum(counts_C, 1)
    return counts_C, mean_trust_C, np.tile([0.0, 1.0], num_cells // 2)


def _resample(counts: Counts, statistic: Callable[[Counts], Floats], seed: int, resamples: int) -> Floats:
    """The statistic of ``resamples`` bootstrap draws of as many rows as there are, [R]."""
    rng = np.random.default_rng(seed)
    num_rows = int(counts.sum())
    filled = np.flatnonzero(counts)
    shares = counts.ravel()[filled] / num_rows
    values = []
    for start in range(0, resamples, _CHUNK):
        num_draws = min(_CHUNK, resamples - start)
        drawn = np.zeros((num_draws, counts.size), dtype=np.int64)
        drawn[:, filled] = rng.multinomial(num_rows, shares, size=num_draws)
        values.append(statistic(drawn.reshape(num_draws, *counts.shape)))
    return np.concatenate(values)


def _percentiles(value: float, resampled_R: Floats, n: int) -> Estimate:
    low, high = np.nanquantile(resampled_R, [_TAIL, 1 - _TAIL])
    return Estimate(value=value, low=float(low), high=float(high), n=n)


def _undefined(n: int) -> Estimate:
    return Estimate(value=math.nan, low=math.nan, high=math.nan, n=n)


def _scores(values: npt.ArrayLike) -> Floats:
    scores_N = np.asarray(values, dtype=np.float64)
    if scores_N.ndim != 1:
        raise ValueError(f"scores have shape {scores_N.shape}, not one dimension")
    if np.isnan(scores_N).any():
        raise ValueError(f"{int(np.isnan(scores_N).sum())} of {len(scores_N)} scores are NaN: leave those rows out")
    return scores_N


def _trust(values: npt.ArrayLike) -> Floats:
    trust_N = _scores(values)
    if len(trust_N) and not (trust_N.min() >= 0 and trust_N.max() <= 1):
        raise ValueError(f"trust scores range from {trust_N.min()} to {trust_N.max()}, not within [0, 1]")
    return trust_N


def _flags(values: npt.ArrayLike) -> Flags:
    given_N = np.asarray(values)
    flags_N = given_N.astype(np.bool_)
    if given_N.ndim != 1 or not np.array_equal(flags_N, given_N):
        raise ValueError("correctness must be one dimension of booleans (or 0 and 1)")
    return flags_N


def _same_length(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> None:
    if len(first) != len(second):
        raise ValueError(f"lengths differ: {len(first)} and {len(second)}")
