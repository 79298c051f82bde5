"""Confidence intervals for rows in clusters (``splits.group``), which carry less information than independent rows."""

import math

import numpy as np
import scipy

from curation.arrays import Bools, Floats, Int64s
from curation.metrics.estimates import CONFIDENCE, Estimate, compute_proportion

NO_ROWS = 1e-9
"""Minimum effective number of independent rows; rows of one cluster have it, so their interval excludes nothing."""


def compute_inflation(influence_N: Floats, cluster_N: Int64s | None, *, confidence: float = CONFIDENCE) -> float:
    """Return the ratio of an estimate's variance to its variance with as many independent rows; at least 1.

    Args:
        influence_N: the influence of each row on the estimate, less its mean, in any unit.
        cluster_N: the cluster of each row, or None if rows are independent, which gives 1.
        confidence: the confidence of the interval that the ratio will widen.

    Clusters are independent, so the variance is that of their sums (the design effect, Kish 1965; for an AUC,
    Obuchowski 1997). G clusters estimate it with G - 1 degrees of freedom, so it is multiplied by the squared ratio of
    the quantiles of the t and the normal distribution, which gives the interval its confidence (Korn and Graubard
    1998). If no row has influence, e.g. because all are right, a cluster counts as one row. One cluster gives inf.
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
    """Return the share of right rows with its exact interval, widened for clusters; NaN for no rows."""
    right, n = int(correct_N.sum()), len(correct_N)
    times = compute_inflation(correct_N - right / max(n, 1), cluster_N, confidence=confidence)
    return compute_proportion(right, n, confidence=confidence, inflation=times)
