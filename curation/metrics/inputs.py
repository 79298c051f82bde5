"""Checks of the metrics' input arrays: one dimension, no NaN, trust within [0, 1], boolean correctness."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curation.arrays import Bools, Floats


def as_scores(values: ArrayLike) -> Floats:
    """Return scores [N] as float64; infinite ones are allowed."""
    scores_N = np.asarray(values, dtype=np.float64)
    if scores_N.ndim != 1:
        raise ValueError(f"scores have shape {scores_N.shape}, not one dimension")
    if np.isnan(scores_N).any():
        raise ValueError(f"{int(np.isnan(scores_N).sum())} of {len(scores_N)} scores are NaN: leave those rows out")
    return scores_N


def as_trust(values: ArrayLike) -> Floats:
    """Return trust scores [N] as float64."""
    trust_N = as_scores(values)
    if len(trust_N) and not (trust_N.min() >= 0 and trust_N.max() <= 1):
        raise ValueError(f"trust scores range from {trust_N.min()} to {trust_N.max()}, not within [0, 1]")
    return trust_N


def as_flags(values: ArrayLike) -> Bools:
    """Return correctness [N] as booleans."""
    given_N = np.asarray(values)
    flags_N = given_N.astype(np.bool_)
    if given_N.ndim != 1 or not np.array_equal(flags_N, given_N):
        raise ValueError("correctness must be one dimension of booleans (or 0 and 1)")
    return flags_N


def check_same_length(*arrays: NDArray[Any]) -> None:
    """Raise ``ValueError`` if the arrays differ in length."""
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(f"lengths differ: {' and '.join(map(str, lengths))}")
