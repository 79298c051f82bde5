"""Comparison of two rankings of the same rows: differences in AUC and in purity, with paired intervals."""

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from curation.arrays import Int64s
from curation.metrics.clusters import compute_inflation
from curation.metrics.estimates import CONFIDENCE, Estimate, compute_proportion, make_undefined
from curation.metrics.inputs import as_flags, as_scores, check_same_length
from curation.metrics.ranking import compute_influence, compute_placements


def compute_auc_difference(
    first_N: npt.ArrayLike,
    second_N: npt.ArrayLike,
    correct_N: npt.ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    cluster_N: Int64s | None = None,
) -> Estimate:
    """Return the AUC of the first score minus that of the second; NaN if a class has fewer than two rows.

    The interval is the normal one of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988), in O(N log N) by midranks
    (Sun and Xu, IEEE Signal Processing Letters 21, 2014). For rows in clusters ``cluster_N`` the variance is multiplied
    by their inflation (``curation.metrics.clusters``).
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
    first_M: npt.ArrayLike,
    second_M: npt.ArrayLike,
    correct_N: npt.ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    cluster_N: Int64s | None = None,
) -> Estimate:
    """Return the share of right rows among those that the first ranking selects minus that among the second's.

    Args:
        first_M: positions of the M rows that the first ranking selects.
        second_M: positions of the M rows that the second ranking selects.
        correct_N: whether each of the N ranked rows is right.
        confidence: the confidence of the interval.
        cluster_N: the cluster of each of the N rows, or None if rows are independent.

    The interval holds for the two selections as they are. Rows that both select add nothing to it; the exact intervals
    for the other rows' shares are combined (MOVER: Zou and Donner, Statistics in Medicine 27, 2008).
    """
    correct = as_flags(correct_N)
    first, second = np.unique(np.asarray(first_M)), np.unique(np.asarray(second_M))
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} rows are selected; give two selections of one size above 0")

    def share(own_M: Int64s) -> Estimate:
        right_M, times = correct[own_M], 1.0
        if cluster_N is not None and len(own_M):
            times = compute_inflation(right_M - right_M.mean(), cluster_N[own_M], confidence=confidence)
        return compute_proportion(int(right_M.sum()), len(own_M), confidence=confidence, inflation=times)

    mine, theirs = share(np.setdiff1d(first, second)), share(np.setdiff1d(second, first))
    if not mine.n:
        return Estimate(value=0.0, low=0.0, high=0.0, n=len(first))
    weight, value = mine.n / len(first), mine.value - theirs.value
    below = math.hypot(mine.value - mine.low, theirs.high - theirs.value)
    above = math.hypot(mine.high - mine.value, theirs.value - theirs.low)
    return Estimate(value=weight * value, low=weight * (value - below), high=weight * (value + above), n=len(first))
