"""Calibration of raw scores to probabilities, on rows that the weights did not see (ours; the paper has none).

A class weight shifts every logit, and a network that fits its rows closely is overconfident. The slope and the
intercept of Platt scaling correct both; isotonic regression fits any non-decreasing function, and needs more rows. With
either, trust never falls as the raw score rises. Rows are ranked by the raw score, so ties of trust do not matter.

Sources: Platt, "Probabilistic Outputs for Support Vector Machines" (1999), with its smoothed targets; Zadrozny and
Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates" (2002).
"""

from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass
from scipy.special import expit, logit

from curation.arrays import Bools, Float64s
from curation.errors import DegenerateSourceError
from curation.trust import Scores

Method = Literal["platt", "isotonic", "none"]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A map to trust: sigmoid(``slope`` * raw score + ``intercept``) or, with ``knots``, interpolation between them."""

    slope: float = 1.0
    intercept: float = 0.0
    num_rows: int = 0
    """The number of rows that the calibration was fitted on."""
    knots: tuple[tuple[float, float], ...] = ()
    """Raw score and trust at each knot of an isotonic fit, ascending; trust is linear between and constant outside."""

    def to_trust(self, raw_N: Scores) -> Scores:
        """Return the trust in [0, 1] of raw scores, float32 [N]; NaN for NaN."""
        wide_N = raw_N.astype(np.float64)
        if self.knots:
            raw_K, trust_K = np.transpose(self.knots)
            trust_N = np.interp(wide_N, raw_K, trust_K)
        else:
            trust_N = expit(self.slope * wide_N + self.intercept)
        found_N: Scores = trust_N.astype(np.float32)
        return found_N


def fit_calibration(raw_N: Scores, correct_N: Bools, method: Method = "platt") -> Calibration:
    """Fit trust to finite raw scores and each label's correctness; ``none``, or no rows, gives the bare sigmoid.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong.
    """
    num_rows, num_right = len(correct_N), int(correct_N.sum())
    if method == "none" or not num_rows:
        return Calibration()
    if num_right in (0, num_rows):
        raise DegenerateSourceError(
            f"trust: {num_right} of {num_rows} weak labels are right among the held-out source rows that calibrate "
            "trust (trust.validation_fraction), but both right and wrong ones are needed; give more source rows or a "
            "larger share of them, or set trust.calibration: none"
        )
    wide_N = raw_N.astype(np.float64)
    if method == "platt":
        return _fit_platt(wide_N, correct_N)
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(wide_N, correct_N.astype(np.float64))
    knots = zip(model.X_thresholds_.tolist(), model.y_thresholds_.tolist(), strict=True)
    return Calibration(num_rows=num_rows, knots=tuple(knots))


def _fit_platt(wide_N: Float64s, correct_N: Bools) -> Calibration:
    """Return the maximum-likelihood slope (at least 0) and intercept for Platt's smoothed targets."""
    from sklearn.linear_model import LogisticRegression

    num_rows, num_right = len(correct_N), int(correct_N.sum())
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
        (both - centre) / scale, np.repeat([1, 0], num_rows), sample_weight=np.concatenate([target_N, 1 - target_N])
    )
    slope = float(model.coef_[0, 0] / scale)
    if slope <= 0:
        return constant
    return Calibration(slope=slope, intercept=float(model.intercept_[0]) - slope * centre, num_rows=num_rows)
