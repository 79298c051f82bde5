"""The engine that draws GRPO's answers beside a training: how many workers share one, and its part of their GPUs."""

from collections.abc import Mapping
from typing import NamedTuple

from curation.config.grpo import GrpoConfig
from curation.models.footprint import GIB, DecoderShape, Footprint, compute_held_memory, compute_serving_memory

MAX_RUNNING = 256
"""Rows that vLLM runs at once unless it is told (``max_num_seqs``), and answers that our engine does."""
UNKNOWN_SHARE = 0.3
"""The share of the GPU where the model's sizes are not known."""
KEPT_FREE = 0.1
"""The share of a GPU that stays free for gaps of the allocator and for memory that the estimate leaves out."""
ALLOWANCE = 1.5 * GIB
"""Bytes of an engine's activations, CUDA graphs and communication buffers; an assumption."""


class RolloutEngine(NamedTuple):
    """An engine's division."""

    tensor_parallel: int
    """Workers that share it."""
    gpu_memory: float
    """The share of the memory of each one's GPU, in (0, 1)."""


def count_answers(config: GrpoConfig, tensor_parallel: int) -> int:
    """Return how many answers an engine draws at a time."""
    return config.global_batch_size * config.group_size // config.num_workers * tensor_parallel


def compute_engine_memory(shape: DecoderShape, config: GrpoConfig, *, dtype: str, ranks: int) -> Footprint:
    """Return the memory of a rank of the engine; its CUDA context is the training's."""
    tokens = config.rollouts.max_tokens
    return compute_serving_memory(
        shape,
        dtype=dtype,
        ranks=ranks,
        on_gpu=False,
        row_tokens=config.max_length + tokens,
        answer_tokens=tokens,
        max_running=min(count_answers(config, ranks), MAX_RUNNING),
    )


def plan_rollout_engine(
    shape: DecoderShape | None, config: GrpoConfig, *, dtype: str, gpu_bytes: float | None
) -> RolloutEngine:
    """Return the division that the recipe names, or that follows from the sizes.

    An engine is shared by the fewest workers with which its weights and one row's cache fit beside what the training
    holds while answers are drawn; by all that its heads allow if none fits. It takes memory for the cache of all
    answers that run at once, or what the training leaves.

    Args:
        shape: the model's sizes; ``None`` if they are not known.
        config: the recipe.
        dtype: the type of the engine's weights and cache.
        gpu_bytes: the memory of a GPU; ``None`` where it is not known, or there is none.
    """
    named = config.rollouts
    if shape is None or not gpu_bytes:
        return RolloutEngine(named.tensor_parallel or 1, named.gpu_memory or UNKNOWN_SHARE)
    held: Mapping[str, float] = compute_held_memory(shape, config, dtype=dtype, on_gpu=True)
    # Answers are drawn between steps: without gradients, and without autocast's copies.
    stays = sum(bytes_ for use, bytes_ in held.items() if use not in ("gradients", "cast weights"))
    left = (min(1.0, config.gpus_per_worker) - KEPT_FREE) * gpu_bytes - stays
    room = left if named.gpu_memory is None else named.gpu_memory * gpu_bytes
    ranks = named.tensor_parallel or _find_fewest_ranks(shape, config, dtype, room)
    if named.gpu_memory is not None:
        return RolloutEngine(ranks, named.gpu_memory)
    footprint = compute_engine_memory(shape, config, dtype=dtype, ranks=ranks)
    rows = min(count_answers(config, ranks), MAX_RUNNING)
    full = footprint.total + (rows - 1) * footprint.parts["cache of a row"] + ALLOWANCE
    share = round(min(full, left) / gpu_bytes, 3)
    return RolloutEngine(ranks, min(max(share, 0.01), 0.95))


def _find_fewest_ranks(shape: DecoderShape, config: GrpoConfig, dtype: str, room: float) -> int:
    heads = (shape.num_attention_heads, shape.num_key_value_heads)
    workers = range(1, config.num_workers + 1)
    possible = [n for n in workers if not config.num_workers % n and not any(number % n for number in heads)]
    for ranks in possible:
        if compute_engine_memory(shape, config, dtype=dtype, ranks=ranks).total + ALLOWANCE <= room:
            return ranks
    return possible[-1]
