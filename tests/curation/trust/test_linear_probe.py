"""The linear probe against scikit-learn's own decision function; storage; what scoring reads."""

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from curation.config import TrustConfig
from curation.errors import DegenerateSourceError, ModelError, SourceError
from curation.refs import TrustRef
from curation.trust import load_fitted
from curation.trust.linear_probe import LinearProbe
from curation.trust.saved import pin, read_description

NUM_ROWS, SIZE = 600, 24


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """States far from zero, on unlike scales, one of them constant; whether the label is right follows some of them."""
    random = np.random.default_rng(2)
    z_ND = random.standard_normal((NUM_ROWS, SIZE))
    correct_N = z_ND[:, :6].sum(axis=1) + random.standard_normal(NUM_ROWS) > 1.5
    hidden_ND = z_ND * random.uniform(0.05, 8, SIZE) + random.uniform(-20, 20, SIZE)
    hidden_ND[:, -1] = 3.0
    return hidden_ND.astype(np.float16), correct_N


def fit(rows: tuple[np.ndarray, np.ndarray], class_weight: float = 0.0) -> LinearProbe:
    return LinearProbe.fitted(
        *rows, TrustConfig(states=("prompt_last", "output_last"), class_weight=class_weight), {"seed": 1}
    )


def labels_of(hidden_ND: np.ndarray) -> pa.RecordBatch:
    columns = {}
    for name, part_ND in (("prompt_last", hidden_ND[:, :10]), ("output_last", hidden_ND[:, 10:])):
        values = pa.array(np.ascontiguousarray(part_ND).ravel())
        columns[f"state_{name}"] = pa.FixedSizeListArray.from_arrays(values, part_ND.shape[1])
    return pa.record_batch(columns)


@pytest.mark.parametrize(("class_weight", "theirs"), [(0.0, None), (1.0, "balanced")])
def test_logits_equal_scikit_learn(
    rows: tuple[np.ndarray, np.ndarray], class_weight: float, theirs: str | None
) -> None:
    hidden_ND, correct_N = rows
    probe = fit(rows, class_weight)
    peer = make_pipeline(StandardScaler(), LogisticRegression(class_weight=theirs, max_iter=1000))
    peer.fit(hidden_ND.astype(np.float32), correct_N)
    expected_N = peer.decision_function(hidden_ND.astype(np.float32))
    raw_N, trust_N = probe.raw_score(labels_of(hidden_ND)), probe.score(labels_of(hidden_ND))
    assert raw_N.dtype == trust_N.dtype == np.float32
    np.testing.assert_allclose(raw_N, expected_N, rtol=0, atol=1e-5)
    np.testing.assert_allclose(trust_N, expit(expected_N), rtol=0, atol=1e-5)
    assert roc_auc_score(correct_N, raw_N) > 0.9
    assert probe.fit == {
        "seed": 1,
        "num_fit": NUM_ROWS,
        "share_right_fit": correct_N.mean(),
        "num_iterations": int(peer[-1].n_iter_[0]),
    }


def test_the_class_weight_moves_the_mean_towards_balance(rows: tuple[np.ndarray, np.ndarray]) -> None:
    hidden_ND, correct_N = rows
    means = [float(fit(rows, weight).score(labels_of(hidden_ND)).mean()) for weight in (0.0, 0.5, 1.0)]
    assert means[0] == pytest.approx(correct_N.mean(), abs=1e-3) and means[0] < means[1] < means[2]


def test_slices_nulls_and_float32(rows: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curation.trust.states.SCORE_ROWS", 64)
    hidden_ND, probe = rows[0], fit(rows)
    expected_N = probe.raw_score(labels_of(hidden_ND))
    np.testing.assert_array_equal(
        probe.raw_score(labels_of(hidden_ND.astype(np.float32)).slice(9, 200)), expected_N[9:209]
    )
    gone = [None if row % 5 == 0 else values for row, values in enumerate(hidden_ND[:, :10])]
    holes = labels_of(hidden_ND).set_column(0, "state_prompt_last", pa.array(gone, pa.list_(pa.float16(), 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw_N, trust_N = probe.raw_score(holes), probe.score(holes)
    missing_N = np.arange(NUM_ROWS) % 5 == 0
    np.testing.assert_array_equal(np.isnan(raw_N), missing_N)
    np.testing.assert_array_equal(np.isnan(trust_N), missing_N)
    np.testing.assert_array_equal(raw_N[~missing_N], expected_N[~missing_N])


def test_numbers_of_the_table_stand_beside_the_states(rows: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    hidden_ND, correct_N = rows
    random = np.random.default_rng(3)
    logprob_N = (correct_N + random.standard_normal(NUM_ROWS)).astype(np.float32)
    tokens_N, truncated_N = random.integers(1, 2000, NUM_ROWS).astype(np.int32), random.random(NUM_ROWS) < 0.3
    columns = {"mean_logprob": logprob_N, "num_output_tokens": tokens_N, "truncated": truncated_N}
    together_ND = np.column_stack([hidden_ND.astype(np.float32), *columns.values()]).astype(np.float32)
    config = TrustConfig(states=("prompt_last", "output_last"), columns=tuple(columns), class_weight=0.0)
    probe = LinearProbe.fitted(together_ND, correct_N, config, {})
    batch = labels_of(hidden_ND)
    for name, values in columns.items():
        array = pa.array(values, mask=np.arange(NUM_ROWS) == 7 if name == "mean_logprob" else None)
        batch = batch.append_column(name, array)
    peer = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(together_ND, correct_N)
    expected_N = peer.decision_function(together_ND)
    expected_N[7] = np.nan
    loaded = load_fitted(probe.save(tmp_path / "probe"))
    assert loaded.features == ("state_prompt_last", "state_output_last", *columns)
    np.testing.assert_allclose(loaded.raw_score(batch), expected_N, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(loaded.raw_score(batch.slice(5, 50)), loaded.raw_score(batch)[5:55])
    with pytest.raises(SourceError, match="column truncated is missing"):
        loaded.raw_score(batch.drop_columns(["truncated"]))


def test_saved_and_loaded(rows: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    probe, labels = fit(rows), labels_of(rows[0])
    ref = probe.save(tmp_path / "probe")
    loaded = load_fitted(ref)
    assert isinstance(loaded, LinearProbe) and loaded.features == ("state_prompt_last", "state_output_last")
    assert loaded.fit == probe.fit
    np.testing.assert_array_equal(loaded.raw_score(labels), probe.raw_score(labels))
    assert fit(rows).save(tmp_path / "again").digest == ref.digest
    with pytest.raises(ModelError, match="was not saved by this version"):
        load_fitted(_without_states(tmp_path / "probe"))
    with pytest.raises(ModelError, match=r"pinned was .*; fit it again"):
        load_fitted(ref)
    with pytest.raises(ModelError, match="was not saved by this version"):
        load_fitted(_of_another_kind(fit(rows).save(tmp_path / "third"), tmp_path / "third"))
    with pytest.raises(ModelError, match=r"has no weights\.safetensors"):
        load_fitted(TrustRef(uri=str(tmp_path / "nowhere"), digest=""))
    with pytest.raises(ModelError, match=r"description\.json cannot be read \(No such file.*; restore it"):
        read_description(TrustRef(uri=str(tmp_path / "nowhere"), digest=""))


def _of_another_kind(ref: TrustRef, directory: Path) -> TrustRef:
    other = {"made_by": "curation.trust.neural:NeuralTrust"}
    (directory / "description.json").write_text(json.dumps(read_description(ref) | other))
    return pin(directory)


def _without_states(directory: Path) -> TrustRef:
    (directory / "description.json").write_text(json.dumps({"fit": {}}))
    return pin(directory)


def test_what_cannot_be_fitted_or_scored_is_refused(rows: tuple[np.ndarray, np.ndarray]) -> None:
    hidden_ND, correct_N = rows
    for constant_N in (np.zeros_like(correct_N), np.ones_like(correct_N)):
        with pytest.raises(DegenerateSourceError, match="both right and wrong ones are needed"):
            fit((hidden_ND, constant_N))
    with pytest.raises(SourceError, match="20 numbers a row, but the trust function was fitted on 24"):
        fit(rows).raw_score(labels_of(hidden_ND[:, :20]))
