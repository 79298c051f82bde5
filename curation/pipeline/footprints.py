"""Estimates of the memory that actors and training workers of a run need, compared with the memory that they have.

Only what cannot fit is refused: weights, gradients, the optimizer's state and one short row that need more than the
whole share. The forecast for the longest rows is an upper bound, since no row was read; if it exceeds the share, there
is a warning. Models that the run makes from scratch are small, and are left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from curation import memory, models
from curation.cluster import capacity
from curation.config import AskConfig, ModelConfig, RunConfig
from curation.config.grpo import GrpoConfig
from curation.config.models import LmStudentConfig
from curation.errors import ConfigError
from curation.heavy import torch
from curation.models.dtypes import AUTO, HALF, HALF_TRAINING, takes_bfloat16_on_cpus
from curation.models.footprint import (
    BYTES,
    GIB,
    DecoderShape,
    Footprint,
    compute_asking_memory,
    compute_serving_memory,
    compute_training_memory,
    get_card_gib,
)
from curation.models.rollout_engine import MAX_RUNNING, compute_engine_memory, plan_rollout_engine

ShapeOf = Callable[[ModelConfig], DecoderShape | None]
VLLM_SHARE, FRACTION_SHARE = 0.92, 0.9
"""Shares of memory that vLLM takes: its default for a whole GPU, and our setting for an actor's fraction of a GPU."""


class Process(NamedTuple):
    """A kind of actor or worker, and the memory that it needs."""

    who: str
    model: str
    footprint: Footprint
    share: float
    """Share of each of its GPUs' memory that the process may take or, on a CPU, of the machine's memory."""
    on_gpu: bool
    mend: str
    """A remedy that lowers the minimum memory, as text."""
    ease: str
    """A remedy that lowers only the memory above the minimum, as text; "" if there is none."""


def read_shape(model: ModelConfig) -> DecoderShape | None:
    """Return the sizes in a model's configuration, or None for a family whose parameters are not counted.

    None also for a model with code of its own, which reading its configuration would run.
    """
    if model.allow_remote_code:
        return None
    return DecoderShape.of(models.read_configuration(models.pin_model(model)))


def iter_memory_lines(config: RunConfig, gpu: str | None = None, shape: ShapeOf = read_shape) -> Iterator[str]:
    """Yield a line for each actor and worker with its needed and available memory; warnings begin with "warning:".

    Args:
        config: the run.
        gpu: a card, by Ray's name (``curation.models.footprint``), or None for this machine's card if the run is to
            stay on it.
        shape: function that returns a model's sizes.

    Raises:
        ConfigError: a process cannot fit, or the card is unknown; the message has the sum, its parts and the remedy.
    """
    gpu_bytes = _find_gpu_bytes(config, gpu)
    ram = memory.read_usable_memory().total if capacity.find_address(config.ray) == capacity.LOCAL else None
    refused = []
    for process in iter_processes(config, gpu_bytes, shape):
        there = gpu_bytes if process.on_gpu else ram
        usable = None if there is None else there * process.share
        footprint = process.footprint
        parts = ", ".join(f"{name} {amount / GIB:,.1f}" for name, amount in footprint.parts.items())
        has = ""
        if usable is not None and process.on_gpu:
            has = f" of {usable / GIB:,.1f} GiB ({process.share:g} of one {gpu or 'GPU'})"
        elif usable is not None:
            has = f" of {usable / GIB:,.1f} GiB of memory"
        line = f"memory of {process.who} ({process.model}): {footprint.total / GIB:,.1f} GiB{has}: {parts}"
        line += f"; {footprint.notes}" if footprint.notes else ""
        if usable is not None and footprint.least > usable:
            least = footprint.least / GIB
            refused.append(f"{line}; at least {least:,.1f} GiB in any case, which cannot fit: {process.mend}")
        elif usable is not None and footprint.total > usable:
            yield f"warning: {line}; the longest rows do not fit: {process.ease}{process.mend}"
        else:
            yield line
    if refused:
        raise ConfigError("\n".join(refused))


def _find_gpu_bytes(config: RunConfig, gpu: str | None) -> float | None:
    """Return the memory of a card in bytes or, if ``gpu`` is None, of this machine's smallest card."""
    if gpu is not None:
        return get_card_gib(gpu) * GIB
    here = capacity.find_address(config.ray) == capacity.LOCAL
    if not here or not capacity.get_local_resources(config.ray)["GPU"] or not torch.cuda.is_available():
        return None
    devices = range(torch.cuda.device_count())
    return float(min(torch.cuda.get_device_properties(index).total_memory for index in devices))


def iter_processes(config: RunConfig, gpu_bytes: float | None, shape: ShapeOf) -> Iterator[Process]:
    """Yield each kind of process with a model whose sizes are known: first asking, then training processes."""
    shapes = {
        role: found
        for role, model in config.models.items()
        if model.path is not None and (found := shape(model)) is not None
    }
    row_tokens = getattr(config.student, "max_length", 1024)
    for role, found in shapes.items():
        yield _make_asking_process(config, role, found, row_tokens)
    adapt = config.teacher.adapt
    if adapt is not None:
        for role in ("teacher", "second teacher"):
            if role in shapes:
                made = partial(_make_training_process, config, adapt, shapes[role], gpu_bytes)
                yield made(f"training of the {role}'s format", str(config.models[role].path))
    for name, (base, recipe) in config.students.items():
        role = f"student {name}"
        if role not in shapes or not isinstance(recipe, LmStudentConfig):
            continue
        yield _make_training_process(config, recipe, shapes[role], gpu_bytes, f"training of {role}", str(base.path))
        if not isinstance(recipe, GrpoConfig) or not _uses_vllm(recipe):
            continue
        on_gpu = recipe.gpus_per_worker > 0  # the rollout engine takes a share of each worker's GPU
        dtype = _choose_type(recipe.compute_dtype, shapes[role], halves=on_gpu, half=HALF_TRAINING)
        plan = plan_rollout_engine(shapes[role], recipe, dtype=dtype, gpu_bytes=gpu_bytes if on_gpu else None)
        footprint = compute_engine_memory(shapes[role], recipe, dtype=dtype, ranks=plan.tensor_parallel)
        if plan.tensor_parallel > 1:
            footprint = replace(footprint, notes=f"{plan.tensor_parallel} workers share it; {footprint.notes}")
        yield Process(
            who=f"the engine that draws answers of {role}",
            model=str(base.path),
            footprint=footprint,
            share=plan.gpu_memory if on_gpu else 1.0,
            on_gpu=on_gpu,
            mend="raise student.rollouts.gpu_memory, or student.rollouts.tensor_parallel, or take a larger card",
            ease="lower student.rollouts.max_tokens, or ",
        )


def _choose_type(dtype: str, shape: DecoderShape, *, halves: bool, half: tuple[str, ...]) -> str:
    """Return the dtype that a key resolves to, by the rules of ``curation.models.dtypes`` for a checkpoint."""
    if dtype != AUTO:
        return dtype
    return shape.dtype if halves and shape.dtype in half else "float32"


def _make_asking_process(config: RunConfig, role: str, shape: DecoderShape, row_tokens: int) -> Process:
    ask: AskConfig = config.teacher
    actors, engine = ask.actors, ask.vllm.engine
    on_gpu = actors.num_gpus > 0
    halves = on_gpu or takes_bfloat16_on_cpus()
    dtype = _choose_type(ask.dtype, shape, halves=halves, half=HALF if on_gpu else HALF_TRAINING)
    answer_tokens = (config.evaluation.decoding if role.startswith("student") else ask.decoding).max_tokens
    backend = ask.backend if config.teacher.reader is None or role != "reader" else config.teacher.reader.backend
    who = f"an actor with the {role}"
    place = partial(Process, who=who, model=str(config.models[role].path), on_gpu=on_gpu)
    if backend == "vllm" and role != "reward model":
        ranks = int(engine.get("tensor_parallel_size", 1))
        running = int(engine.get("max_num_seqs", MAX_RUNNING))
        fraction = FRACTION_SHARE * actors.num_gpus if 0 < actors.num_gpus < 1 else VLLM_SHARE
        return place(
            footprint=compute_serving_memory(
                shape,
                dtype=dtype,
                row_tokens=row_tokens + answer_tokens,
                answer_tokens=answer_tokens,
                ranks=ranks,
                on_gpu=on_gpu,
                max_running=running,
            ),
            share=float(engine.get("gpu_memory_utilization", fraction)) if on_gpu else 1.0,
            mend="raise teacher.actors.num_gpus with vllm.engine.tensor_parallel_size, or take a larger card, or a "
            "smaller or quantised model",
            ease="lower vllm.engine.max_num_seqs, or ",
        )
    return place(
        footprint=compute_asking_memory(
            shape,
            dtype=dtype,
            on_gpu=on_gpu,
            batch_tokens=ask.batch_tokens,
            answer_tokens=answer_tokens,
            head=role != "reward model",
        ),
        share=min(1.0, actors.num_gpus) if on_gpu else 1.0,
        mend="set teacher.dtype: bfloat16 where it is float32, or take a larger card, or a smaller model",
        ease="lower teacher.batch_tokens, or ",
    )


def _make_training_process(
    config: RunConfig, recipe: LmStudentConfig, shape: DecoderShape, gpu_bytes: float | None, who: str, model: str
) -> Process:
    on_gpu = recipe.gpus_per_worker > 0
    dtype = _choose_type(recipe.compute_dtype, shape, halves=on_gpu, half=HALF_TRAINING)
    answer, engine = config.teacher.decoding.max_tokens, 0.0
    if isinstance(recipe, GrpoConfig):
        answer = recipe.rollouts.max_tokens
        if _uses_vllm(recipe):
            found = plan_rollout_engine(shape, recipe, dtype=dtype, gpu_bytes=gpu_bytes)
            engine = found.gpu_memory * gpu_bytes if gpu_bytes else shape.parameters() * BYTES[dtype]
    mend = ["raise num_workers"] if recipe.sharding == "fsdp" else []
    if recipe.sharding != "fsdp":
        mend += ["train an adapter (lora)"] if recipe.lora is None else []
        mend += [] if recipe.method == "dpo" else ["set sharding: fsdp with more workers"]
    mend.append("take a larger card" if on_gpu else "take a machine with more memory")
    return Process(
        who=f"a worker in the {who}",
        model=model,
        footprint=compute_training_memory(
            shape, recipe, dtype=dtype, on_gpu=on_gpu, answer_tokens=answer, engine=engine
        ),
        share=min(1.0, recipe.gpus_per_worker) if on_gpu else 1.0,
        on_gpu=on_gpu,
        mend=", or ".join(mend),
        ease="lower micro_batch_size, or " if recipe.micro_batch_size > 1 else "",
    )


def _uses_vllm(recipe: GrpoConfig) -> bool:
    return recipe.rollouts.backend == "vllm" or (recipe.rollouts.backend == "auto" and recipe.gpus_per_worker > 0)
