"""The attention network against a re-statement of its equations in numpy; tokens; storage; what scoring reads."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import expit, softmax

from curation.config import TrustConfig
from curation.errors import ConfigError, SourceError
from curation.trust import load_fitted
from curation.trust.attention import AttentionArchitecture, AttentionNet, AttentionTrust
from curation.trust.calibration import Calibration

SIZES, INPUTS = (7, 5, 2), ("output_last", "prompt_last", "mean_logprob", "num_output_tokens")
ARCHITECTURE = AttentionArchitecture(
    sizes=SIZES, num_heads=4, width=16, depth=3, expansion=1.5, dropout=0.3, stochastic_depth=0.5, standardise=True
)


def net_of(architecture: AttentionArchitecture = ARCHITECTURE) -> AttentionNet:
    """A network whose every parameter and buffer is random, norms and biases too."""
    torch.manual_seed(0)
    net = AttentionNet(architecture)
    for tensor in net.state_dict().values():
        tensor.copy_(torch.randn_like(tensor) * 0.4 + 0.1)
    if architecture.standardise:
        net.scale_D.abs_().add_(0.5)
    return net.eval()


def restated(net: AttentionNet, hidden_ND: np.ndarray) -> np.ndarray:
    """The equations written anew in float64: one row, one head and one attending token at a time."""
    p = {name: tensor.double().numpy() for name, tensor in net.state_dict().items()}
    shape = net.architecture
    each = shape.width // shape.num_heads

    def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * gain

    def attended(x_TW: np.ndarray, layer: str) -> np.ndarray:
        query_TW, key_TW, value_TW = np.split(x_TW @ p[f"{layer}.query_key_value.weight"].T, 3, axis=1)
        mixed_TW = np.zeros_like(x_TW)
        for head in range(shape.num_heads):
            own = slice(head * each, (head + 1) * each)
            for t in range(len(x_TW)):
                share_T = softmax([query_TW[t, own] @ key_W / np.sqrt(each) for key_W in key_TW[:, own]])
                mixed_TW[t, own] = share_T @ value_TW[:, own]
        return mixed_TW @ p[f"{layer}.output.weight"].T

    def one(row_D: np.ndarray) -> float:
        ends = np.cumsum((0, *shape.sizes))
        parts = [row_D[start:end] for start, end in pairwise(ends)]
        tokens = [p[f"tokens.{t}.weight"] @ part + p[f"tokens.{t}.bias"] for t, part in enumerate(parts)]
        x_TW = np.stack([p["query_W"], *tokens])
        for i in range(shape.depth):
            x_TW = x_TW + attended(rms_norm(x_TW, p[f"attention.{i}.norm.weight"]), f"attention.{i}")
            y_TW = rms_norm(x_TW, p[f"feed_forward.{i}.norm.weight"])
            gate = y_TW @ p[f"feed_forward.{i}.w1.weight"].T
            inner = gate * expit(gate) * (y_TW @ p[f"feed_forward.{i}.w3.weight"].T)
            x_TW = x_TW + inner @ p[f"feed_forward.{i}.w2.weight"].T
        return (rms_norm(x_TW[0], p["norm.weight"]) @ p["head.weight"][0] + p["head.bias"][0]).item()

    x_ND = hidden_ND.astype(np.float64)
    if shape.standardise:
        x_ND = (x_ND - p["mean_D"]) / p["scale_D"]
    return np.array([one(row_D) for row_D in x_ND])


@pytest.fixture
def hidden_ND() -> np.ndarray:
    return (np.random.default_rng(1).standard_normal((40, sum(SIZES))) * 3).astype(np.float16)


def labels_of(hidden_ND: np.ndarray) -> pa.RecordBatch:
    """The columns of ``INPUTS`` in another order."""
    first_ND, second_ND, logprob_N, count_N = np.split(hidden_ND, [7, 12, 13], axis=1)
    states = {"state_prompt_last": second_ND, "state_output_last": first_ND}
    numbers = {"num_output_tokens": count_N[:, 0], "mean_logprob": logprob_N[:, 0]}
    return pa.record_batch(
        {name: pa.array(list(values), pa.list_(pa.float16(), values.shape[1])) for name, values in states.items()}
        | {name: pa.array(values.astype(np.float32)) for name, values in numbers.items()}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"standardise": False, "expansion": 2.0},
        {"num_heads": 1, "depth": 1},
        {"num_heads": 16},
        {"sizes": (14,)},  # one state alone
    ],
)
def test_forward_equals_the_restated_equations(changes: dict[str, Any], hidden_ND: np.ndarray) -> None:
    net = net_of(replace(ARCHITECTURE, **changes))
    expected_N = restated(net, hidden_ND)
    with torch.no_grad():
        single_N = net(torch.from_numpy(hidden_ND)).numpy()
        double_N = net.double()(torch.from_numpy(hidden_ND)).numpy()
    assert expected_N.std() > 0.1
    np.testing.assert_allclose(double_N, expected_N, rtol=0, atol=1e-11)
    np.testing.assert_allclose(single_N, expected_N, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("states", "columns", "sizes", "tokens"),
    [
        (("output_last",), (), (12,), (12,)),
        (("output_last", "prompt_last"), (), (12, 8), (12, 8)),
        (("output_last",), ("mean_logprob", "truncated"), (12, 1, 1), (12, 2)),
    ],
)
def test_each_state_is_a_token_and_all_numbers_are_one(
    states: tuple[str, ...], columns: tuple[str, ...], sizes: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    config = TrustConfig(states=states, columns=columns, width=24, depth=2, expansion=3.0)
    net = AttentionNet(AttentionArchitecture.of(config, sizes, 3))
    assert net.architecture.sizes == tokens and net.input_size == sum(sizes)
    assert [token.out_features for token in net.tokens] == [24] * len(tokens)
    assert net.architecture.num_heads == 3 and len(net.attention) == len(net.feed_forward) == 2
    assert net.feed_forward[0].w1.out_features == 72 and net.feed_forward[0].dropout.p == config.dropout


@pytest.mark.parametrize("num_heads", [5, 32, 0, -4, 4.0, "4", True])
def test_heads_that_do_not_divide_the_width_are_refused(num_heads: Any) -> None:
    with pytest.raises(ConfigError, match=rf"num_heads: {num_heads!r}; the heads divide trust\.width \(16\) evenly"):
        AttentionArchitecture.of(TrustConfig(width=16), (12,), num_heads)


def test_scoring_reads_the_inputs_by_name_and_leaves_out_rows_without_one(hidden_ND: np.ndarray) -> None:
    trust = AttentionTrust(net_of(), INPUTS, {})
    labels, expected_N = labels_of(hidden_ND), restated(trust.net, hidden_ND)
    assert trust.features == ("state_output_last", "state_prompt_last", "mean_logprob", "num_output_tokens")
    np.testing.assert_allclose(trust.raw_score(labels), expected_N, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(trust.score(labels), expit(expected_N), atol=1e-5)
    holes = pa.array([None if i % 4 == 0 else row for i, row in enumerate(labels["state_prompt_last"].to_pylist())])
    with_holes = labels.set_column(0, "state_prompt_last", holes.cast(labels.schema.field(0).type))
    np.testing.assert_array_equal(np.isnan(trust.raw_score(with_holes)), np.arange(40) % 4 == 0)
    with pytest.raises(SourceError, match="12 numbers a row, but the trust function was fitted on 14"):
        AttentionTrust(net_of(), INPUTS[:2], {}).raw_score(labels)


def test_dropout_and_stochastic_depth_are_off_in_evaluation_only(hidden_ND: np.ndarray) -> None:
    x_ND = torch.from_numpy(hidden_ND)
    for architecture in (replace(ARCHITECTURE, dropout=0.0), replace(ARCHITECTURE, stochastic_depth=0.0)):
        net = net_of(architecture)
        assert torch.equal(net(x_ND), net(x_ND))
        net.train()
        assert not torch.equal(net(x_ND), net(x_ND))
    plain = net_of(replace(ARCHITECTURE, dropout=0.0, stochastic_depth=0.0)).train()
    assert torch.equal(plain(x_ND), plain.eval()(x_ND))


def test_rates_of_stochastic_depth_grow_linearly_over_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    monkeypatch.setattr("curation.trust.attention.drop_path", lambda x, rate, *, training: rates.append(rate) or x)
    net_of(replace(ARCHITECTURE, depth=4, stochastic_depth=0.2)).train()(torch.zeros(2, 14))
    assert rates == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.15, 0.15, 0.2, 0.2])


@pytest.mark.parametrize("standardise", [True, False])
def test_a_saved_function_scores_to_the_bit(standardise: bool, hidden_ND: np.ndarray, tmp_path: Path) -> None:
    net, calibration = net_of(replace(ARCHITECTURE, standardise=standardise)), Calibration(slope=0.5, intercept=-1.0)
    trust = AttentionTrust(net, INPUTS, {"seed": 4})
    trust.calibration = calibration
    loaded = load_fitted(trust.save(tmp_path / "trust"))
    labels = labels_of(hidden_ND)
    assert isinstance(loaded, AttentionTrust) and loaded.calibration == calibration
    assert (loaded.inputs, loaded.fit, loaded.net.architecture) == (trust.inputs, trust.fit, trust.net.architecture)
    np.testing.assert_array_equal(loaded.raw_score(labels), trust.raw_score(labels))
    np.testing.assert_array_equal(loaded.score(labels), trust.score(labels))
    assert {file.suffix for file in (tmp_path / "trust").iterdir()} == {".json", ".safetensors"}
