"""Scored rows of a closed set of labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from curation.arrays import Floats, Int64s


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassScores:
    """Rows with a raw score, -inf or NaN for one that is never selected, and the place of their label."""

    score_N: Floats
    class_N: Int64s
    """From 0 on; the number of classes for a row without a label."""

    @staticmethod
    def joined(parts: "Sequence[ClassScores]") -> "ClassScores":
        """All rows of some parts."""
        return ClassScores(
            score_N=np.concatenate([part.score_N for part in parts]),
            class_N=np.concatenate([part.class_N for part in parts]),
        )
