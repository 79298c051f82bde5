"""How many workers share an engine that draws GRPO's answers, and its share of their GPUs, by arithmetic of its own."""

from typing import Any

import pytest
from pydantic import ValidationError

from curation.config.grpo import GrpoConfig
from curation.models.footprint import GIB, DecoderShape
from curation.models.rollout_engine import RolloutEngine, plan_rollout_engine

SIZES: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
SHAPE = DecoderShape(**SIZES)
WEIGHTS = 2 * 8_190_735_360  # of Qwen3-8B in bfloat16
ROW = 2 * 2 * 36 * 8 * 128  # bytes of a token's keys and values
LORA = {"lora": {"rank": 16, "alpha": 32}, "kl": 0}


def division(gib: float, **changed: Any) -> RolloutEngine:
    config = GrpoConfig.model_validate({"gpus_per_worker": 1, **changed})
    return plan_rollout_engine(SHAPE, config, dtype="bfloat16", gpu_bytes=gib * GIB)


def test_small_batches_take_what_their_cache_needs() -> None:
    answers, tokens = 4 * 8, 1024 + 100
    few = {"global_batch_size": 4, "micro_batch_size": 8, "rollouts": {"max_tokens": 100}, **LORA}
    found = division(141, **few)
    needed = WEIGHTS + answers * (ROW * tokens + 151936 * 6) + 1.5 * GIB
    assert found.tensor_parallel == 1
    assert found.gpu_memory == pytest.approx(needed / (141 * GIB), abs=0.002)
    assert division(80, **few).gpu_memory == pytest.approx(needed / (80 * GIB), abs=0.002)


def test_large_batches_take_what_the_training_leaves() -> None:
    found = division(80, num_workers=4, sharding="fsdp", kl=0, global_batch_size=512)
    gathered = 2 * (2 * 151936 * 4096 + 2 * SHAPE.layer_parameters)
    held = 12 * WEIGHTS / 2 / 4 + gathered + 0.6 * GIB
    assert found == (1, pytest.approx(0.9 - held / (80 * GIB), abs=0.002))


def test_workers_share_an_engine_that_does_not_fit_beside_the_training_of_one() -> None:
    """Beside shards of an adapter's frozen base (3.8 GiB), what FSDP gathers (3.0) and CUDA: weights of 15.3 GiB."""
    recipe = {"sharding": "fsdp", "rollouts": {"max_tokens": 512}, **LORA}
    assert division(40, num_workers=4, **recipe).tensor_parallel == 1
    assert division(24, num_workers=4, **recipe).tensor_parallel == 2
    assert division(16, num_workers=4, **recipe).tensor_parallel == 4
    assert division(8, num_workers=12, **recipe).tensor_parallel == 4  # 3, 6 and 12 do not divide the heads


def test_what_is_named_is_taken() -> None:
    rollouts = {"gpu_memory": 0.42, "tensor_parallel": 2}
    assert division(80, num_workers=4, rollouts=rollouts) == (2, 0.42)
    unknown = GrpoConfig(gpus_per_worker=1)
    assert plan_rollout_engine(None, unknown, dtype="bfloat16", gpu_bytes=80 * GIB) == (1, 0.3)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_workers": 4, "rollouts": {"tensor_parallel": 3}}, r"3 .*does not divide num_workers: 4"),
        ({"rollouts": {"tensor_parallel": 2}}, r"2 .*does not divide num_workers: 1"),
        ({"num_workers": 2, "rollouts": {"tensor_parallel": 2, "backend": "transformers"}}, "applies to vLLM only"),
    ],
)
def test_engines_divide_the_workers(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GrpoConfig.model_validate(changed)
