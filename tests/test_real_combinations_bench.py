"""Other combinations of a stack's columns, on drawn rows: against the product, scikit-learn and scipy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from curation.config import TrustConfig
from curation.trust.parts import FIT
from train.stack import fit_stacked
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

bench = pytest.importorskip("benchmarks.real.combinations")
STATES = ("prompt_last", "output_last")


def drawn(num_rows: int, seed: int) -> LabelledRows:
    """Rows whose states and two of three numbers tell, with noise, whether they are right."""
    rng = np.random.default_rng(seed)
    hidden_ND, numbers_NK = rng.standard_normal((num_rows, 12)), rng.standard_normal((num_rows, 3))
    logit_N = hidden_ND[:, 0] + numbers_NK @ (1.0, -0.5, 0.0)
    return LabelledRows(
        hidden_ND=hidden_ND.astype(np.float16),
        correct_N=rng.random(num_rows) < expit(logit_N),
        part_N=np.full(num_rows, FIT, dtype=np.int8),
        sizes=(6, 6),
        row_ids_N=np.arange(num_rows),
        numbers_NK=numbers_NK,
        numbers=("mean_logprob", "margin", "num_output_tokens"),
    )


def test_the_default_way_is_that_of_the_product() -> None:
    source, pool = drawn(300, 0), drawn(500, 1)
    trust = fit_stacked(source, TrustConfig(states=STATES), seed=3, origin={})
    expected_N = trust.raw_with(torch.from_numpy(np.asarray(pool.hidden_ND)), pool.numbers_NK, pool.numbers)
    found = bench.columns_of(source, pool, STATES, 3)
    np.testing.assert_allclose(bench.combined(found, bench.WAYS["signs"], 3), expected_N, atol=2e-3)
    best = roc_auc_score(pool.correct_N, pool.numbers_NK[:, 0])
    line = bench.of_draw(found, pool, 3, ["any sign", "signs"])
    assert line["best_free"] == pytest.approx(best)
    assert line["ways"]["signs"]["auc"] == pytest.approx(roc_auc_score(pool.correct_N, expected_N), abs=1e-3)
    table = bench.table([{"set": "drawn", "size": 300, "draw": 0, **line}], ["any sign", "signs"])
    assert f"| drawn, 300 | 1 | {line['ways']['any sign']['auc']:.4f} |" in table


def test_a_regression_is_that_of_sklearn_and_with_bounds_and_a_mean_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    columns_MK = rng.standard_normal((200, 4))
    correct_M = rng.random(200) < expit(columns_MK @ (1.0, -1.0, 0.5, 0.0))
    none_K, nowhere_K = np.zeros(4), np.zeros(4, dtype=np.bool_)
    weight_K, bias = bench.regression(columns_MK, correct_M, np.full(4, 1 / 0.3), none_K, nowhere_K)
    peer = LogisticRegression(C=0.3, tol=1e-10, max_iter=10_000).fit(columns_MK, correct_M)
    np.testing.assert_allclose([*weight_K, bias], [*peer.coef_[0], *peer.intercept_], atol=1e-4)

    precision_K, mean_K = np.array([1.0, 5.0, 2.0, 4.0]), np.array([0.5, 0.5, 0.0, 1.0])

    def loss(of: np.ndarray) -> float:
        logit_M = columns_MK @ of[:-1] + of[-1]
        likelihood = logit_M[correct_M].sum() - np.logaddexp(0, logit_M).sum()
        return float((precision_K * (of[:-1] - mean_K) ** 2).sum() / 2 - likelihood)

    bounds = [(0, None)] * 4 + [(None, None)]
    expected = minimize(loss, np.zeros(5), bounds=bounds, method="SLSQP", options={"ftol": 1e-12}).x
    weight_K, bias = bench.regression(columns_MK, correct_M, precision_K, mean_K, ~nowhere_K)
    assert weight_K[1] == 0  # its mean is above 0, and the rows say the contrary
    np.testing.assert_allclose([*weight_K, bias], expected, atol=2e-3)


def test_the_evidence_of_a_prior_with_a_mean_is_the_likelihood_of_its_linear_model() -> None:
    rng = np.random.default_rng(1)
    columns_MK = rng.standard_normal((40, 3))
    columns_MK -= columns_MK.mean(axis=0)
    correct_M = rng.random(40) < 0.4
    variance = correct_M.mean() * (1 - correct_M.mean())
    priors = [(0.1, np.array([1.0, 4.0, 1.0]), np.array([0.5, 0.0, 0.2])), (0.01, np.ones(3), np.zeros(3))]
    expected = [
        multivariate_normal(
            correct_M.mean() + variance * columns_MK @ mean_K,
            variance * np.eye(40) + strength * (variance * columns_MK * scale_K) @ (variance * columns_MK * scale_K).T,
        ).logpdf(correct_M)
        for strength, scale_K, mean_K in priors
    ]
    first, second = (bench.log_evidence(columns_MK, correct_M, *prior) for prior in priors)
    assert first - second == pytest.approx(expected[0] - expected[1])
