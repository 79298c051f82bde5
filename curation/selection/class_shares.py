"""The classes' shares in a pool, from the teacher's labels there and its confusion on labelled rows (quantification).

A teacher that mistakes one class for another gives counts that are not the classes' own. With the shares ``q_T`` of its
labels in the pool, and the probabilities ``p_CT`` of each label given the class, measured on labelled rows, the
classes' shares ``s_C`` solve ``q = s p``. "Adjusted counts" (Forman 2008) solve this for two classes, black-box shift
estimation (Lipton, Wang, Smola 2018) by a matrix, with non-negative least squares. We take the most probable shares
instead, by expectation maximization (Saerens, Latinne, Decaestecker 2002), as no share then becomes zero and the error
is less where a class has few labelled rows (docs/method.md). It holds as far as the teacher mistakes the pool's rows of
a class as it does the labelled ones; the classes may have other shares there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from curation.arrays import Float64s, Floats, Int64s

Basis = Literal["confusion", "counts", "given", "certified"]

FEW_ROWS, FEW_A_CLASS = 20, 3
"""With fewer labelled rows, in all or a class on average, the teacher's counts are nearer to the truth."""
PRIOR_ROWS = 5
"""Rows of each class that the teacher is taken to have labelled as it does on average, beside those that are there."""
MOST_STEPS, LEAST_CHANGE = 2_000, 1e-7
"""Steps of the iteration, and the change of all shares together at which it ends."""


@dataclass(frozen=True, kw_only=True)
class ClassShares:
    """The classes and their shares in the pool, which add up to 1."""

    classes: tuple[str, ...]
    shares: tuple[float, ...]
    basis: Basis
    """``confusion``: estimated from the teacher's labels and its confusion; ``counts``: the shares of its labels as
    they are; ``given``: the configuration's; ``certified``: those of the rows that pass the classes' certified cuts."""
    num_labelled: int
    """Labelled rows behind the confusion."""
    why: str | None = None
    """Why counts are taken as they are, in words."""


def estimate_shares(classes: Sequence[str], given_T: Int64s, confusion_CT: Int64s) -> ClassShares:
    """Estimate the shares of C classes.

    Args:
        classes: their names.
        given_T: the pool's rows by the teacher's label: the classes in order, then rows without a readable label.
        confusion_CT: the labelled rows by class and teacher's label, [C, C + 1].
    """
    num_classes, num_labelled = len(classes), int(confusion_CT.sum())
    few = max(FEW_ROWS, FEW_A_CLASS * num_classes)
    why = None
    if num_labelled < few:
        why = f"of {num_labelled:,} labelled rows class and label are known, and {few:,} are needed"
    elif not given_T.sum():
        why = "no row of the pool is labelled"
    if why is None:
        share_C = _find_most_probable(given_T / given_T.sum(), confusion_CT)
    else:
        some_C = given_T[:num_classes] + 1e-9  # equal shares, where nothing is labelled
        share_C = some_C / some_C.sum()
    return ClassShares(
        classes=tuple(classes),
        shares=tuple(share_C.tolist()),
        basis="counts" if why else "confusion",
        num_labelled=num_labelled,
        why=why,
    )


def label_probabilities(confusion_CT: Int64s) -> Float64s:
    """Return the probability of each label given the class, [C, T], smoothed by ``PRIOR_ROWS`` rows a class.

    These rows are right as often as all labelled rows are; their errors are as frequent as those of all.
    """
    num_classes, num_labels = confusion_CT.shape
    right_C = np.diagonal(confusion_CT)
    right = (right_C.sum() + 1) / (confusion_CT.sum() + num_classes)
    wrong_T = confusion_CT.sum(axis=0) + 1 / num_labels
    wrong_T[:num_classes] -= right_C
    prior_CT = np.tile((1 - right) * wrong_T / wrong_T.sum(), (num_classes, 1))
    prior_CT[np.arange(num_classes), np.arange(num_classes)] += right
    rows_C1 = confusion_CT.sum(axis=1, keepdims=True)
    found: Float64s = (confusion_CT + PRIOR_ROWS * prior_CT) / (rows_C1 + PRIOR_ROWS)
    return found


def _find_most_probable(given_T: Float64s, confusion_CT: Int64s) -> Float64s:
    """Return the most probable shares [C]: the labelled rows' own shares count as one row a class beside all rows."""
    probability_CT, num_labelled = label_probabilities(confusion_CT), confusion_CT.sum()
    num_classes = len(confusion_CT)
    prior_C: Float64s = (confusion_CT.sum(axis=1) + 0.5) / (num_labelled + 0.5 * num_classes)
    weight = num_classes / (num_classes + num_labelled)
    share_C: Float64s = prior_C
    for _ in range(MOST_STEPS):
        # the pool's rows by class, if the shares were these
        known_T = given_T / np.maximum(share_C @ probability_CT, 1e-300)
        before_C, share_C = share_C, (1 - weight) * share_C * (probability_CT @ known_T) + weight * prior_C
        share_C = share_C / share_C.sum()
        if np.abs(share_C - before_C).sum() < LEAST_CHANGE:
            break
    return share_C


def compute_share_distance(first_C: npt.ArrayLike, second_C: npt.ArrayLike) -> float:
    """Return the total variation distance of two sets of shares: the part that would have to change its class."""
    return float(np.abs(np.asarray(first_C, dtype=np.float64) - np.asarray(second_C, dtype=np.float64)).sum() / 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassScores:
    """Rows with a raw score, -inf or NaN for one that is never selected, and the place of their label."""

    score_N: Floats
    class_N: Int64s
    """From 0 on; the number of classes for a row without a label."""

    @staticmethod
    def joined(parts: "Sequence[ClassScores]") -> "ClassScores":
        """Return all rows of some parts."""
        return ClassScores(
            score_N=np.concatenate([part.score_N for part in parts]),
            class_N=np.concatenate([part.class_N for part in parts]),
        )
