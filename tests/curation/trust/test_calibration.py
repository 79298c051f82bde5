"""Platt scaling and isotonic regression against scikit-learn's own, ranks kept, a class weight's shift taken back."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, xlogy
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from curation.errors import DegenerateSourceError
from curation.trust.calibration import Calibration, fit_calibration


def logits(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated logits, and right or wrong drawn from them; one row in five is right."""
    rng = np.random.default_rng(seed)
    logit_N = rng.normal(-1.8, 1.2, num_rows)
    return logit_N.astype(np.float32), rng.random(num_rows) < expit(logit_N)


def test_equals_scikit_learns_sigmoid_calibration() -> None:
    logit_N, correct_N = logits(700)
    raw_N = 3 * logit_N + 2
    peer = CalibratedClassifierCV(FrozenEstimator(_AsGiven().fit(raw_N[:, None], correct_N)), method="sigmoid")
    peer.fit(raw_N[:, None], correct_N)
    ours_N = fit_calibration(raw_N, correct_N).to_trust(raw_N)
    np.testing.assert_allclose(ours_N, peer.predict_proba(raw_N[:, None])[:, 1], atol=2e-4)


class _AsGiven(LogisticRegression):
    """Its decision is its one input."""

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(X[:, 0], dtype=np.float64)


@pytest.mark.parametrize("shift", [0.0, 700.0])
def test_is_the_likeliest_for_platts_smoothed_targets(shift: float) -> None:
    raw_N, correct_N = logits(60, seed=3)
    raw_N = raw_N.astype(np.float64) + shift
    num_right, num_wrong = correct_N.sum(), (~correct_N).sum()
    target_N = np.where(correct_N, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))

    def loss(parameters: np.ndarray) -> float:
        trust_N = expit(parameters[0] * (raw_N - shift) + parameters[1])
        return -float((xlogy(target_N, trust_N) + xlogy(1 - target_N, 1 - trust_N)).sum())

    best = minimize(loss, [1.0, 0.0], tol=1e-12)
    found = fit_calibration(raw_N, correct_N)
    assert found.slope == pytest.approx(best.x[0], abs=1e-4)
    assert found.intercept + found.slope * shift == pytest.approx(best.x[1], abs=1e-3)
    assert found.num_rows == 60


def test_what_a_class_weight_shifts_is_taken_back_and_ranks_stay() -> None:
    logit_N, correct_N = logits(20_000)
    shifted_N = logit_N + np.float32(np.log(4))
    calibration = fit_calibration(shifted_N[:2_000], correct_N[:2_000])
    held_N, right_N = shifted_N[2_000:], correct_N[2_000:]
    trust_N = calibration.to_trust(held_N)
    honest, constant = (brier_score_loss(right_N, p) for p in (expit(logit_N[2_000:]), np.full(18_000, right_N.mean())))
    assert brier_score_loss(right_N, expit(held_N)) > constant  # the shift alone makes trust worse than a constant
    assert brier_score_loss(right_N, trust_N) == pytest.approx(honest, abs=2e-3)
    order = np.argsort(held_N, kind="stable")
    assert (np.diff(trust_N[order]) >= 0).all() and trust_N.dtype == np.float32


def test_a_score_that_points_the_wrong_way_becomes_the_constant() -> None:
    logit_N, correct_N = logits(2_000)
    found = fit_calibration(-logit_N, correct_N)
    assert found.slope == 0
    np.testing.assert_allclose(found.to_trust(logit_N), correct_N.mean(), atol=2e-3)
    assert 0 < fit_calibration(np.zeros(10, np.float32), np.arange(10) < 3).to_trust(np.zeros(1, np.float32))[0] < 0.5


def test_without_a_fit_trust_is_the_sigmoid_and_one_class_is_refused() -> None:
    raw_N = np.float32([-200, 0, 40, np.nan])
    np.testing.assert_allclose(Calibration().to_trust(raw_N), np.float32([0, 0.5, 1, np.nan]))
    raw_N, correct_N = logits(50)
    assert fit_calibration(raw_N, correct_N, "none") == Calibration()
    assert fit_calibration(raw_N[:0], correct_N[:0], "isotonic") == fit_calibration(raw_N[:0], correct_N[:0])
    with pytest.raises(
        DegenerateSourceError, match=r"5 of 5 weak labels are right among the held-out source rows that calibrate"
    ):
        fit_calibration(np.zeros(5, np.float32), np.ones(5, np.bool_))


@pytest.mark.parametrize(("num_rows", "decimals"), [(700, 5), (700, 0), (3, 5)])
def test_an_isotonic_fit_is_scikit_learns_and_never_falls(num_rows: int, decimals: int) -> None:
    raw_N, correct_N = logits(num_rows)
    raw_N, correct_N[:2] = raw_N.round(decimals), (True, False)  # ties, and both kinds
    found = fit_calibration(raw_N, correct_N, "isotonic")
    peer = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(raw_N.astype(np.float64), correct_N)
    grid_N = np.concatenate([raw_N, np.linspace(-30, 30, 5001), [-1e30, 1e30]]).astype(np.float32)
    trust_N = found.to_trust(grid_N)
    np.testing.assert_allclose(trust_N, peer.predict(grid_N.astype(np.float64)), atol=1e-6)
    assert trust_N.dtype == np.float32 and trust_N.min() >= 0 and trust_N.max() <= 1
    assert (np.diff(trust_N[np.argsort(grid_N, kind="stable")]) >= 0).all()
    assert np.isnan(found.to_trust(np.float32([np.nan]))).all() and found.num_rows == num_rows
    read = Calibration(**json.loads(json.dumps(asdict(found))))
    assert read == found and read.to_trust(grid_N).tolist() == trust_N.tolist()


def test_an_isotonic_fit_takes_a_shape_that_no_sigmoid_has() -> None:
    rng = np.random.default_rng(6)
    raw_N = rng.uniform(-3, 3, 20_000).astype(np.float32)
    share_N = np.where(raw_N < -1, 0.1, np.where(raw_N < 2, 0.5, 0.6))
    correct_N = rng.random(20_000) < share_N
    errors = {
        method: np.abs(fit_calibration(raw_N[::2], correct_N[::2], method).to_trust(raw_N[1::2]) - share_N[1::2]).mean()
        for method in ("isotonic", "platt")
    }
    assert errors["isotonic"] < 0.02 < 0.05 < errors["platt"]
