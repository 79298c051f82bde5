"""The cross-fitted linear probe against scikit-learn's ridge regression, refitted fold by fold."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from train import probes
from train.probes import STRENGTHS, fit_ridge


def fit_probe(hidden_ND: np.ndarray, correct_N: np.ndarray, fold_N: np.ndarray) -> SimpleNamespace:
    """A probe of right and wrong, as a stack fits it."""
    found = fit_ridge(hidden_ND, np.where(correct_N, 1.0, -1.0)[:, None], fold_N)
    weight_D, bias, out_of_fold_N = found.weight_DC[:, 0], float(found.bias_C[0]), found.out_of_fold_NC[:, 0]
    return SimpleNamespace(weight_D=weight_D, bias=bias, out_of_fold_N=out_of_fold_N, strength=found.strength)


def rows_of(num_rows: int, width: int, seed: int = 0, signal: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States of unequal scales, of which the first number tells a little, right and wrong, and uneven folds."""
    rng = np.random.default_rng(seed)
    hidden_ND = (rng.standard_normal((num_rows, width)) * rng.uniform(0.1, 20, width) + 3).astype(np.float16)
    unit_N = (hidden_ND[:, 0] - hidden_ND[:, 0].mean()) / hidden_ND[:, 0].astype(np.float32).std()
    correct_N = signal * unit_N + rng.standard_normal(num_rows) > 0.4
    fold_N = rng.choice(4, num_rows, p=[0.5, 0.3, 0.15, 0.05])
    fold_N[:4] = range(4)
    return hidden_ND, correct_N, fold_N


def standardised(hidden_ND: np.ndarray) -> np.ndarray:
    """Over all rows, with a Gram matrix divided by the number of inputs; a constant column is 0."""
    wide_ND = hidden_ND.astype(np.float64)
    deviation_D = wide_ND.std(0)
    return (wide_ND - wide_ND.mean(0)) / np.where(deviation_D > 1e-6, deviation_D, 1.0) / wide_ND.shape[1] ** 0.5


def refitted(scaled_ND: np.ndarray, correct_N: np.ndarray, fold_N: np.ndarray, strength: float) -> np.ndarray:
    """The score of each row by a ridge regression of the other folds, with an intercept that is not penalised."""
    target_N, score_N = np.where(correct_N, 1.0, -1.0), np.empty(len(correct_N))
    for fold in np.unique(fold_N):
        held_N = fold_N == fold
        model = Ridge(alpha=strength, solver="svd").fit(scaled_ND[~held_N], target_N[~held_N])
        score_N[held_N] = model.predict(scaled_ND[held_N])
    return score_N


def levelled(score_N: np.ndarray, correct_N: np.ndarray, fold_N: np.ndarray) -> np.ndarray:
    """The scores less what the mean target of the other folds differs from that of all rows."""
    target_N = np.where(correct_N, 1.0, -1.0)
    return score_N - np.array([target_N[fold_N != fold].mean() for fold in fold_N]) + target_N.mean()


@pytest.mark.parametrize(("num_rows", "width"), [(60, 200), (200, 30), (80, 80)])
@pytest.mark.parametrize("strength", [STRENGTHS[0], STRENGTHS[4], STRENGTHS[-1]])
def test_out_of_fold_scores_and_weights_are_those_of_refitted_ridge_regressions(
    num_rows: int, width: int, strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden_ND, correct_N, fold_N = rows_of(num_rows, width)
    monkeypatch.setattr(probes, "STRENGTHS", (strength,))
    probe = fit_probe(hidden_ND, correct_N, fold_N)
    scaled_ND = standardised(hidden_ND)
    expected_N = levelled(refitted(scaled_ND, correct_N, fold_N, strength), correct_N, fold_N)
    assert probe.strength == strength
    np.testing.assert_allclose(probe.out_of_fold_N, expected_N, rtol=1e-6, atol=1e-7)
    peer = Ridge(alpha=strength, solver="svd").fit(scaled_ND, np.where(correct_N, 1.0, -1.0))
    raw_N = hidden_ND.astype(np.float64) @ probe.weight_D + probe.bias
    np.testing.assert_allclose(raw_N, peer.predict(scaled_ND), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(probe.weight_D, peer.coef_ / hidden_ND.astype(np.float64).std(0) / width**0.5, rtol=1e-5)


@pytest.mark.parametrize(("num_rows", "width", "signal"), [(60, 200, 2.0), (300, 20, 5.0), (300, 20, 0.3)])
def test_the_strength_has_the_least_out_of_fold_error(num_rows: int, width: int, signal: float) -> None:
    hidden_ND, correct_N, fold_N = rows_of(num_rows, width, seed=2, signal=signal)
    scaled_ND, target_N = standardised(hidden_ND), np.where(correct_N, 1.0, -1.0)
    scores = [refitted(scaled_ND, correct_N, fold_N, strength) for strength in STRENGTHS]
    best = int(np.argmin([np.square(score_N - target_N).mean() for score_N in scores]))
    probe = fit_probe(hidden_ND, correct_N, fold_N)
    assert probe.strength == STRENGTHS[best]
    np.testing.assert_allclose(probe.out_of_fold_N, levelled(scores[best], correct_N, fold_N), rtol=1e-6, atol=1e-7)


def test_a_signal_takes_a_weaker_penalty_than_noise() -> None:
    strong, none = (fit_probe(*rows_of(300, 20, seed=2, signal=signal)).strength for signal in (5.0, 0.0))
    assert strong < none


def test_of_many_rows_and_numbers_a_subset_is_fitted_and_the_others_need_no_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "MOST", 50)
    hidden_ND, correct_N, fold_N = rows_of(170, 60)
    probe = fit_probe(hidden_ND, correct_N, fold_N)
    raw_N = hidden_ND.astype(np.float64) @ probe.weight_D + probe.bias
    of_fold_N = ~np.isclose(probe.out_of_fold_N, raw_N, rtol=1e-5, atol=1e-5)
    assert of_fold_N.sum() == 50, "rows that the weights have seen have the score of another fold"
    alone = fit_probe(hidden_ND[of_fold_N], correct_N[of_fold_N], fold_N[of_fold_N])
    np.testing.assert_array_equal(alone.weight_D, probe.weight_D)
    np.testing.assert_array_equal(alone.out_of_fold_N, probe.out_of_fold_N[of_fold_N])
    whole = fit_probe(hidden_ND[:, :50], correct_N, fold_N)  # no wider than that: all rows are fitted on
    expected_N = refitted(standardised(hidden_ND[:, :50]), correct_N, fold_N, whole.strength)
    np.testing.assert_allclose(whole.out_of_fold_N, levelled(expected_N, correct_N, fold_N), rtol=1e-6)


@pytest.mark.parametrize(("num_rows", "width"), [(60, 100), (100, 30)])
def test_a_constant_column_weighs_nothing(num_rows: int, width: int) -> None:
    hidden_ND, correct_N, fold_N = rows_of(num_rows, width)
    hidden_ND[:, 5] = 7
    probe = fit_probe(hidden_ND, correct_N, fold_N)
    assert probe.weight_D[5] == pytest.approx(0, abs=1e-12)
    expected_N = levelled(refitted(standardised(hidden_ND), correct_N, fold_N, probe.strength), correct_N, fold_N)
    np.testing.assert_allclose(probe.out_of_fold_N, expected_N, rtol=1e-6, atol=1e-7)
    assert np.isfinite([*probe.weight_D, probe.bias]).all()


def test_states_that_are_all_constant_say_nothing() -> None:
    _, correct_N, fold_N = rows_of(40, 4)
    probe = fit_probe(np.full((40, 4), 2.5, dtype=np.float16), correct_N, fold_N)
    assert not probe.weight_D.any() and probe.bias == pytest.approx(2 * correct_N.mean() - 1)
    np.testing.assert_allclose(probe.out_of_fold_N, 2 * correct_N.mean() - 1, atol=1e-9)
