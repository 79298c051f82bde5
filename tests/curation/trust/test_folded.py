"""Folded networks against the equations of the plain ones."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.folded import compute_principal_components
from curation.trust.linear_probe import LinearProbe
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet

WIDE = Architecture(
    input_size=96, width=64, depth=3, expansion=2.0, dropout=0.0, stochastic_depth=0.0, standardise=True
)


def net_of(architecture, seed=0, mean=0.0):
    """A network with random norms, biases and moments."""
    torch.manual_seed(seed)
    net = NeuralTrustNet(architecture)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "norm" in name or "bias" in name:
                weight.add_(torch.randn_like(weight) * 0.3)
    if architecture.standardise:
        net.mean_D.copy_(torch.randn(architecture.input_size) + mean)
        net.scale_D.copy_(torch.rand(architecture.input_size) + 0.5)
    return net.eval()


def states_of(num_rows, size, mean=0.0, seed=1):
    return (np.random.default_rng(seed).normal(size=(num_rows, size)) + mean).astype(np.float16)


def labels_of(**states):
    columns = {
        f"state_{name}": pa.FixedSizeListArray.from_arrays(pa.array(value.ravel()), value.shape[1])
        for name, value in states.items()
    }
    return pa.record_batch(columns)


@pytest.mark.parametrize("standardise", [True, False])
def test_a_folded_network_equals_the_network_in_float64(standardise):
    net, hidden_ND = net_of(replace(WIDE, standardise=standardise)), states_of(1300, 96)
    raw_N = NeuralTrust(net, ["output_last"], {}).raw_score(labels_of(output_last=hidden_ND))
    with torch.no_grad():
        expected_N = net.double()(torch.from_numpy(hidden_ND)).numpy()
    assert expected_N.std() > 0.1
    np.testing.assert_allclose(raw_N, expected_N, rtol=2e-6, atol=2e-6)


def test_two_states_and_a_number_beside_them_are_read_without_being_joined():
    net, hidden_ND = net_of(WIDE), states_of(700, 95)
    tokens_N = np.arange(700)
    labels = labels_of(prompt_last=hidden_ND[:, :40], output_last=hidden_ND[:, 40:])
    labels = labels.append_column("num_prompt_tokens", pa.array(tokens_N, pa.int32()))
    trust = NeuralTrust(net, ["prompt_last", "output_last", "num_prompt_tokens"], {})
    raw_N = trust.raw_score(labels)
    with torch.no_grad():
        joined_ND = np.concatenate([hidden_ND.astype(np.float64), tokens_N[:, None]], axis=1)
        expected_N = net.double()(torch.from_numpy(joined_ND)).numpy()
    np.testing.assert_allclose(raw_N, expected_N, rtol=1e-5, atol=1e-5)
    other = labels.select([1, 0, 2])  # the order of the inputs is the function's, not the table's
    np.testing.assert_array_equal(trust.raw_score(other), raw_N)


def test_scoring_leaves_float32_states_as_they_were():
    net, hidden_ND = net_of(WIDE, mean=3.0), states_of(600, 96).astype(np.float32)
    before_ND, trust = hidden_ND.copy(), NeuralTrust(net, ["output_last"], {})
    raw_N = trust.raw_score(labels_of(output_last=hidden_ND))
    np.testing.assert_array_equal(hidden_ND, before_ND)
    np.testing.assert_array_equal(trust.raw_score(labels_of(output_last=before_ND)), raw_N)


@pytest.mark.parametrize("members", [1, 3])
def test_projection_and_standardisation_are_folded_for_all_members(members):
    hidden_ND = states_of(900, 200, mean=4.0)
    pca = compute_principal_components([torch.from_numpy(hidden_ND[:, :196])], size=92)
    nets = [net_of(WIDE, seed, mean=seed) for seed in range(members)]
    trust = DeepEnsemble(nets, ["output_last"], {}) if members > 1 else NeuralTrust(nets[0], ["output_last"], {})
    raw_N = trust.with_pca(pca).raw_score(labels_of(output_last=hidden_ND))
    projected = np.concatenate(
        [(hidden_ND[:, :196].astype(np.float64) - pca.mean_D.numpy()) @ pca.components_DK.numpy(), hidden_ND[:, 196:]],
        axis=1,
    )
    with torch.no_grad():
        probability_MN = torch.stack([net.double()(torch.from_numpy(projected)) for net in nets]).sigmoid()
    expected_N = probability_MN.mean(0).logit().numpy()
    np.testing.assert_allclose(raw_N, expected_N, rtol=1e-5, atol=1e-5)


def test_a_linear_probe_behind_components_is_one_product():
    rng, hidden_ND = np.random.default_rng(0), states_of(900, 120, mean=20.0)
    pca = compute_principal_components([torch.from_numpy(hidden_ND)], size=30)
    probe = LinearProbe(torch.from_numpy(rng.normal(size=30)), torch.tensor(0.3), ["output_last"], {}).with_pca(pca)
    raw_N = probe.raw_score(labels_of(output_last=hidden_ND))
    projected_NK = (hidden_ND.astype(np.float64) - pca.mean_D.numpy()) @ pca.components_DK.numpy()
    np.testing.assert_allclose(raw_N, projected_NK @ probe.weight_D.numpy() + 0.3, rtol=1e-5, atol=1e-5)
