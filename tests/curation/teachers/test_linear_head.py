"""Log-probabilities from what the head reads, by tiles of the vocabulary, against the model's own logits."""

import pytest
import torch

from curation.models import create, load_model
from curation.teachers.forward import TILES, Forward

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}
# Phi's head has a bias. Gemma 2 caps logits, Cohere scales them.
SHAPES = {
    "phi": SHAPE,
    "llama": SHAPE,
    "gemma2": SHAPE | {"head_dim": 16},
    "cohere": SHAPE,
}


def model_of(folder, family, dtype="float32"):
    words = tuple("abcdefghijklmnopqrstuvwxyz ")
    made = create(folder / "m", family=family, shape=SHAPES[family], words=words, pattern=r"[\s\S]", seed=3)
    return load_model(made, dtype=dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("family", ["phi", "llama"])
@torch.inference_mode()
def test_logprobs_by_tiles_equal_those_of_the_models_logits(tmp_path, monkeypatch, family, dtype, tolerance):
    model = model_of(tmp_path, family, dtype)
    head = model.get_output_embeddings()
    if family == "phi":
        head.bias.normal_()
    ids_BT = torch.randint(0, 27, (2, 6), generator=torch.Generator().manual_seed(1))
    logprob_BTV = model(ids_BT, use_cache=False).logits.float().log_softmax(dim=-1)
    forward = Forward(model, pad=0)
    assert forward.head_is_linear
    prefix = forward.start(ids_BT[:, :1].tolist())[0]
    read_BTD = forward.extend(prefix, ids_BT[:, 1:], logits=False).hidden_BTD
    k_C, token_C = torch.tensor([0, 0, 3, 9, 9, 4]), torch.tensor([0, 26, 7, 8, 9, 21])
    expected_C = logprob_BTV[:, 1:].flatten(0, 1)[k_C, token_C]
    for tile in (1, 10 * 4, 2**21):  # of one token, of four, of all
        monkeypatch.setitem(TILES, "cpu", tile)
        found_C = forward.logprobs(read_BTD.flatten(0, 1), k_C, token_C)
        torch.testing.assert_close(found_C, expected_C, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", ["gemma2", "cohere"])
def test_a_head_whose_logits_are_capped_or_scaled_is_not_taken_for_a_linear_one(tmp_path, family):
    assert not Forward(model_of(tmp_path, family), pad=0).head_is_linear
