"""The classes' shares in a pool, from the teacher's labels there and its confusion on labelled rows (quantification).

If a teacher mistakes one class for another, its counts of labels are biased. With the shares ``q_T`` of its
labels in the pool, and the probabilities ``p_CT`` of each label given the class, measured on labelled rows, the
classes' shares ``s_C`` solve ``q = s p``. "Adjusted counts" (Forman 2008) solve this for two classes, black-box shift
estimation (Lipton, Wang, Smola 2018) by a matrix, with non-negative least squares. We take the most probable shares
instead, by expectation maximization (Saerens, Latinne, Decaestecker 2002), as no share then becomes zero and the error
is less where a class has few labelled rows (docs/method.md). The estimate assumes that within a class the teacher errs
on the pool's rows as on the labelled ones; the shares of the classes may differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from curation.arrays import Float64s, Floats, Int64s

Basis = Literal["confusion", "counts", "certified"]

FEW_ROWS, FEW_A_CLASS = 20, 3
"""Minimum number of labelled rows, in total and per class; with fewer, the teacher's own counts are more accurate."""
PRIOR_ROWS = 5
"""Number of pseudo-rows added to each class, labelled as the teacher labels on average."""
MOST_STEPS, LEAST_CHANGE = 2_000, 1e-7
"""Maximum number of iterations, and the total change of the shares below which the iteration ends."""


@dataclass(frozen=True, kw_only=True)
class ClassShares:
    """The classes and their shares in the pool, which add up to 1."""

    classes: tuple[str, ...]
    shares: tuple[float, ...]
    basis: Basis
    """``confusion``: estimated from the teacher's labels and its confusion; ``counts``: the shares of its labels as
    they are; ``certified``: those of the rows that pass the classes' certified cuts."""
    num_labelled: int
    """Number of labelled rows behind the confusion."""
    why: str | None = None
    """Reason why counts are used as they are, in words."""


def estimate_shares(classes: Sequence[str], given_T: Int64s, confusion_CT: Int64s) -> ClassShares:
    """Estimate the shares of C classes.

    Args:
        classes: names of the classes.
        given_T: number of pool rows by the teacher's label, the classes in order, then no readable label, [C + 1].
        confusion_CT: number of labelled rows by class and teacher's label, [C, C + 1].
    """
    num_classes, num_labelled = len(classes), int(confusion_CT.sum())
    few = max(FEW_ROWS, FEW_A_CLASS * num_classes)
    why = None
    if num_labelled < few:
        why = f"of {num_labelled:,} labelled rows class and label are known, and {few:,} are needed"
    elif not given_T.sum():
        why = "no row of the pool is labelled"
    if why is None:
        # The most probable shares; the prior, the labelled rows' shares, weighs as much as C labelled rows.
        share_T, probability_CT = given_T / given_T.sum(), estimate_label_probabilities(confusion_CT)
        prior_C: Float64s = (confusion_CT.sum(axis=1) + 0.5) / (num_labelled + 0.5 * num_classes)
        weight = num_classes / (num_classes + num_labelled)
        share_C = prior_C
        for _ in range(MOST_STEPS):
            # the pool's rows by class, if the shares were these
            known_T = share_T / np.maximum(share_C @ probability_CT, 1e-300)
            before_C, share_C = share_C, (1 - weight) * share_C * (probability_CT @ known_T) + weight * prior_C
            share_C = share_C / share_C.sum()
            if np.abs(share_C - before_C).sum() < LEAST_CHANGE:
                break
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


def estimate_label_probabilities(confusion_CT: Int64s) -> Float64s:
    """Return the probability of each label given the class, [C, T], smoothed by ``PRIOR_ROWS`` pseudo-rows per class.

    Pseudo-rows are right as often as all labelled rows, and their wrong labels are distributed as those of all.
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


def compute_share_distance(first_C: npt.ArrayLike, second_C: npt.ArrayLike) -> float:
    """Return the total variation distance of two sets of shares: the part that would have to change its class."""
    return float(np.abs(np.asarray(first_C, dtype=np.float64) - np.asarray(second_C, dtype=np.float64)).sum() / 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassScores:
    """Raw scores of rows, -inf or NaN for a row that is never selected, and the indices of their labels."""

    score_N: Floats
    class_N: Int64s
    """Index of each row's class, from 0; the number of classes for a row without a label."""

    @staticmethod
    def joined(parts: "Sequence[ClassScores]") -> "ClassScores":
        """Return the rows of all parts, concatenated."""
        return ClassScores(
            score_N=np.concatenate([part.score_N for part in parts]),
            class_N=np.concatenate([part.class_N for part in parts]),
        )
