"""``compute_dtype: bfloat16``: what is frozen is stored in it, what is trained is float32, and both learn the same."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import torch
from peft import LoraConfig as PeftLora
from peft import get_peft_model
from safetensors.torch import load_file
from tiny_shape import TINY
from transformers import AutoModelForCausalLM, TrainingArguments

from curation.config import LmStudentConfig, SftConfig
from curation.config.models import DpoConfig, GrpoConfig
from curation.models import create, load_model, load_tokenizer
from curation.models.dtypes import resolve_compute_dtype
from curation.refs import ModelRef, TableRef
from train.dpo import make_reference
from train.grpo import _make_arguments
from train.models import load_base, make_trainable
from train.sft import collate, compute_completion_loss, fine_tune
from train.tokens import Pair, tokenize
from train.trainer import make_arguments

pytestmark = pytest.mark.long

HALF: dict[str, Any] = {"preset": "scratch", "compute_dtype": "bfloat16"}
LORA: dict[str, Any] = {"lora": {"rank": 4, "alpha": 8}}
SMALL: dict[str, Any] = {"global_batch_size": 8, "micro_batch_size": 4, "learning_rate": 1e-2, "epochs": 4}
TOLERANCE = 0.02
"""Of losses of 2 to 3 nats a token, after training: bfloat16 keeps 8 bits."""


@pytest.fixture
def base(tmp_path: Path) -> ModelRef:
    """A base whose ``config.json`` names bfloat16, as published ones do."""
    made = create(tmp_path / "base", family="qwen3", shape=TINY, words=tuple("abcdefgh"), pattern="[a-h]", seed=0)
    load_model(made, dtype="bfloat16").save_pretrained(made.base)
    return ModelRef(base=made.base)


def dtypes(model: Any, *, trained: bool) -> set[torch.dtype]:
    return {weight.dtype for weight in model.parameters() if weight.requires_grad is trained}


@pytest.mark.parametrize("kind", [SftConfig, DpoConfig, GrpoConfig])
def test_on_a_gpu_frozen_weights_are_stored_in_bfloat16_unless_a_key_says_otherwise(
    base: ModelRef, kind: type[LmStudentConfig]
) -> None:
    recipe = resolve_compute_dtype(kind.model_validate({"gpus_per_worker": 1, **LORA}), base)
    model = make_trainable(load_base(base, recipe), recipe.lora)
    assert dtypes(model, trained=False) == {torch.bfloat16} and dtypes(model, trained=True) == {torch.float32}
    assert {weight.dtype for weight in load_base(base, recipe.model_copy(update={"lora": None})).parameters()} == {
        torch.float32
    }, "master weights"
    on_cpu = resolve_compute_dtype(kind.model_validate(LORA), base)
    assert on_cpu.compute_dtype == "float32" and dtypes(load_base(base, on_cpu), trained=True) == {torch.float32}


def test_references_and_the_engines_type_are_those_of_the_computation(base: ModelRef, tmp_path: Path) -> None:
    model = load_model(base)
    told = make_arguments(DpoConfig(**HALF), seed=0, work=tmp_path)
    reference = make_reference(model, TrainingArguments(**told))
    assert {weight.dtype for weight in reference.parameters()} == {torch.bfloat16}
    for (name, own), (_, copied) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
        assert torch.equal(own, copied), name  # frequencies of positions are not rounded
    assert dtypes(model, trained=True) == {torch.float32}

    recipe = GrpoConfig(**HALF)
    made = _make_arguments(recipe, base, num_steps=1, seed=0, work=tmp_path)
    assert made.bf16 and made.model_init_kwargs is not None and made.model_init_kwargs["dtype"] == "bfloat16"
    assert dtypes(load_base(base, recipe), trained=True) == {torch.float32}
    adapter = recipe.model_copy(update={"lora": SftConfig(**LORA).lora})
    assert dtypes(load_base(base, adapter), trained=True) == {torch.bfloat16}  # TRL adds the adapter


def rows(path: Path) -> tuple[TableRef, list[Pair]]:
    pairs = [Pair(prompt, prompt[-1]) for prompt in ("abc", "bcd", "dd", "efgh", "ha", "gf", "ace", "bdf")]
    columns = {"prompt": [pair.prompt for pair in pairs], "completion": [pair.completion for pair in pairs]}
    data = pa.table({"row_id": pa.array(range(len(pairs)), pa.int64()), **columns})
    return TableRef(uri=str(path), version=lance.write_dataset(data, path, mode="overwrite").version), pairs


@pytest.mark.parametrize("lora", [LORA, {"lora": None}], ids=["adapter", "all weights"])
def test_it_learns_what_float32_does(base: ModelRef, tmp_path: Path, lora: dict[str, Any]) -> None:
    table, _ = rows(tmp_path / "rows.lance")
    losses, recipe = {}, SftConfig(**HALF, **SMALL, **lora)
    for dtype in ("bfloat16", "float32"):
        of = recipe.model_copy(update={"compute_dtype": dtype})
        losses[dtype] = torch.tensor(fine_tune(base, table, of, seed=3, output=tmp_path / dtype).losses)
    apart = (losses["bfloat16"] - losses["float32"]).abs().max()
    assert 0 < apart < TOLERANCE and losses["float32"][-1] < losses["float32"][0] - 3 * TOLERANCE
    file = "model.safetensors" if lora["lora"] is None else "adapter_model.safetensors"
    assert {weight.dtype for weight in load_file(tmp_path / "bfloat16" / file).values()} == {torch.float32}


def test_a_step_is_that_of_peft_on_a_base_in_bfloat16(base: ModelRef, tmp_path: Path) -> None:
    table, pairs = rows(tmp_path / "rows.lance")
    recipe = SftConfig(**HALF | {"schedule": "constant", "warmup_ratio": 0.0}, **SMALL | {"epochs": 1}, **LORA)
    loss = fine_tune(base, table, recipe.model_copy(update={"micro_batch_size": 8}), seed=3, output=tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(base.base, dtype=torch.bfloat16, attn_implementation="sdpa")
    theirs = get_peft_model(theirs, PeftLora(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    tokens = tokenize(load_tokenizer(base), pairs, max_length=64)
    tokens.sort(key=lambda row: len(row["input_ids"]), reverse=True)
    batch = collate([{**row, "row_id": at} for at, row in enumerate(tokens)], pad=0)
    with torch.autocast("cpu", torch.bfloat16):
        logits = theirs(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert loss.losses[0] == pytest.approx(compute_completion_loss(logits, batch["labels"]).item(), abs=1e-3)
