"""Scoring in bfloat16 is taken where it keeps the order of held-out rows, and the record says so."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from curation.config import TrustConfig
from curation.trust import load_fitted
from train import rounding
from train.trust import fit_rows
from train.trust_loop import LabelledRows

SMALL = {"width": 16, "depth": 1, "max_steps": 40, "patience": None, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    hidden_ND = rng.normal(size=(1200, 24)).astype(np.float16)
    correct_N = hidden_ND[:, 0] + 0.5 * rng.normal(size=1200) > 0
    part_N = np.array([0, 0, 1, 1], dtype=np.int8)[np.arange(1200) % 4]
    return LabelledRows(hidden_ND, correct_N, part_N, (24,), np.arange(1200), np.empty((1200, 0)))


@pytest.mark.parametrize("kind", ["neural", "deep_ensemble"])
def test_bfloat16_is_taken_and_survives_saving(rows, kind, tmp_path):
    config = TrustConfig(score_dtype="bfloat16", options={"deep_ensemble": {"members": 2}}, **SMALL)
    trust = fit_rows(kind, rows, config, seed=0, origin={})
    assert trust.fit["rounding"]["taken"] == trust.score_dtype == "bfloat16"
    assert trust.fit["rounding"]["num_rows"] == 600
    assert load_fitted(trust.save(tmp_path / kind)).score_dtype == "bfloat16"
    plain = fit_rows(kind, rows, config.model_copy(update={"score_dtype": "float32"}), seed=0, origin={})
    assert plain.score_dtype == "float32" and "rounding" not in plain.fit
    assert {name: tensor.tolist() for name, tensor in trust.weights.items()} == {
        name: tensor.tolist() for name, tensor in plain.weights.items()
    }


def test_float32_stays_where_the_order_is_lost(rows, monkeypatch):
    monkeypatch.setattr(rounding, "LEAST_OVERLAP", 1.1)
    trust = fit_rows("neural", rows, TrustConfig(score_dtype="bfloat16", **SMALL), seed=0, origin={})
    assert trust.score_dtype == trust.fit["rounding"]["taken"] == "float32"
    assert trust.fit["rounding"]["asked"] == "bfloat16"


def test_what_is_compared_is_the_best_tenth_and_the_auc():
    rng = np.random.default_rng(0)
    exact_M = rng.normal(size=500).astype(np.float32)
    rounded_M = exact_M + 0.3 * rng.normal(size=500).astype(np.float32)
    correct_M = rng.random(500) < 0.5
    found = rounding.compare_scores(exact_M, rounded_M, correct_M)
    best, other = (set(sorted(range(500), key=lambda m, raw_M=raw_M: -raw_M[m])[:50]) for raw_M in (exact_M, rounded_M))
    assert found["overlap"] == len(best & other) / 50 < 1
    change = roc_auc_score(correct_M, rounded_M) - roc_auc_score(correct_M, exact_M)
    assert found["auc_change"] == pytest.approx(abs(change))
    assert rounding.compare_scores(exact_M, rounded_M, np.ones(500, dtype=bool))["auc_change"] == 0
