"""Forecasts of a run from its configuration and models alone: students' steps, types, prompts' lengths, memory.

The least memory that actors and training workers need is compared with the memory that they have. Weights, gradients
and the optimizer's state are counted, by the headers of the checkpoint's files; activations, caches and the weights of
adapters come on top. What exceeds the memory is refused before anything is labelled. Where only an index of files
elsewhere is read, its number of bytes is taken for that of weights in the type of ``config.json``, and what exceeds the
memory is a warning. Models that the run makes from scratch, quantised ones, and models in a single file that is not on
this machine are left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from curation import memory, models
from curation.cluster import capacity
from curation.config import LmStudentConfig, ModelConfig, RunConfig, StudentConfig
from curation.config.base import count_share
from curation.config.models import GrpoConfig
from curation.domains import Example, attempt, get_domain
from curation.domains.given import as_asked
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
from curation.signals import label_request
from curation.storage.paths import to_place
from curation.storage.weights import INDEX, count_parameters
from curation.teachers.prompts import tokenise

FEW = 50
"""Minimum number of optimizer steps; fewer hardly move a student from its base (200 rows in batches of 128 are two)."""


def iter_student_steps(config: RunConfig, num_pool: int) -> Iterator[str]:
    """Yield a line for each recipe of a run, a warning if it has few steps; none if only the labels decide the budget.

    ``num_pool``: rows of the pool of one generation.
    """
    budget = config.selection.budget
    if budget.n is not None:
        about, num_rows = "", budget.n
    elif budget.share is not None:
        about, num_rows = "about ", count_share(budget.share, num_pool)
    elif budget.oracle:
        about, num_rows = "at most ", min(budget.cap, num_pool)
    else:
        return
    recipes: dict[str, StudentConfig] = {"student": config.student} if config.generations else {}
    for generation in config.generations:
        recipes |= {f"student {name}": own.recipe or config.student for name, own in generation.students.items()}
    for name, recipe in recipes.items():
        if not isinstance(recipe, LmStudentConfig) or (steps := recipe.num_steps(num_rows)) is None:
            continue
        line = (
            f"{name}: {about}{num_rows:,} rows, global_batch_size {recipe.global_batch_size:,}: {about}{steps:,} "
            f"optimizer step{'s' if steps != 1 else ''}"
        )
        mend = "lower global_batch_size, give it more epochs, or select more rows"
        yield line if steps >= FEW else f"warning: {line}, which hardly move it from its base; {mend}"


def iter_type_lines(config: RunConfig) -> Iterator[str]:
    """Yield a line on the type in which each model answers if it is ``auto``."""
    teacher, gpus = config.teacher, config.teacher.actors.num_gpus
    if not config.models or teacher.dtype != AUTO:
        return
    roles: dict[str, list[str]] = {}
    for role, model in config.models.items():
        ref = None if model.path is None or not gpus else models.pin_model(model)
        roles.setdefault(resolve_dtype(teacher, ref).dtype, []).append(role)
    words = "; ".join(f"{dtype} ({', '.join(of)})" for dtype, of in roles.items())
    why = "by config.json of each" if gpus else "since no GPU is asked for"
    yield f"teacher.dtype: auto is {words}, {why} (actors.num_gpus: {gpus:g})"


def iter_long_prompts(config: RunConfig, examples: Mapping[str, Sequence[Example]]) -> Iterator[str]:
    """Yield a warning for each split with ``examples`` that, with an answer, exceed the teacher's context."""
    model, decoding = config.models.get("teacher"), config.teacher.decoding
    if model is None or model.path is None or model.allow_remote_code:
        return  # code of a model's own is not run to look
    ref = models.pin_model(model)
    longest = models.read_configuration(ref).get("max_position_embeddings")
    if longest is None:
        return
    tokenizer = models.read_tokenizer(ref)
    for split, rows in examples.items():
        domain = as_asked(get_domain(config.domain_of(split)), decoding)
        found = (attempt(label_request, domain, place, row)[0] for place, row in enumerate(rows))
        requests = [request for request in found if request is not None]
        asked = tokenise(tokenizer, requests, chat_template=config.teacher.chat_template)
        sizes = [len(row.prompt) + row.room(decoding.max_tokens) for row in asked]
        over = [size for size in sizes if size > longest]
        if over:
            yield (
                f"splits.{split}: {100 * len(over) / len(sizes):.1f} % of {len(sizes):,} rows seen cannot be asked: "
                f"prompt and answer need up to {max(over):,} tokens, and {ref.base} takes {longest:,}; cut their texts "
                "by a template, e.g. {{ text | truncate(4000) }}, lower teacher.decoding.max_tokens, or take a model "
                "of a longer context"
            )


GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TRAINED = 16
"""Bytes of a trained parameter: its float32 weight, its gradient and two states of AdamW."""


class Checkpoint(NamedTuple):
    """The size of a model."""

    parameters: float
    dtype: str
    """The type in ``config.json``, to which ``dtype: auto`` resolves; the files may have another."""
    counted: bool = True
    """Whether the parameters were counted, not estimated from a number of bytes."""


class Process(NamedTuple):
    """A kind of actor or worker, and the memory that it needs."""

    who: str
    model: str
    needs: float
    """Minimum number of bytes of each of its GPUs or, on a CPU, of the machine's memory."""
    share: float
    """Share of that memory that the process may take."""
    on_gpu: bool
    mend: str
    counted: bool
    """Whether the need follows from counted parameters (:class:`Checkpoint`)."""


def read_checkpoint(model: ModelConfig) -> Checkpoint | None:
    """Return the size of a model's weights, or None if it is not counted."""
    ref = models.pin_model(model)
    folder, config = to_place(ref.base), read_model_file(ref, "config.json") or {}
    dtype = read_own_dtype(ref) or "float32"
    if dtype not in BYTES or config.get("quantization_config"):
        return None
    num = count_parameters(folder) if isinstance(folder, Path) else None
    if num is not None:
        return Checkpoint(num, dtype)
    size = ((read_model_file(ref, INDEX) or {}).get("metadata") or {}).get("total_size")
    return None if size is None else Checkpoint(float(size) / BYTES[dtype], dtype, counted=False)


def iter_memory_lines(
    config: RunConfig, read: Callable[[ModelConfig], Checkpoint | None] = read_checkpoint
) -> Iterator[str]:
    """Yield a line for each actor and worker with its needed and available memory; warnings begin with "warning:".

    Raises:
        ConfigError: a process cannot fit by the headers of its model; the message has all that cannot, and remedies.
    """
    here = capacity.find_address(config.ray) == capacity.LOCAL
    on_cpu: int | None = memory.read_usable_memory().total if here else None
    on_gpu: int | None = None
    if here and capacity.get_local_resources(config.ray)["GPU"] and torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        on_gpu = min(torch.cuda.get_device_properties(index).total_memory for index in devices)
    refused = []
    for process in iter_processes(config, read):
        there = on_gpu if process.on_gpu else on_cpu
        line = f"memory of {process.who} ({process.model}): at least {process.needs / GIB:,.1f} GiB"
        if there is not None:
            line += f" of {there * process.share / GIB:,.1f} GiB" + (" of a GPU" if process.on_gpu else "")
        if there is None or process.needs <= there * process.share:
            yield line
        elif process.counted:
            refused.append(f"{line}, which cannot fit: {process.mend}")
        else:
            yield f"warning: {line}, by the size that its index gives, may not fit: {process.mend}"
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
        yield Process(
            f"an actor with the {role}",
            path,
            found.parameters * BYTES[dtype] / ranks,
            min(1.0, gpus) if gpus else 1.0,
            gpus > 0,
            "set teacher.dtype: bfloat16 where it is float32, take a larger card or a smaller model, or raise "
            "teacher.actors.num_gpus with vllm.engine.tensor_parallel_size",
            found.counted,
        )
    trainings: list[tuple[str, str, object]] = []
    if ask.adapt is not None:
        trainings += [(f"training of the {role}'s format", role, ask.adapt) for role in ("teacher", "second teacher")]
    trainings += [(f"training of student {name}", f"student {name}", made[1]) for name, made in config.students.items()]
    for who, role, recipe in trainings:
        if role in sizes and isinstance(recipe, LmStudentConfig):
            yield from _iter_training_processes(recipe, who, *sizes[role])


def _iter_training_processes(recipe: LmStudentConfig, who: str, path: str, found: Checkpoint) -> Iterator[Process]:
    on_gpu, shards = recipe.gpus_per_worker > 0, recipe.num_workers if recipe.sharding == "fsdp" else 1
    frozen = found.parameters * BYTES[_choose_type(recipe.compute_dtype, found, HALF_TRAINING if on_gpu else ())]
    compares = recipe.method == "dpo" or (isinstance(recipe, GrpoConfig) and recipe.kl > 0)  # with a frozen base
    trained = TRAINED * found.parameters + (frozen if compares else 0)
    mend = [] if recipe.lora is not None else ["train an adapter (lora)"]
    if recipe.sharding == "fsdp":
        mend.append("raise num_workers")
    elif recipe.method != "dpo":  # which needs the weights as a whole
        mend.append("set sharding: fsdp with more workers")
    yield Process(
        f"a worker in the {who}",
        path,
        (frozen if recipe.lora is not None else trained) / shards,
        min(1.0, recipe.gpus_per_worker) if on_gpu else 1.0,
        on_gpu,
        ", or ".join([*mend, "take a larger card" if on_gpu else "take a machine with more memory"]),
        found.counted,
    )
    if isinstance(recipe, GrpoConfig) and on_gpu and recipe.rollouts.backend != "transformers":
        yield Process(
            f"the engine that draws answers in the {who}",
            path,
            frozen / recipe.rollouts.tensor_parallel,
            recipe.rollouts.gpu_memory,
            on_gpu,
            "raise student.rollouts.gpu_memory or student.rollouts.tensor_parallel, or take a larger card",
            found.counted,
        )


def _choose_type(dtype: str, found: Checkpoint, half: tuple[str, ...]) -> str:
    """Return the dtype that a key resolves to, by the rules of ``curation.models.dtypes`` for a checkpoint."""
    if dtype != AUTO:
        return dtype
    return found.dtype if found.dtype in half else "float32"
