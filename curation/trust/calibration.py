"""Trust as a probability: Platt scaling of raw scores on rows that the fit did not see (ours; the paper has none).

A class weight shifts every logit, and a network that fits its rows closely is overconfident. A slope and an intercept
correct both. The slope is never negative, so trust never falls as the raw score rises, and ranks stay as they are.

Source: Platt, "Probabilistic Outputs for Support Vector Machines" (1999), with its smoothed targets.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from curation.errors import DegenerateSourceError
from curation.trust import Scores


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Trust is sigmoid(``slope`` * raw score + ``intercept``); the defaults give the bare sigmoid."""

    slope: float = 1.0
    intercept: float = 0.0
    num_rows: int = 0
    """The number of rows that it was fitted on."""

    def to_trust(self, raw_N: Scores) -> Scores:
        """Trust in [0, 1] of raw scores, float32 [N]; NaN for NaN."""
        trust_N: Scores = expit(self.slope * raw_N.astype(np.float64) + self.intercept).astype(np.float32)
        return trust_N


def fit_calibration(raw_N: Scores, correct_N: npt.NDArray[np.bool_]) -> Calibration:
    """Fit slope (at least 0) and intercept by maximum likelihood, from finite raw scores and each label's correctness.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong.
    """
    from sklearn.linear_model import LogisticRegression

    num_rows, num_right = len(correct_N), int(correct_N.sum())
    if num_right in (0, num_rows):
        raise DegenerateSourceError(
            f"trust: {num_right} of {num_rows} weak labels are right in the calibration part of the source, both right "
            "and wrong ones are needed; give more source rows or a larger trust.calibration_fraction, or set it to 0 "
            "to leave trust uncalibrated"
        )
    wide_N = raw_N.astype(np.float64)
    right, wrong = (num_right + 1) / (num_right + 2), 1 / (num_rows - num_right + 2)
    target_N = np.where(correct_N, right, wrong)
    # If the score carries no information on these rows, or the opposite, the constant is the most likely fit.
    constant = Calibration(slope=0.0, intercept=float(logit(target_N.mean())), num_rows=num_rows)
    centre, scale = wide_N.mean(), wide_N.std()
    if not scale:
        return constant
    # Each row counts once as right and once as wrong, weighted by its target.
    both = np.concatenate([wide_N, wide_N])[:, None]
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
    model.fit(
        (both - centre) / scale,
        np.repeat([1, 0], num_rows),
        sample_weight=np.concatenate([target_N, 1 - target_N]),
    )
    slope = float(model.coef_[0, 0] / scale)
    if slope <= 0:
        return constant
    return Calibration(slope=slope, intercept=float(model.intercept_[0]) - slope * centre, num_rows=num_rows)
