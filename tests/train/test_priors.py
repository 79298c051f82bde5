"""The evidence of priors, and the mean of logistic regressions that it weighs."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression

from curation.trust import combining
from curation.trust.combining import LEADS, STRENGTHS, Folded, assign_folds, log_evidences

pytestmark = pytest.mark.long


def drawn(num_rows: int, weight_K: tuple[float, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns of deviation 1 and outcomes of a logistic model of them."""
    rng = np.random.default_rng(seed)
    columns_MK = rng.normal(size=(num_rows, len(weight_K)))
    columns_MK = (columns_MK - columns_MK.mean(axis=0)) / columns_MK.std(axis=0)
    return columns_MK, rng.random(num_rows) < 1 / (1 + np.exp(-columns_MK @ np.array(weight_K)))


@pytest.mark.parametrize("seed", range(4))
def test_evidence_is_the_density_of_a_normal_distribution(seed: int) -> None:
    columns_MK, correct_M = drawn(60, (1.0, 0.5, 0.0, 0.0), seed)
    scales = [np.array([size, 1.0, 0.5, 0.0]) for size in (1.0, *LEADS)]
    priors = [(strength, scale_K) for strength in STRENGTHS for scale_K in scales]
    found_P = log_evidences(columns_MK, correct_M, priors)
    share = correct_M.mean()
    variance = share * (1 - share)
    wanted_P = np.array(
        [
            multivariate_normal.logpdf(
                correct_M - share,
                cov=variance * np.eye(60) + strength * variance**2 * (columns_MK * scale_K**2) @ columns_MK.T,
            )
            for strength, scale_K in priors
        ]
    )
    np.testing.assert_allclose(found_P - found_P[0], wanted_P - wanted_P[0], atol=1e-8)


def combined(columns_MK: np.ndarray, correct_M: np.ndarray, rising: Sequence[int] = ()) -> np.ndarray:
    names = tuple(f"column {place}" for place in range(columns_MK.shape[1]))
    folded = Folded(correct_M, assign_folds(np.arange(len(correct_M)), correct_M, 5, 0))
    of_rising = [names[place] for place in rising]
    found = folded.fit_logistic("all", names, columns_MK, leads=names[:1], rising=of_rising, num_members=0)
    return np.asarray(found.combination.model.weights["weight_K"])


def test_one_prior_is_scikit_learns_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "STRENGTHS", (0.03,))
    monkeypatch.setattr(combining, "LEADS", ())
    columns_MK, correct_M = drawn(200, (1.0, 0.5, 0.0), 0)
    wanted = LogisticRegression(C=0.03, max_iter=1000).fit(columns_MK, correct_M.astype(int))
    np.testing.assert_allclose(combined(columns_MK, correct_M), wanted.coef_[0], atol=1e-6)


def test_weights_of_rising_columns_are_those_of_a_bounded_regression_by_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "STRENGTHS", (0.1,))
    monkeypatch.setattr(combining, "LEADS", ())
    columns_MK, correct_M = drawn(200, (1.0, -1.0, -0.7, 0.3), 0)
    columns_MK[:, 1] += columns_MK[:, 0]
    columns_MK = (columns_MK - columns_MK.mean(axis=0)) / columns_MK.std(axis=0)

    def loss(of: np.ndarray) -> float:
        logit_M = columns_MK @ of[:-1] + of[-1]
        return float(np.logaddexp(0, logit_M).sum() - logit_M[correct_M].sum() + of[:-1] @ of[:-1] / (2 * 0.1))

    bounds = [(0, None), (0, None), (None, None), (0, None), (None, None)]
    wanted = minimize(loss, np.zeros(5), bounds=bounds, method="SLSQP", options={"ftol": 1e-12}).x
    weight_K = combined(columns_MK, correct_M, rising=(0, 1, 3))
    np.testing.assert_allclose(weight_K, wanted[:-1], atol=1e-3)
    assert weight_K[1] == 0  # alone it says something, beside the first column the contrary
    assert weight_K[2] < 0


def test_few_rows_stay_near_the_lead_where_it_alone_says_something_and_leave_it_where_others_do() -> None:
    alone, others = (
        np.mean([np.abs(combined(*drawn(100, weight_K, seed))) for seed in range(8)], axis=0)
        for weight_K in ((1.5,) + (0.0,) * 20, (0.3,) * 21)
    )
    assert alone[0] > 12 * alone[1:].mean()
    assert others[0] < 5 * others[1:].mean()
