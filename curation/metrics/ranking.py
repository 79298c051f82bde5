"""How well a score ranks right labels first: AUC, purity of the first n."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools, Floats, Int64s
from curation.metrics.bootstrap import RESAMPLES, percentiles, resample
from curation.metrics.estimates import TAIL, Estimate, proportion, undefined
from curation.metrics.inputs import as_flags, as_scores, as_weights, same_length

COVERAGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_NUM_SCORE_CELLS = 4096


def auc_value(scores_N: npt.ArrayLike, correct_N: npt.ArrayLike) -> float:
    """The area under the ROC curve, ties counted half; NaN when one class is missing. Exact, O(N log N)."""
    scores, correct = as_scores(scores_N), as_flags(correct_N)
    same_length(scores, correct)
    return float(_auc_of_counts(_counts_by_score(scores, correct)))


def auc(
    scores_N: npt.ArrayLike,
    correct_N: npt.ArrayLike,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    weights_N: npt.ArrayLike | None = None,
) -> Estimate:
    """The area under the ROC curve with its bootstrap interval; NaN when one class is missing.

    An entry stands for as many rows as its weight says.

    The value is exact. With more than 4,096 distinct scores, the resamples use 4,096 cells by rank, and the interval is
    shifted by the change that this grouping makes in the value (below 1e-4). If the classes are separated perfectly, so
    is every resample; the bound is then exact: m rows of the rarer class and m others form m pairs without a common
    row, and all pairs are in order with probability AUC^m.
    """
    scores, correct = as_scores(scores_N), as_flags(correct_N)
    same_length(scores, correct)
    counts_2G = _counts_by_score(scores, correct, as_weights(weights_N, len(scores)))
    value, num_rows = float(_auc_of_counts(counts_2G)), int(counts_2G.sum())
    if math.isnan(value):
        return undefined(num_rows)
    if value in (0.0, 1.0):
        bound = TAIL ** (1 / int(counts_2G.sum(axis=1).min()))
        low, high = (bound, 1.0) if value else (0.0, 1 - bound)
        return Estimate(value=value, low=low, high=high, n=num_rows)
    return _bootstrapped(value, counts_2G, _auc_of_counts, seed, resamples)


def purity_of_cells(counts_2G: Int64s, points: Sequence[int]) -> list[Estimate]:
    """The share of right labels among the first n rows, for each n of ``points``.

    Wrong and right rows are counted in cells, int64 [2, G], the best cell first. Within a cell right rows are taken to
    be spread evenly, so a count of right rows is off by at most a cell's.
    """
    rows_G, right_G = (np.append(0, np.cumsum(counts)) for counts in (counts_2G.sum(axis=0), counts_2G[1]))
    for n in points:
        if not 1 <= n <= rows_G[-1]:
            raise ValueError(f"point {n} is not between 1 and the {rows_G[-1]} ranked rows")
    return [proportion(round(float(np.interp(n, rows_G, right_G))), n) for n in points]


def coverage_points(num_rows: int, coverages: Sequence[float] = COVERAGES) -> list[int]:
    """Numbers of rows that make up these shares, ascending, each once; at least one row, rounded to whole ones."""
    return sorted({max(1, round(coverage * num_rows)) for coverage in coverages}) if num_rows else []


def _bootstrapped(
    value: float, counts_2G: Int64s, statistic: Callable[[Int64s], Floats], seed: int, resamples: int
) -> Estimate:
    """The value with the percentiles of its resamples, shifted by the change that grouping the scores makes in it."""
    cells_2C = _grouped_by_rank(counts_2G)
    shift = value - float(statistic(cells_2C))
    return percentiles(value, resample(cells_2C, statistic, seed, resamples) + shift, int(counts_2G.sum()))


def _counts_by_score(scores_N: Floats, correct_N: Bools, weights_N: Int64s | None = None) -> Int64s:
    """Wrong and right rows at each distinct score, in ascending order of the score, int64 [2, G]."""
    distinct_G, group_N = np.unique(scores_N, return_inverse=True)
    num_groups = len(distinct_G)
    counts = np.bincount(group_N + num_groups * correct_N, weights_N, minlength=2 * num_groups)
    return counts.reshape(2, num_groups).astype(np.int64)


def _grouped_by_rank(counts_2G: Int64s) -> Int64s:
    """The counts in at most 4,096 cells of about equal size that keep the order of the scores, [2, C]."""
    if counts_2G.shape[1] <= _NUM_SCORE_CELLS:
        return counts_2G
    rows_G = counts_2G.sum(axis=0)
    cell_G = (np.cumsum(rows_G) - rows_G) * _NUM_SCORE_CELLS // rows_G.sum()
    starts = np.flatnonzero(np.diff(cell_G, prepend=-1))
    return np.asarray(np.add.reduceat(counts_2G, starts, axis=1))


def _auc_of_counts(counts_2G: Int64s) -> Floats:
    """AUC of each set of counts [..., 2, G]; NaN if a class is missing, [...]."""
    wrong, right = counts_2G[..., 0, :], counts_2G[..., 1, :]
    below = np.cumsum(wrong, axis=-1) - wrong
    pairs = 2.0 * wrong.sum(axis=-1) * right.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray((right * (2 * below + wrong)).sum(axis=-1) / pairs)
