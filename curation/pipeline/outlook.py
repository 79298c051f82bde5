"""Forecasts of a run from only its configuration and models: students' steps, types, lengths of prompts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from curation import models
from curation.config import LmStudentConfig, ModelConfig, RunConfig, StudentConfig
from curation.config.base import count_share
from curation.config.models import EpochsConfig
from curation.domains import Example, attempt, get_domain
from curation.domains.given import as_asked
from curation.features import iter_found
from curation.models.dtypes import (
    AUTO,
    FLAGS,
    HALF,
    HALF_TRAINING,
    choose_dtype,
    find_bfloat16_flag,
    takes_bfloat16_on_cpus,
)
from curation.signals import label_request
from curation.teachers.prompts import tokenise

FEW = 50
"""Minimum number of optimizer steps; fewer hardly move a student from its base (200 rows in batches of 128 are two)."""


class StudentSteps(NamedTuple):
    """The training of the students of one recipe."""

    line: str
    """Description of rows, batch and steps."""
    warning: str | None
    """Warning that names a key that gives ``FEW`` steps, or None if there are enough."""


def iter_student_steps(config: RunConfig, num_pool: int) -> Iterator[StudentSteps]:
    """Yield a line for each recipe of a run; none if the budget is known only after rows are labelled.

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
        few = f"{line}, which hardly move it from its base; {_suggest_batch(recipe, num_rows)}" if steps < FEW else None
        yield StudentSteps(line, few)


def _suggest_batch(recipe: LmStudentConfig, num_rows: int) -> str:
    """Return advice: the largest batch that gives ``FEW`` steps or, if none does, more epochs or rows."""
    for power in reversed(range(recipe.global_batch_size.bit_length())):
        size = 2**power
        steps = recipe.model_copy(update={"global_batch_size": size}).num_steps(num_rows) or 0
        if steps >= FEW:
            is_divided = isinstance(recipe, EpochsConfig) and size < recipe.micro_batch_size
            return f"global_batch_size: {size}{f', micro_batch_size: {size}' if is_divided else ''} gives {steps:,}"
    return "give it more epochs, or select more rows"


class TypedModels(NamedTuple):
    """A configuration key that sets the type of models."""

    key: str
    dtype: str
    gpus_key: str
    gpus: float
    models: Mapping[str, ModelConfig]
    """Models by role."""
    half: Sequence[str]


def iter_type_lines(config: RunConfig) -> Iterator[str]:
    """Yield a line on the type of each ``auto``, by model, with the reason; and one for bfloat16 on a CPU without it.

    Only trainings on GPUs are included, since trainings on CPUs have one type.
    """
    for typed in _iter_typed_models(config):
        if typed.dtype == "bfloat16" and not typed.gpus and typed.models and find_bfloat16_flag() is None:
            yield (
                f"{typed.key}: bfloat16 takes several times as long as float32 on this processor, which has no "
                f"instructions for it ({', '.join(FLAGS)}); set auto, or {typed.gpus_key}"
            )
        if typed.dtype != AUTO or not typed.models:
            continue
        is_fast = typed.half == HALF and not typed.gpus and takes_bfloat16_on_cpus()
        roles: dict[str, list[str]] = {}
        for role, model in typed.models.items():
            ref = None if model.path is None or not (typed.gpus or is_fast) else models.pin_model(model)
            half = HALF_TRAINING if is_fast else typed.half
            dtype = choose_dtype(typed.dtype, ref, on_gpu=typed.gpus > 0 or is_fast, half=half)
            roles.setdefault(dtype, []).append(role)
        words = "; ".join(f"{dtype} ({', '.join(of)})" for dtype, of in roles.items())
        why = "by config.json of each" if typed.gpus else "since no GPU is asked for"
        if is_fast and "bfloat16" in roles:
            why = f"by config.json of each and the processor's {find_bfloat16_flag() or 'on which the run began'}"
        yield f"{typed.key}: auto is {words}, {why} ({typed.gpus_key}: {typed.gpus:g})"


def _iter_typed_models(config: RunConfig) -> Iterator[TypedModels]:
    teacher, student = config.teacher, config.student
    bases = {role: model for role, model in config.models.items() if role.startswith("student ")}
    own = {
        f"student {name}": (base, recipe)
        for name, (base, recipe) in config.students.items()
        if isinstance(recipe, LmStudentConfig) and recipe is not student and recipe.gpus_per_worker
    }
    yield TypedModels("teacher.dtype", teacher.dtype, "actors.num_gpus", teacher.actors.num_gpus, config.models, HALF)
    trained: list[tuple[str, LmStudentConfig, dict[str, ModelConfig]]] = []
    if (adapt := teacher.adapt) is not None and adapt.gpus_per_worker:
        adapted = {role: model for role, model in config.models.items() if role in ("teacher", "second teacher")}
        trained.append(("teacher.adapt.compute_dtype", adapt, adapted))
    if isinstance(student, LmStudentConfig) and student.gpus_per_worker:
        alike = {role: model for role, model in bases.items() if role not in own}
        trained.append(("student.compute_dtype", student, alike))
    for role, (base, recipe) in own.items():
        trained.append((f"{role} by its own recipe, compute_dtype", recipe, {role: base}))
    for key, recipe, named in trained:
        gpus = recipe.gpus_per_worker
        yield TypedModels(key, recipe.compute_dtype, "gpus_per_worker", gpus, named, HALF_TRAINING)
    yield from iter_found(config, "dtypes")


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
