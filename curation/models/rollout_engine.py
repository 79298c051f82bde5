"""Sizing of the engine that draws GRPO's answers during training: workers per engine, and its share of their GPUs."""

from collections.abc import Mapping
from typing import NamedTuple

from curation.config.grpo import GrpoConfig
from curation.models.footprint import GIB, DecoderShape, Footprint, compute_held_memory, compute_serving_memory

MAX_RUNNING = 256  # maximum number of answers that an engine runs at once, vLLM's default of ``max_num_seqs``
UNKNOWN_SHARE = 0.3  # share of a GPU's memory that an engine gets if the model's sizes are unknown
KEPT_FREE = 0.1
"""Share of a GPU's memory left free for allocator fragmentation and for memory that the estimate leaves out."""
ALLOWANCE = 1.5 * GIB  # bytes assumed for an engine's activations, CUDA graphs and communication buffers


class RolloutEngine(NamedTuple):
    """Size of an engine."""

    tensor_parallel: int  # number of workers that share the engine
    gpu_memory: float  # engine's share of the memory of each worker's GPU, in (0, 1)


def count_answers(config: GrpoConfig, tensor_parallel: int) -> int:
    """Return the number of answers that an engine draws per step of training."""
    return config.global_batch_size * config.group_size // config.num_workers * tensor_parallel


def compute_engine_memory(shape: DecoderShape, config: GrpoConfig, *, dtype: str, ranks: int) -> Footprint:
    """Return the memory of a rank of the engine, without a CUDA context, since the training process has one."""
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
    """Return the size of the engine that the recipe names, or that follows from the model's sizes.

    An engine is shared by the fewest workers with which its weights and one row's cache fit beside the memory that the
    training holds while answers are drawn, or by as many as its heads allow if none fits. Its share has room for the
    cache of all answers that run at once, or is all that the training leaves. ``shape`` is None if the model's sizes
    are unknown, and ``gpu_bytes`` if the memory of a GPU is, or if there is none.
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
