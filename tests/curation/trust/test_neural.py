"""The neural trust function against a re-statement of its equations in numpy; storage; what scoring reads."""

import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from curation.config import TrustConfig
from curation.errors import ModelError, SourceError, UserError
from curation.refs import TrustRef
from curation.trust import load_fitted
from curation.trust.calibration import Calibration
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet, drop_path
from curation.trust.states import read_states

ARCHITECTURE = Architecture(
    input_size=12, width=16, depth=3, expansion=1.5, dropout=0.3, stochastic_depth=0.5, standardise=True
)


def net_of(architecture: Architecture = ARCHITECTURE, seed: int = 0) -> NeuralTrustNet:
    """A network whose every parameter and buffer is random, norms and biases too."""
    torch.manual_seed(seed)
    net = NeuralTrustNet(architecture)
    for tensor in net.state_dict().values():
        tensor.copy_(torch.randn_like(tensor) * 0.25 + 0.1)
    if architecture.standardise:
        net.scale_D.abs_().add_(0.5)
    return net.eval()


def restated(net: NeuralTrustNet, hidden_ND: np.ndarray) -> np.ndarray:
    """The equations of the paper's section, written anew in float64."""
    p = {name: tensor.double().numpy() for name, tensor in net.state_dict().items()}

    def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * gain

    x = hidden_ND.astype(np.float64)
    if net.architecture.standardise:
        x = (x - p["mean_D"]) / p["scale_D"]
    x = x @ p["input.weight"].T + p["input.bias"]
    for i in range(net.architecture.depth):
        y = rms_norm(x, p[f"blocks.{i}.norm.weight"])
        gate = y @ p[f"blocks.{i}.w1.weight"].T
        swish = gate / (1 + np.exp(-gate))
        x = x + (swish * (y @ p[f"blocks.{i}.w3.weight"].T)) @ p[f"blocks.{i}.w2.weight"].T
    return rms_norm(x, p["norm.weight"]) @ p["head.weight"][0] + p["head.bias"][0]


def labels_of(**states: np.ndarray) -> pa.RecordBatch:
    columns = {
        f"state_{name}": pa.FixedSizeListArray.from_arrays(pa.array(value.ravel()), value.shape[1])
        for name, value in states.items()
    }
    return pa.record_batch(columns)


@pytest.fixture
def hidden_ND() -> np.ndarray:
    return (np.random.default_rng(1).standard_normal((50, 12)) * 3).astype(np.float16)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("expansion", [1.5, 2.0])
def test_forward_equals_the_restated_equations(standardise: bool, expansion: float, hidden_ND: np.ndarray) -> None:
    net = net_of(replace(ARCHITECTURE, standardise=standardise, expansion=expansion))
    expected_N = restated(net, hidden_ND)
    with torch.no_grad():
        single_N = net(torch.from_numpy(hidden_ND)).numpy()
        double_N = net.double()(torch.from_numpy(hidden_ND)).numpy()
    assert expected_N.std() > 0.1
    np.testing.assert_allclose(double_N, expected_N, rtol=0, atol=1e-12)
    np.testing.assert_allclose(single_N, expected_N, rtol=1e-6, atol=1e-6)


def test_several_states_are_concatenated_in_the_order_of_the_config(hidden_ND: np.ndarray) -> None:
    net = net_of()
    trust = NeuralTrust(net, ["output_last", "prompt_last"], {})
    first_ND, last_ND = hidden_ND[:, :8], hidden_ND[:, 8:]
    labels = labels_of(prompt_last=last_ND, output_last=first_ND)
    assert trust.features == ("state_output_last", "state_prompt_last")
    np.testing.assert_allclose(trust.raw_score(labels), restated(net, hidden_ND), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(trust.score(labels), 1 / (1 + np.exp(-restated(net, hidden_ND))), atol=1e-6)


def test_scoring_reads_slices_batches_nulls_and_both_types(
    hidden_ND: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curation.trust.states.SCORE_ROWS", 16)
    trust = NeuralTrust(net_of(), ["output_last"], {})
    expected_N = restated(trust.net, hidden_ND)
    whole = labels_of(output_last=hidden_ND)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(trust.raw_score(whole), expected_N, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(trust.raw_score(whole.slice(7, 21)), expected_N[7:28], rtol=1e-6, atol=1e-6)
        single = labels_of(output_last=hidden_ND.astype(np.float32))
        np.testing.assert_allclose(trust.raw_score(single), expected_N, rtol=1e-6, atol=1e-6)
        rows = [None if i % 5 == 0 else row for i, row in enumerate(hidden_ND)]
        for holes in (rows, [None] * 50):
            labels = pa.record_batch({"state_output_last": pa.array(holes, pa.list_(pa.float16(), 12))}).slice(1)
            missing = np.array([row is None for row in holes[1:]])
            raw_N = trust.raw_score(labels)
            np.testing.assert_array_equal(np.isnan(raw_N), missing)
            np.testing.assert_array_equal(np.isnan(trust.score(labels)), missing)
            np.testing.assert_allclose(raw_N[~missing], expected_N[1:][~missing], rtol=1e-6, atol=1e-6)
    assert len(trust.raw_score(whole.slice(0, 0))) == 0


def test_states_are_views_of_the_batch(hidden_ND: np.ndarray) -> None:
    labels = labels_of(output_last=hidden_ND).slice(3)
    states = read_states(labels, ["state_output_last"])
    start = labels.column(0).values.buffers()[1].address
    assert states.columns[0].data_ptr() == start + 3 * 12 * 2


def test_wrong_columns_are_refused(hidden_ND: np.ndarray) -> None:
    trust = NeuralTrust(net_of(), ["output_last"], {})
    with pytest.raises(SourceError, match="column state_output_last is missing"):
        trust.raw_score(labels_of(prompt_last=hidden_ND))
    with pytest.raises(SourceError, match="8 numbers a row, but the trust function was fitted on 12"):
        trust.raw_score(labels_of(output_last=hidden_ND[:, :8]))
    with pytest.raises(SourceError, match="state_output_last is double, not a fixed-size list"):
        trust.raw_score(pa.record_batch({"state_output_last": pa.array([1.0])}))


def test_dropout_and_stochastic_depth_are_off_in_evaluation_only(hidden_ND: np.ndarray) -> None:
    net, x_ND = net_of(), torch.from_numpy(hidden_ND)
    assert torch.equal(net(x_ND), net(x_ND))
    for architecture in (replace(ARCHITECTURE, dropout=0.0), replace(ARCHITECTURE, stochastic_depth=0.0)):
        training = net_of(architecture).train()
        assert not torch.equal(training(x_ND), training(x_ND))
    plain = net_of(replace(ARCHITECTURE, dropout=0.0, stochastic_depth=0.0)).train()
    assert torch.equal(plain(x_ND), plain.eval()(x_ND))


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_drop_path_drops_rows_and_keeps_the_expectation(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x_NW = torch.rand(40_000, *shape) + 1
    dropped_NW = drop_path(x_NW, 0.3, training=True)
    kept_N = dropped_NW.flatten(1)[:, 0] != 0
    assert torch.equal(dropped_NW[~kept_N], torch.zeros_like(x_NW[~kept_N]))
    torch.testing.assert_close(dropped_NW[kept_N], x_NW[kept_N] / 0.7)
    assert abs(kept_N.float().mean() - 0.7) < 0.01
    assert abs(dropped_NW.mean() - x_NW.mean()) < 0.02
    assert drop_path(x_NW, 0.3, training=False) is x_NW


def test_rates_of_stochastic_depth_grow_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    monkeypatch.setattr("curation.trust.neural.drop_path", lambda x, rate, *, training: rates.append(rate) or x)
    net_of(replace(ARCHITECTURE, depth=4, stochastic_depth=0.2)).train()(torch.zeros(2, 12))
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize(
    ("preset", "depth", "width"), [("strategy_games", 4, 512), ("quantitative_reasoning", 8, 1024)]
)
def test_architecture_of_a_preset(preset: str, depth: int, width: int) -> None:
    net = NeuralTrustNet(Architecture.of(TrustConfig(preset=preset), 64))
    assert (len(net.blocks), net.input.out_features) == (depth, width)
    assert net.blocks[0].w1.out_features == 2 * width and net.blocks[0].dropout.p == 0.2


@pytest.mark.parametrize("standardise", [True, False])
def test_saved_and_loaded_scores_the_same(standardise: bool, hidden_ND: np.ndarray, tmp_path: Path) -> None:
    net, calibration = net_of(replace(ARCHITECTURE, standardise=standardise)), Calibration(slope=0.5, intercept=-1.0)
    trust = NeuralTrust(net, ["output_last"], {"seed": 4})
    trust.calibration = calibration
    ref = trust.save(tmp_path / "trust")
    loaded = load_fitted(ref)
    labels = labels_of(output_last=hidden_ND)
    assert isinstance(loaded, NeuralTrust) and loaded.calibration == calibration
    np.testing.assert_array_equal(loaded.raw_score(labels), trust.raw_score(labels))
    np.testing.assert_array_equal(loaded.score(labels), trust.score(labels))
    assert (loaded.inputs, loaded.fit, loaded.net.architecture) == (trust.inputs, trust.fit, trust.net.architecture)
    assert sorted(path.name for path in (tmp_path / "trust").iterdir()) == ["description.json", "weights.safetensors"]
    for path in (tmp_path / "trust").iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)):
            pickle.loads(path.read_bytes())
    assert trust.save(tmp_path / "again").digest == ref.digest


def test_what_is_no_trust_function_is_refused(tmp_path: Path) -> None:
    ref = NeuralTrust(net_of(), ["output_last"], {}).save(tmp_path / "trust")
    assert issubclass(ModelError, UserError)
    with pytest.raises(ModelError, match="pinned was 0000"):
        load_fitted(TrustRef(uri=ref.uri, digest="0000"))
    with pytest.raises(ModelError, match=r"has no weights\.safetensors"):
        load_fitted(TrustRef(uri=str(tmp_path), digest="0000"))
    description = json.loads((tmp_path / "trust" / "description.json").read_text())
    description["architecture"]["width"] = 8
    (tmp_path / "trust" / "description.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match="pinned was"):
        load_fitted(ref)
    from curation.trust.saved import pin

    with pytest.raises(ModelError, match="was not saved by this version"):
        load_fitted(pin(tmp_path / "trust"))


def test_a_saturated_logit_still_ranks() -> None:
    trust = NeuralTrust(net_of(), ["output_last"], {})
    raw_N = np.float32([-200, 0, 30, 40, np.nan])
    np.testing.assert_allclose(trust.to_trust(raw_N), np.float32([0, 0.5, 1, 1, np.nan]), atol=1e-6)
    assert raw_N[3] > raw_N[2] and trust.to_trust(raw_N)[3] == trust.to_trust(raw_N)[2]
