"""Preference training: its steps against TRL's on the same batch, its batches, and its reference."""

import math
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from tiny_shape import TINY
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

from curation.config import LoraConfig
from curation.config.models import DpoConfig
from curation.domains.pair import format_continuation
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from train.dpo import DpoTrainer, compute_preference_losses, compute_sequence_logprobs, make_pair_batch
from train.models import make_trainable, read_saved
from train.sft import IGNORED
from train.stream import TokenRows

pytestmark = pytest.mark.long

SHAPE = TINY
NUM = 8
BETA, RATE = 0.3, 1e-2
LORA = LoraConfig(rank=4, alpha=8)


def config(**keys: Any) -> DpoConfig:
    given = {"preset": "scratch", "beta": BETA, "learning_rate": RATE, "schedule": "constant", "warmup_ratio": 0.0}
    return DpoConfig.model_validate({**given, "global_batch_size": NUM, "micro_batch_size": NUM, "epochs": 3, **keys})


@pytest.fixture
def base(tmp_path: Path) -> ModelRef:
    return create(tmp_path / "base", family="qwen3", shape=SHAPE, words=tuple("abcdefgh "), pattern="[a-h ]", seed=0)


def pairs(num: int = NUM) -> list[dict[str, str]]:
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(rng.choice(list("abcdefgh"), size=rng.integers(1, 6)))

    return [{"prompt": word(), "chosen": word(), "rejected": word()} for _ in range(num)]


def table(path: Path, rows: list[dict[str, str]]) -> TableRef:
    columns = {name: [row[name] for row in rows] for name in ("prompt", "chosen", "rejected")}
    data = pa.table({"row_id": pa.array(range(len(rows)), pa.int64()), **columns})
    return TableRef(uri=str(path), version=lance.write_dataset(data, path, mode="overwrite").version)


class Recording(DPOTrainer):
    """TRL's trainer, which keeps the loss of each step."""

    losses: list[float]

    def compute_loss(self, *args: Any, **named: Any) -> Any:
        found = super().compute_loss(*args, **named)
        self.losses.append(found.item())
        return found


def by_trl(base: ModelRef, rows: list[dict[str, str]], recipe: DpoConfig, folder: Path) -> tuple[list[float], Any]:
    """Losses and the trained model after each step on all rows at once, by TRL."""
    texts = [
        {
            "prompt": row["prompt"],
            **{name: format_continuation(row["prompt"], row[name]) for name in ("chosen", "rejected")},
        }
        for row in rows
    ]
    set_seed(5)  # of the adapter's first weights
    model = make_trainable(load_model(base), recipe.lora)
    args = DPOConfig(
        output_dir=str(folder / "trl"),
        beta=BETA,
        loss_type="sigmoid",
        max_length=None,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        adam_beta1=recipe.adam_betas[0],
        adam_beta2=recipe.adam_betas[1],
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        per_device_train_batch_size=len(rows),
        num_train_epochs=recipe.epochs,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    reference = load_model(base) if recipe.lora is None else None
    trainer = Recording(
        model=model, ref_model=reference, args=args, train_dataset=Dataset.from_list(texts),
        processing_class=load_tokenizer(base),
    )  # fmt: skip
    trainer.losses = []
    trainer.train()
    return trainer.losses, trainer.model


def trained(base: ModelRef, rows: list[dict[str, str]], recipe: DpoConfig, output: Path) -> tuple[list[float], Any]:
    record = DpoTrainer.train_on(base, table(output.with_suffix(".lance"), rows), recipe, seed=5, output=output)
    return record.losses, load_model(read_saved(base, recipe.lora, output).model)


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_steps_equal_those_of_trl(base: ModelRef, tmp_path: Path, lora: LoraConfig | None, epochs: int) -> None:
    recipe = config(lora=lora, epochs=epochs)
    losses, model = by_trl(base, pairs(), recipe, tmp_path)
    ours, own = trained(base, pairs(), recipe, tmp_path / "ours")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6) and len(losses) == epochs
    assert ours == pytest.approx(losses, abs=1e-5) and (epochs == 1 or losses[-1] < losses[0] - 0.02)
    theirs = (model if lora is None else model.merge_and_unload()).state_dict()
    before = load_model(base).state_dict()
    for name, weight in own.state_dict().items():
        assert torch.allclose(weight, theirs[name], atol=1e-5), name
    assert any(not torch.allclose(weight, before[name], atol=1e-4) for name, weight in own.state_dict().items())


def test_micro_batches_and_a_last_step_of_few_pairs_weigh_every_pair_alike(base: ModelRef, tmp_path: Path) -> None:
    rows = pairs(11)  # one step of 8 pairs, and one of 3
    whole = trained(base, rows, config(epochs=1), tmp_path / "whole")[1].state_dict()
    parts = trained(base, rows, config(epochs=1, micro_batch_size=2), tmp_path / "parts")[1].state_dict()
    assert all(torch.allclose(whole[name], parts[name], atol=1e-5) for name in whole)


def test_a_pair_is_computed_as_each_answer_by_itself(base: ModelRef, tmp_path: Path) -> None:
    tokenizer, model = load_tokenizer(base), load_model(base)
    rows = pairs(3)
    source = TokenRows(table(tmp_path / "rows.lance", rows), tokenizer, config())
    batch = make_pair_batch(source.__getitems__([0, 1, 2]), tokenizer.pad_token_id)
    targets, labels = batch.pop("targets"), batch.pop("labels")
    assert labels.tolist() == [[IGNORED, 1]] * 3
    found = compute_sequence_logprobs(model(**batch).logits, targets)
    alone = []
    for name in ("chosen", "rejected"):
        for row in rows:
            prompt = tokenizer.convert_tokens_to_ids(list(row["prompt"]))
            answer = [*tokenizer.convert_tokens_to_ids(list(f" {row[name]}")), tokenizer.eos_token_id]
            logprobs = model(torch.tensor([prompt + answer])).logits[0].double().log_softmax(-1)
            alone.append(sum(logprobs[len(prompt) - 1 + place, token].item() for place, token in enumerate(answer)))
    assert found.tolist() == pytest.approx(alone, abs=1e-4)
    reference = torch.zeros(6)
    expected = [-math.log(1 / (1 + math.exp(-BETA * (alone[i] - alone[i + 3])))) for i in range(3)]
    assert compute_preference_losses(found, reference, BETA).tolist() == pytest.approx(expected, abs=1e-4)
    empty = make_pair_batch([], tokenizer.pad_token_id)
    assert empty["input_ids"].shape == (2, 1) and (empty["labels"] == IGNORED).all()


def test_pairs_whose_longer_answer_exceeds_the_limit_are_dropped(base: ModelRef, tmp_path: Path) -> None:
    rows = [*pairs(6), {"prompt": "a", "chosen": "b", "rejected": "c" * 40}]
    record = DpoTrainer.train_on(
        base, table(tmp_path / "rows.lance", rows), config(epochs=1, max_length=20), seed=0, output=tmp_path / "out"
    )
    assert record.num_rows == 6 and record.dropped == [6]


def test_a_student_learns_to_prefer(base: ModelRef, tmp_path: Path) -> None:
    rows = [{"prompt": word, "chosen": word[::-1], "rejected": word} for word in ("ab", "cd", "ef", "gh", "abc", "def")]
    losses, _ = trained(base, rows, config(epochs=30), tmp_path / "out")
    assert losses[-1] < 0.2 < 0.6 < losses[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"beta": 0}, "beta"),
        ({"sharding": "fsdp"}, "fsdp divides the weights, and dpo needs them as a whole"),
        ({"preset": "paper"}, "preset"),
        ({"group_size": 4}, "group_size"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**keys)
