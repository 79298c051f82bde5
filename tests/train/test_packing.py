"""Packed batches: their losses and gradients are those of padded ones; models that mix rows are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from curation.errors import ConfigError
from curation.models import create, load_model, load_tokenizer
from train.sft import check, collate, compute_completion_loss
from train.tokens import Pair, TrainingRow, tokenize

WORDS = tuple("abcdefgh")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
SHAPE |= {"intermediate_size": 32, "max_position_embeddings": 64}
PAIRS = [Pair("abcde", "fg"), Pair("a", "c"), Pair("hgfedcba", "edcab"), Pair("", "ab")]


def rows_of(tokenizer: Any) -> list[TrainingRow]:
    trusts = [0.5, 0.25, 1.0, 0.75]
    rows = tokenize(tokenizer, PAIRS, max_length=16)
    return [{**row, "row_id": 7 + n, "trust": trusts[n]} for n, row in enumerate(rows)]


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("mean_trust", [None, 0.625])
def test_losses_and_gradients_equal_those_of_padded_rows(tmp_path: Path, family: str, mean_trust: float | None) -> None:
    base = create(tmp_path / family, family=family, shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)
    tokenizer, model = load_tokenizer(base), load_model(base)
    check(model)
    rows, losses, grads = rows_of(tokenizer), [], []
    pad = tokenizer.pad_token_id
    for batch in (collate(rows[:3], pad, mean_trust), collate(rows[:3], pad, mean_trust, packing=True)):
        labels, weights = batch.pop("labels"), batch.pop("weights", None)
        assert batch.pop("row_ids") == [7, 8, 9]
        model.zero_grad()
        loss = compute_completion_loss(model(**batch, use_cache=False).logits, labels, None, weights)
        loss.backward()
        losses.append(loss.item())
        grads.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    np.testing.assert_allclose(grads[1], grads[0], atol=1e-5)


def test_a_packed_batch_has_every_label_once(tmp_path: Path) -> None:
    base = create(tmp_path / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0)
    tokenizer = load_tokenizer(base)
    batch = collate(rows_of(tokenizer), tokenizer.pad_token_id, 0.5, packing=True)
    a, b, c, d, e, f, g = tokenizer.convert_tokens_to_ids(list("abcdefg"))
    end = tokenizer.eos_token_id
    assert batch["position_ids"][0].tolist() == [*range(8), *range(3), *range(14), *range(3)]
    # of a row without a prompt, nothing predicts the first token
    assert batch["labels"][0].tolist() == [-100, f, g, end, c, end, e, d, c, a, b, end, b, end]
    ids = batch["input_ids"][0]
    assert ids[batch["logits_to_keep"][:-1] + 1].tolist() == batch["labels"][0, 1:].tolist()
    assert batch["weights"][0].tolist() == [1.0] * 3 + [0.5] * 2 + [2.0] * 6 + [1.5] * 2


def test_a_model_that_reads_across_rows_is_refused(tmp_path: Path) -> None:
    convolving = SHAPE | {"layer_types": ["conv", "full_attention"]}
    base = create(tmp_path / "lfm2", family="lfm2", shape=convolving, words=WORDS, pattern="[a-h]", seed=0)
    with pytest.raises(ConfigError, match=r"student.packing: in a model of family lfm2 .*; set packing: false"):
        check(load_model(base))
    state_space = MambaForCausalLM(MambaConfig(vocab_size=11, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="a model of family mamba takes no position_ids"):
        check(state_space)
    mixed = load_model(create(tmp_path / "q", family="qwen3", shape=SHAPE, words=WORDS, pattern="[a-h]", seed=0))
    forward = mixed.forward

    def blind(input_ids: Any, position_ids: Any = None, logits_to_keep: Any = 0, **settings: Any) -> Any:
        return forward(input_ids=input_ids, **settings)

    mixed.forward = blind
    with pytest.raises(ConfigError, match="in a model of family qwen3 packed rows read each other"):
        check(mixed)
