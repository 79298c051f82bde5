"""Gradients of single rows by the last hidden states: closed form, finite differences, and each row for itself."""

import numpy as np
import pytest
import torch
from tiny_shape import TINY

from curation.extras.analyze.gradients import compute_row_gradients
from curation.models import create, load_model, load_tokenizer
from train.sft import collate, compute_completion_loss
from train.tokens import Pair, TrainingRow, tokenize

SHAPE = TINY
PAIRS = [Pair("abc", "d"), Pair("a", "bcdefg"), Pair("hgfedc", "ab"), Pair("b", "")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("gradients") / "base"
    ref = create(path, family="qwen3", shape=SHAPE, words=tuple("abcdefgh"), pattern="[a-h]", seed=0)
    return load_model(ref), load_tokenizer(ref)


def rows_of(tokenizer) -> list[TrainingRow]:
    rows = tokenize(tokenizer, PAIRS, None)
    return [{**row, "row_id": number} for number, row in enumerate(rows)]


def test_the_gradient_is_that_of_the_closed_form(base) -> None:
    model, tokenizer = base
    rows = rows_of(tokenizer)
    found = compute_row_gradients(model, rows, tokenizer.pad_token_id)
    output_VD = model.get_output_embeddings().weight.detach().numpy().astype(np.float64)
    for index, row in enumerate(rows):
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            hidden_TD = model(ids, output_hidden_states=True).hidden_states[-1][0].numpy().astype(np.float64)
        places = range(row["num_prompt"] - 1, len(row["input_ids"]) - 1)  # what predicts the completion and its end
        gradient = np.zeros(16)
        for place in places:
            logits = output_VD @ hidden_TD[place]
            share = np.exp(logits - logits.max())
            share /= share.sum()
            target = row["input_ids"][place + 1]
            gradient += (share - np.eye(len(share))[target]) @ output_VD
        assert len(places) == len(PAIRS[index].completion) + 1
        np.testing.assert_allclose(found[index], gradient / len(places), rtol=2e-4, atol=1e-6)


def test_it_is_the_slope_of_the_loss_that_training_takes(base) -> None:
    model, tokenizer = base
    (row,) = rows_of(tokenizer)[1:2]
    gradient_D = compute_row_gradients(model, [row], tokenizer.pad_token_id)[0]
    batch = collate([row], tokenizer.pad_token_id)
    given = {key: batch[key] for key in ("input_ids", "attention_mask", "logits_to_keep")}

    def loss(step_D: torch.Tensor) -> float:
        hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: (inputs[0] + step_D,))
        with torch.no_grad():
            value = compute_completion_loss(model(**given).logits, batch["labels"])
        hook.remove()
        return float(value)

    for axis in range(4):
        step_D = 1e-2 * torch.eye(16)[axis]
        assert (loss(step_D) - loss(-step_D)) / 2e-2 == pytest.approx(gradient_D[axis], abs=2e-4)


def test_rows_of_a_batch_do_not_touch_each_other_and_the_model_stays(base) -> None:
    model, tokenizer = base
    rows, before = rows_of(tokenizer), {name: value.clone() for name, value in model.state_dict().items()}
    together = compute_row_gradients(model, rows, tokenizer.pad_token_id)
    for index, row in enumerate(rows):
        alone = compute_row_gradients(model, [row], tokenizer.pad_token_id)
        np.testing.assert_allclose(together[index], alone[0], rtol=1e-4, atol=1e-6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    assert not model.get_output_embeddings()._forward_pre_hooks
