"""Intervals of rows that come in clusters (``splits.group``): how much less such rows tell than independent ones."""

import math

import numpy as np
import scipy

from curation.arrays import Bools, Floats, Int64s
from curation.metrics.estimates import CONFIDENCE, Estimate, compute_proportion

NO_ROWS = 1e-9
"""The number of independent rows that rows of one cluster count as: an interval of them excludes nothing."""


def compute_inflation(influence_N: Floats, cluster_N: Int64s | None, *, confidence: float = CONFIDENCE) -> float:
    """Return by how much the variance of an estimate exceeds that of as many independent rows; at least 1.

    Args:
        influence_N: how each row moves the estimate, less its mean, in any unit; their sum varies as the estimate does.
        cluster_N: the cluster of each row. None: rows are independent, which is 1.
        confidence: of the interval.

    Clusters are independent, so that the variance is that of their sums (the design effect, Kish 1965; of an AUC
    Obuchowski 1997). G clusters know it with G - 1 degrees of freedom: it is multiplied by the squared ratio of the
    quantiles of t and normal distribution, by which an interval then has its confidence (Korn and Graubard 1998).
    Where no row moves the estimate, as if all are right, a cluster counts as one row. One cluster tells nothing: inf.
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


def compute_share_right(
    correct_N: Bools, cluster_N: Int64s | None = None, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the share of right rows with its exact interval, which counts clusters; NaN for no rows."""
    right, n = int(correct_N.sum()), len(correct_N)
    times = compute_inflation(correct_N - right / max(n, 1), cluster_N, confidence=confidence)
    return compute_proportion(right, n, confidence=confidence, inflation=times)
