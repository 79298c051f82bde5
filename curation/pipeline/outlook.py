"""Forecasts of a run from its configuration and models alone: students' steps, types, memory.

The least memory that actors and training workers need is compared with the memory that they have. Weights, gradients
and the optimizer's state are counted, by the headers of the files of a local checkpoint; activations, caches and the
weights of adapters come on top. What exceeds the memory is refused before anything is labelled. Models that the run
makes from scratch, quantised ones, and models that are not in a folder of this machine are left out.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from curation import memory, models
from curation.cluster import capacity
from curation.config import LmStudentConfig, ModelConfig, RunConfig, StudentConfig
from curation.config.base import count_share
from curation.config.models import GrpoConfig
from curation.errors import ConfigError
from curation.heavy import torch
from curation.models.dtypes import (
    AUTO,
    HALF,
    HALF_TRAINING,
    read_own_dtype,
    resolve_dtype,
)
from curation.models.own_code import read_model_file
from curation.storage.paths import to_place
from curation.storage.weights import count_parameters

FEW = 50
"""Minimum number of optimizer steps; fewer hardly move a student from its base (200 rows in batches of 128 are two)."""


def iter_few_steps(config: RunConfig, num_pool: int) -> Iterator[str]:
    """Yield a warning for each recipe of a run with few steps; none if only the labels decide the budget.

    ``num_pool``: rows of the pool of one generation.
    """
    budget = config.selection.budget
    num_rows = budget.n if budget.share is None else count_share(budget.share, num_pool)
    recipes: dict[str, StudentConfig] = {"student": config.student} if config.generations else {}
    for generation in config.generations:
        recipes |= {f"student {name}": own.recipe or config.student for name, own in generation.students.items()}
    for name, recipe in recipes.items():
        if num_rows is None or not isinstance(recipe, LmStudentConfig):
            continue
        steps = recipe.num_steps(num_rows)
        if steps is not None and steps < FEW:
            yield (
                f"{name}: {num_rows:,} rows, global_batch_size {recipe.global_batch_size:,}: {steps:,} optimizer "
                "steps, which hardly move it from its base; lower global_batch_size, give it more epochs, or select "
                "more rows"
            )


def iter_type_lines(config: RunConfig) -> Iterator[str]:
    """Yield a line on the type in which each model answers, if ``teacher.dtype`` is ``auto``."""
    if not config.models or config.teacher.dtype != AUTO:
        return
    roles: dict[str, list[str]] = {}
    for role, model in config.models.items():
        ref = None if model.path is None or not config.teacher.actors.num_gpus else models.pin_model(model)
        roles.setdefault(resolve_dtype(config.teacher, ref).dtype, []).append(role)
    words = "; ".join(f"{dtype} ({', '.join(of)})" for dtype, of in roles.items())
    yield f"teacher.dtype: auto is {words} (actors.num_gpus: {config.teacher.actors.num_gpus:g})"


GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TRAINED = 16
"""Bytes of a trained parameter: its float32 weight, its gradient and two states of AdamW."""
SMALLER = {
    "actor": "set teacher.dtype: bfloat16 where it is float32, take a smaller model or more memory, or raise "
    "teacher.actors.num_gpus with vllm.engine.tensor_parallel_size",
    "worker": "train an adapter (lora), set sharding: fsdp with more workers (not for dpo), or take more memory",
}
"""Mends for a kind of process that does not fit."""


class Checkpoint(NamedTuple):
    """The size of a model."""

    parameters: float
    dtype: str
    """The type in ``config.json``, to which ``dtype: auto`` resolves; the files may have another."""


class Process(NamedTuple):
    """A kind of actor or worker, and the memory that it needs."""

    who: str
    model: str
    needs: float
    """Minimum number of bytes of each of its GPUs or, on a CPU, of the machine's memory."""
    gpus: float
    """Number of its GPUs, or the share of one that it has."""
    mend: str


def read_checkpoint(model: ModelConfig) -> Checkpoint | None:
    """Return the size of a model's weights, or None if it is not counted."""
    ref = models.pin_model(model)
    folder, dtype = to_place(ref.base), read_own_dtype(ref) or "float32"
    if dtype not in BYTES or (read_model_file(ref, "config.json") or {}).get("quantization_config"):
        return None
    num = count_parameters(folder) if isinstance(folder, Path) else None
    return None if num is None else Checkpoint(num, dtype)


def iter_memory_lines(
    config: RunConfig, read: Callable[[ModelConfig], Checkpoint | None] = read_checkpoint
) -> Iterator[str]:
    """Yield a line for each actor and worker with its needed and available memory.

    Raises:
        ConfigError: a process cannot fit by the headers of its model; the message has all that cannot, and remedies.
    """
    here = capacity.find_address(config.ray) == capacity.LOCAL
    on_cpu: float | None = memory.read_usable_memory().total if here else None
    on_gpu: float | None = None
    if here and capacity.get_local_resources(config.ray)["GPU"] and torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        on_gpu = min(torch.cuda.get_device_properties(index).total_memory for index in devices)
    refused = []
    for process in iter_processes(config, read):
        there = on_cpu if not process.gpus else None if on_gpu is None else on_gpu * min(1.0, process.gpus)
        line = f"memory of {process.who} ({process.model}): at least {process.needs / GIB:,.1f} GiB"
        if there is not None:
            line += f" of {there / GIB:,.1f} GiB" + (" of a GPU" if process.gpus else "")
        if there is None or process.needs <= there:
            yield line
        else:
            refused.append(f"{line}, which cannot fit: {process.mend}")
    if refused:
        raise ConfigError("\n".join(refused))


def iter_processes(config: RunConfig, read: Callable[[ModelConfig], Checkpoint | None]) -> Iterator[Process]:
    """Yield each kind of process with a model whose size is known: first asking, then training processes."""
    named = {role: (str(model.path), model) for role, model in config.models.items() if model.path is not None}
    sizes = {role: (path, found) for role, (path, model) in named.items() if (found := read(model)) is not None}
    ask = config.teacher
    gpus, ranks = ask.actors.num_gpus, int(ask.vllm.engine.get("tensor_parallel_size", 1))
    for role, (path, found) in sizes.items():
        dtype = _choose_type(ask.dtype, found, HALF if gpus else ())
        needs = found.parameters * BYTES[dtype] / ranks
        yield Process(f"an actor with the {role}", path, needs, gpus, SMALLER["actor"])
    trainings: list[tuple[str, str, object]] = []
    if ask.adapt is not None:
        trainings += [(f"training of the {role}'s format", role, ask.adapt) for role in ("teacher", "second teacher")]
    trainings += [(f"training of student {name}", f"student {name}", made[1]) for name, made in config.students.items()]
    for who, role, recipe in trainings:
        if role in sizes and isinstance(recipe, LmStudentConfig):
            path, found = sizes[role]
            needs = _compute_training_bytes(recipe, found)
            yield Process(f"a worker in the {who}", path, needs, recipe.gpus_per_worker, SMALLER["worker"])


def _compute_training_bytes(recipe: LmStudentConfig, found: Checkpoint) -> float:
    """Return the least memory of one worker in bytes."""
    half = HALF_TRAINING if recipe.gpus_per_worker else ()
    frozen = found.parameters * BYTES[_choose_type(recipe.compute_dtype, found, half)]
    compares = recipe.method == "dpo" or (isinstance(recipe, GrpoConfig) and recipe.kl > 0)  # with a frozen base
    trained = TRAINED * found.parameters + (frozen if compares else 0)
    shards = recipe.num_workers if recipe.sharding == "fsdp" else 1
    return (frozen if recipe.lora is not None else trained) / shards


def _choose_type(dtype: str, found: Checkpoint, half: tuple[str, ...]) -> str:
    """Return the dtype that a key resolves to, by the rules of ``curation.models.dtypes`` for a checkpoint."""
    if dtype != AUTO:
        return dtype
    return found.dtype if found.dtype in half else "float32"
