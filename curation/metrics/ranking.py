"""Measures of how well a score ranks right labels first, and of paired differences of two: AUC, purity of the first."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import scipy
from numpy.typing import ArrayLike

from curation.arrays import Bools, Floats, Int64s
from curation.metrics.estimates import (
    CONFIDENCE,
    TAIL,
    Clusters,
    Estimate,
    as_flags,
    as_scores,
    bound_share,
    check_same_length,
    compute_difference,
    compute_inflation,
    compute_share_right,
    make_undefined,
)

_PRIOR_ROWS = 2.5
"""Number of prior rows, from a simulation: in ``benchmarks.verdict_intervals`` .94 to .96 of intervals are correct."""


def compute_auc_value(scores_N: ArrayLike, correct_N: ArrayLike) -> float:
    """Return the area under the ROC curve, ties counted half; NaN when one class is missing. Exact, O(N log N)."""
    scores, correct = as_scores(scores_N), as_flags(correct_N)
    check_same_length(scores, correct)
    return _compute_auc(_count_by_score(scores, correct))


def auc(scores_N: ArrayLike, correct_N: ArrayLike, *, cluster_N: Clusters = None) -> Estimate:
    """Return the area under the ROC curve with its 95 % interval; NaN when one class is missing. Exact, O(N log N).

    The interval is that of a share (Clopper and Pearson 1934) over the number of rows that would vary as much. The
    variance is that of DeLong et al. 1988, which is too small if a class has few rows and nearly all pairs are in
    order; so it is shrunk towards that of Hanley and McNeil 1982 as by ``_PRIOR_ROWS`` further rows of the rarer class.
    If the classes are separated perfectly, the m rows of the rarer class and m others form m disjoint pairs, all of
    which are in order with probability AUC^m. For rows in clusters the variance is multiplied by their inflation.
    """
    scores, correct = as_scores(scores_N), as_flags(correct_N)
    check_same_length(scores, correct)
    counts_2G = _count_by_score(scores, correct)
    value, num_rows = _compute_auc(counts_2G), int(counts_2G.sum())
    if math.isnan(value):
        return make_undefined(num_rows)
    wrong_G, right_G = counts_2G
    num_wrong, num_right = float(wrong_G.sum()), float(right_G.sum())
    as_many = min(num_wrong, num_right)
    if value not in (0.0, 1.0):
        below_G = (np.cumsum(wrong_G) - wrong_G + wrong_G / 2) / num_wrong  # the share of wrong rows below a score
        above_G = 1 - (np.cumsum(right_G) - right_G + right_G / 2) / num_right
        of_rows = sum(
            float(rows_G @ np.square(share_G - value)) / (num * max(num - 1, 1))
            for rows_G, share_G, num in ((right_G, below_G, num_right), (wrong_G, above_G, num_wrong))
        )
        pairs = 1 + ((num_wrong + num_right) / 2 - 1) * ((1 - value) / (2 - value) + value / (1 + value))
        expected = value * (1 - value) * pairs / (num_wrong * num_right)
        known = as_many - 1
        as_many = value * (1 - value) / ((known * of_rows + _PRIOR_ROWS * expected) / (known + _PRIOR_ROWS))
    if cluster_N is not None:
        influence_N = compute_influence(*compute_placements(scores, correct), correct)
        as_many /= compute_inflation(influence_N, cluster_N)
    low, high = bound_share(value * as_many, (1 - value) * as_many, TAIL)
    return Estimate(value=value, low=low, high=high, n=num_rows)


def compute_influence(below_P: Floats, above_Q: Floats, correct_N: Bools) -> Floats:
    """Return each row's influence on the mean of placements, or of differences of two scores' placements, float64 [N].

    The influence is the row's placement minus the mean of its class, divided by the number of rows of its class; both
    classes must have rows, and their sum is 0.
    """
    influence_N = np.empty(len(correct_N))
    influence_N[correct_N] = (below_P - below_P.mean()) / len(below_P)
    influence_N[~correct_N] = (above_Q - above_Q.mean()) / len(above_Q)
    return influence_N


def compute_placements(scores_N: Floats, correct_N: Bools) -> tuple[Floats, Floats]:
    """Return the share of wrong rows below each right row, and of right rows above each wrong row.

    Ties count half. The mean of either array is the AUC.
    """
    right_P, wrong_Q = scores_N[correct_N], scores_N[~correct_N]
    rank_N = scipy.stats.rankdata(np.concatenate([right_P, wrong_Q]))
    num_right, num_wrong = len(right_P), len(wrong_Q)
    share_P = (rank_N[:num_right] - scipy.stats.rankdata(right_P)) / max(num_wrong, 1) if num_right else np.zeros(0)
    share_Q = 1 - (rank_N[num_right:] - scipy.stats.rankdata(wrong_Q)) / max(num_right, 1) if num_wrong else np.zeros(0)
    return share_P, share_Q


def compute_top_purities(
    right_N: Bools, points: Sequence[int], cluster_N: Clusters = None, *, confidence: float = CONFIDENCE
) -> list[Estimate]:
    """Return the share of right labels among the first n ranked rows, for each n of ``points``."""
    for n in points:
        if not 1 <= n <= len(right_N):
            raise ValueError(f"point {n} is not between 1 and the {len(right_N)} ranked rows")
    clusters = [None if cluster_N is None else cluster_N[:n] for n in points]
    firsts = zip(points, clusters, strict=True)
    return [compute_share_right(right_N[:n], cluster_M, confidence=confidence) for n, cluster_M in firsts]


def _count_by_score(scores_N: Floats, correct_N: Bools) -> Int64s:
    """Return the numbers of wrong and right rows at each distinct score, ascending by score, int64 [2, G]."""
    distinct_G, group_N = np.unique(scores_N, return_inverse=True)
    num_groups = len(distinct_G)
    return np.bincount(group_N + num_groups * correct_N, minlength=2 * num_groups).reshape(2, num_groups)


def _compute_auc(counts_2G: Int64s) -> float:
    """Return the AUC of the counts of each score [2, G]; NaN if a class is missing."""
    wrong_G, right_G = counts_2G
    pairs = 2.0 * float(wrong_G.sum()) * float(right_G.sum())
    return float(right_G @ (2 * (np.cumsum(wrong_G) - wrong_G) + wrong_G)) / pairs if pairs else math.nan


def compute_auc_difference(
    first_N: ArrayLike,
    second_N: ArrayLike,
    correct_N: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    cluster_N: Clusters = None,
) -> Estimate:
    """Return the AUC of the first score minus that of the second; NaN if a class has fewer than two rows.

    The interval is the normal one of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988), in O(N log N) by midranks
    (Sun and Xu, IEEE Signal Processing Letters 21, 2014). For rows in clusters ``cluster_N`` the variance is multiplied
    by their inflation (:func:`curation.metrics.compute_inflation`).
    """
    correct = as_flags(correct_N)
    placed = []
    for scores in (as_scores(first_N), as_scores(second_N)):
        check_same_length(scores, correct)
        placed.append(compute_placements(scores, correct))
    num_right = int(correct.sum())
    num_wrong = len(correct) - num_right
    if min(num_right, num_wrong) < 2:
        return make_undefined(len(correct))
    (right_P, wrong_Q), (other_P, other_Q) = placed
    value = float(right_P.mean() - other_P.mean())
    variance = float((right_P - other_P).var(ddof=1) / num_right + (wrong_Q - other_Q).var(ddof=1) / num_wrong)
    if cluster_N is not None:
        influence_N = compute_influence(right_P - other_P, wrong_Q - other_Q, correct)
        variance *= compute_inflation(influence_N, cluster_N, confidence=confidence)
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance)
    return Estimate(value=value, low=value - half, high=value + half, n=len(correct))


def compute_purity_difference(
    first_M: ArrayLike,
    second_M: ArrayLike,
    correct_N: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    cluster_N: Clusters = None,
) -> Estimate:
    """Return the share of right rows among those that the first ranking selects minus that among the second's.

    The selections are positions among the N ranked rows, M each. The interval holds for the two selections as they are.
    Rows that both select add nothing to it; the exact intervals for the other rows' shares are combined (MOVER: Zou and
    Donner, Statistics in Medicine 27, 2008).
    """
    correct = as_flags(correct_N)
    first, second = np.unique(np.asarray(first_M)), np.unique(np.asarray(second_M))
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} rows are selected; give two selections of one size above 0")

    def share(own_M: Int64s) -> Estimate:
        clusters = None if cluster_N is None else cluster_N[own_M]
        return compute_share_right(correct[own_M], clusters, confidence=confidence)

    mine, theirs = share(np.setdiff1d(first, second)), share(np.setdiff1d(second, first))
    if not mine.n:
        return Estimate(value=0.0, low=0.0, high=0.0, n=len(first))
    weight, apart = mine.n / len(first), compute_difference(mine, theirs)
    value, low, high = (weight * number for number in (apart.value, apart.low, apart.high))
    return Estimate(value=value, low=low, high=high, n=len(first))
