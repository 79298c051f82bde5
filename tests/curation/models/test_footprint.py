"""Memory by arithmetic: parameters against transformers' own count, and peaks against processes that were measured."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from measured_peak import ANSWER, KINDS, SHAPE, VOCABULARY, WIDE_PROMPT

from curation.config import SftConfig
from curation.config.dpo import DpoConfig
from curation.config.grpo import GrpoConfig
from curation.config.models import LoraConfig
from curation.models.footprint import (
    CONTEXT,
    GIB,
    DecoderShape,
    Footprint,
    compute_asking_memory,
    compute_serving_memory,
    compute_training_memory,
)
from train.models import make_trainable

ROOT = Path(__file__).parents[3]
PAPER = json.loads((ROOT / "benchmarks" / "paper_shapes.json").read_text())
BAND = 0.25
"""How far a measured peak may be from the forecast."""
SMALL = {
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "qwen2": {},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"head_dim": 16},
    "olmo2": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
}


def model_of(config: transformers.PreTrainedConfig) -> Any:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def counted(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def shape_of(config: transformers.PreTrainedConfig) -> DecoderShape:
    found = DecoderShape.of(config.get_text_config().to_dict())
    assert found is not None
    return found


@pytest.mark.parametrize("family", SMALL)
def test_parameters_and_adapters_are_as_many_as_transformers_and_peft_make(family: str) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(
        family, **sizes, intermediate_size=80, vocab_size=101, pad_token_id=0, **SMALL[family]
    )
    shape = shape_of(config)
    assert shape.parameters() == counted(model_of(config))
    for lora in (LoraConfig(rank=4), LoraConfig(rank=3, targets=["q_proj", "down_proj"])):
        adapted = make_trainable(model_of(config), lora)
        found = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
        assert shape.lora_parameters(lora) == found


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_models_have_as_many_parameters_as_transformers_counts(name: str) -> None:
    sizes = dict(PAPER[name])
    config = transformers.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    assert DecoderShape.of(PAPER[name]).parameters() == counted(model_of(config))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_a_rows_cache_is_as_large_as_the_keys_and_values_that_transformers_keeps(family: str) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(
        family, **sizes, intermediate_size=80, vocab_size=101, pad_token_id=0, **SMALL[family]
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        cache = model(torch.arange(20)[None], use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    expected = shape_of(config).cache_bytes(20, "float32")
    if family == "gemma3_text":  # transformers keeps one token less than the window
        kept += 2 * shape_of(config).key_width * 4 * shape_of(config).num_windowed
    assert expected == kept


def test_an_unknown_family_and_a_quantised_checkpoint_are_not_counted() -> None:
    assert DecoderShape.of({**PAPER["Qwen/Qwen3-8B-Base"], "model_type": "qwen3_moe"}) is None
    assert DecoderShape.of({**PAPER["Qwen/Qwen3-8B-Base"], "quantization_config": {"quant_method": "awq"}}) is None


def test_full_weights_are_16_bytes_a_parameter_and_shards_divide_them() -> None:
    shape = DecoderShape.of(PAPER["Qwen/Qwen3-4B-Base"])
    common: dict[str, Any] = {"dtype": "bfloat16", "on_gpu": True, "answer_tokens": 128}
    recipe = {"lora": None, "global_batch_size": 128, "micro_batch_size": 4}
    alone = compute_training_memory(shape, SftConfig(**recipe), **common)
    assert alone.least > 16 * shape.parameters()
    shards = compute_training_memory(shape, SftConfig(**recipe, num_workers=4, sharding="fsdp"), **common)
    for part in ("weights", "gradients", "optimizer"):
        assert shards.parts[part] == alone.parts[part] / 4
    ddp = compute_training_memory(shape, SftConfig(**recipe, num_workers=4), **common)
    assert ddp.parts["optimizer"] == alone.parts["optimizer"] and ddp.parts["buckets"] == 4 * shape.parameters()


def test_a_reference_counts_where_all_weights_learn_and_an_engine_where_it_is_awake() -> None:
    shape = DecoderShape.of(PAPER["Qwen/Qwen3-0.6B-Base"])
    common: dict[str, Any] = {"dtype": "bfloat16", "on_gpu": True, "answer_tokens": 64}
    assert compute_training_memory(shape, DpoConfig(lora=None), **common).parts["reference"] == 2 * shape.parameters()
    assert "reference" not in compute_training_memory(shape, DpoConfig(), **common).parts
    assert "reference" in compute_training_memory(shape, GrpoConfig(kl=0.001), **common).parts
    assert "reference" not in compute_training_memory(shape, GrpoConfig(kl=0), **common).parts
    drawing = compute_training_memory(shape, GrpoConfig(kl=0), **common, engine=100 * GIB)
    assert drawing.parts["engine"] == 100 * GIB and "logits" not in drawing.parts


def test_ranks_divide_an_engines_weights_and_the_cache_grows_with_the_row() -> None:
    shape = DecoderShape.of(PAPER["Qwen/Qwen3-8B-Base"])

    def served(ranks: int, row_tokens: int) -> Footprint:
        sizes = {"row_tokens": row_tokens, "answer_tokens": 8, "max_running": 16}
        return compute_serving_memory(shape, dtype="bfloat16", ranks=ranks, on_gpu=True, **sizes)

    whole, half, longer = served(1, 1000), served(2, 1000), served(1, 2000)
    assert half.parts["weights"] == whole.parts["weights"] / 2 == shape.parameters()
    assert longer.parts["cache of a row"] == 2 * whole.parts["cache of a row"] == 2 * 36 * 2 * 8 * 128 * 2 * 1000
    assert whole.parts["CUDA"] == CONTEXT


@pytest.mark.slow  # other processes' pressure on memory shows in it
@pytest.mark.parametrize("kind", [*KINDS, "asked"])
def test_peaks_of_processes_are_as_forecast(kind: str) -> None:
    """The whole of the work, by the anonymous memory of a process on a CPU, in float32."""
    shape = DecoderShape.of({"model_type": "qwen3", "vocab_size": VOCABULARY, **SHAPE})
    common: dict[str, Any] = {"dtype": "float32", "on_gpu": False}
    if kind == "asked":
        sizes = {"batch_tokens": 8 * WIDE_PROMPT, "answer_tokens": WIDE_PROMPT, "head": True}
        forecast = compute_asking_memory(shape, **sizes, **common)
    else:
        forecast = compute_training_memory(shape, SftConfig(**KINDS[kind]), answer_tokens=ANSWER, **common)
    # buffers that are freed go back at once, as a GPU's do to its allocator: resident memory is what is in use
    # this folder's `curation` would be found first, which is none
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "262144", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests" / "measured_peak.py"), kind]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])["bytes"]
    print(f"{kind}: {measured / 1e6:,.0f} MB measured, {forecast.total / 1e6:,.0f} forecast")
    frozen = kind == "asked" or kind.startswith("lora")  # such weights stay in the file that is mapped
    mapped = 4 * shape.parameters() if frozen else 0
    assert abs(measured / (forecast.total - mapped) - 1) < BAND
    assert forecast.least - mapped < measured * 1.05
