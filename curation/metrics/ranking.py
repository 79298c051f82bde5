"""How well a score ranks right labels first: AUC, purity of the first n, purity against coverage and its area."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools, Floats, Int64s
from curation.metrics.bootstrap import RESAMPLES, percentiles, resample
from curation.metrics.estimates import TAIL, Estimate, proportion, undefined
from curation.metrics.inputs import as_flags, as_scores, as_weights, same_length

COVERAGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_NUM_SCORE_CELLS = 4096


@dataclass(frozen=True, kw_only=True)
class CoveragePoint:
    """The purity of the best-ranked rows that make up a share ``coverage`` of all."""

    coverage: float
    purity: Estimate

    def to_json(self) -> dict[str, Any]:
        """The point as a JSON object."""
        return {"coverage": self.coverage, "purity": self.purity.to_json()}


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


def purity_at(correct_N: npt.ArrayLike, n: int) -> Estimate:
    """The share of right labels among the first ``n`` rows, with its exact interval; rows are in rank order."""
    return purity_curve(correct_N, [n])[0]


def purity_curve(correct_N: npt.ArrayLike, points: Sequence[int]) -> list[Estimate]:
    """The share of right labels among the first n rows, for each n of ``points``; rows are in rank order."""
    right_N = np.cumsum(as_flags(correct_N))
    for n in points:
        if not 1 <= n <= len(right_N):
            raise ValueError(f"point {n} is not between 1 and the {len(right_N)} ranked rows")
    return [proportion(int(right_N[n - 1]), n) for n in points]


def purity_of_cells(counts_2G: Int64s, points: Sequence[int]) -> list[Estimate]:
    """The curve of :func:`purity_curve` for wrong and right rows in cells, int64 [2, G], the best cell first.

    Within a cell right rows are taken to be spread evenly, so a count of right rows is off by at most a cell's.
    """
    rows_G, right_G = (np.append(0, np.cumsum(counts)) for counts in (counts_2G.sum(axis=0), counts_2G[1]))
    for n in points:
        if not 1 <= n <= rows_G[-1]:
            raise ValueError(f"point {n} is not between 1 and the {rows_G[-1]} ranked rows")
    return [proportion(round(float(np.interp(n, rows_G, right_G))), n) for n in points]


def coverage_points(num_rows: int, coverages: Sequence[float] = COVERAGES) -> list[int]:
    """Numbers of rows that make up these shares, ascending, each once; at least one row, rounded to whole ones."""
    return sorted({max(1, round(coverage * num_rows)) for coverage in coverages}) if num_rows else []


def coverage_curve(correct_N: npt.ArrayLike, coverages: Sequence[float] = COVERAGES) -> list[CoveragePoint]:
    """Precision against coverage: the purity of the first share of the rows, for each of ``coverages`` in (0, 1].

    Rows are in rank order. A share is rounded to whole rows, at least one, and reported as rounded; shares that round
    to the same rows give one point.
    """
    for coverage in coverages:
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage {coverage} is not within (0, 1]")
    correct = as_flags(correct_N)
    points = coverage_points(len(correct), coverages)
    return [CoveragePoint(coverage=x.n / len(correct), purity=x) for x in purity_curve(correct, points)]


def purity_area(scores_N: npt.ArrayLike, correct_N: npt.ArrayLike, *, seed: int = 0) -> Estimate:
    """The area under purity against coverage, with its bootstrap interval; NaN for no rows.

    It is the mean purity of the first n rows over n = 1 ... N, the highest score first, and 1 less the area under the
    risk-coverage curve (Geifman and El-Yaniv 2017). Tied rows count as the mean over all their orders. For a score
    without information it equals the share of right labels.
    """
    scores, correct = as_scores(scores_N), as_flags(correct_N)
    same_length(scores, correct)
    if len(scores) == 0:
        return undefined(0)
    # H(m) = 1 + 1/2 + ... + 1/m
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, len(scores) + 1))])

    def area_of_counts(counts_2G: Int64s) -> Floats:
        rows, right = counts_2G.sum(axis=-2), counts_2G[..., 1, :]
        rows_before, right_before = np.cumsum(rows, axis=-1) - rows, np.cumsum(right, axis=-1) - right
        share = right / np.maximum(rows, 1)
        # Sum over the j-th row of a tie of (right_before + j share) / (rows_before + j).
        tail = harmonic[rows_before + rows] - harmonic[rows_before]
        return np.asarray((right + (right_before - share * rows_before) * tail).sum(axis=-1) / len(scores))

    counts_2G = _counts_by_score(scores, correct)[:, ::-1]
    return _bootstrapped(float(area_of_counts(counts_2G)), counts_2G, area_of_counts, seed, RESAMPLES)


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
