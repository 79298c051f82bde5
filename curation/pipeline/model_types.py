"""Which type each model runs in where a key says ``auto``, in words, before anything is done."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from curation import models
from curation.config import ModelConfig, RunConfig
from curation.config.models import LmStudentConfig
from curation.models.dtypes import AUTO, FLAGS, HALF, HALF_TRAINING, bfloat16_flag, taken, takes_bfloat16_on_cpus


class _Typed(NamedTuple):
    """A key that gives models a type."""

    key: str
    dtype: str
    gpus_key: str
    gpus: float
    models: Mapping[str, ModelConfig]
    """Models by role."""
    half: Sequence[str]


def types_taken(config: RunConfig) -> Iterator[str]:
    """Yield a line for each ``auto``: what it stands for, by model, and why; and one for bfloat16 on a CPU without it.

    Of trainings those on GPUs: on CPUs they have one type.

    Raises:
        ModelError: a model is not there, or does not say its type.
    """
    for typed in _typed(config):
        if typed.dtype == "bfloat16" and not typed.gpus and typed.models and bfloat16_flag() is None:
            yield (
                f"{typed.key}: bfloat16 takes several times as long as float32 on this processor, which has no "
                f"instructions for it ({', '.join(FLAGS)}); set auto, or {typed.gpus_key}"
            )
        if typed.dtype != AUTO or not typed.models:
            continue
        is_fast = typed.half == HALF and not typed.gpus and takes_bfloat16_on_cpus()
        roles: dict[str, list[str]] = {}
        for role, model in typed.models.items():
            ref = None if model.path is None or not (typed.gpus or is_fast) else models.named(model)
            half = HALF_TRAINING if is_fast else typed.half
            dtype = taken(typed.dtype, ref, on_gpu=typed.gpus > 0 or is_fast, half=half)
            roles.setdefault(dtype, []).append(role)
        words = "; ".join(f"{dtype} ({', '.join(of)})" for dtype, of in roles.items())
        why = "by config.json of each" if typed.gpus else "since no GPU is asked for"
        if is_fast and "bfloat16" in roles:
            why = f"by config.json of each and the processor's {bfloat16_flag() or 'on which the run began'}"
        yield f"{typed.key}: auto is {words}, {why} ({typed.gpus_key}: {typed.gpus:g})"


def _typed(config: RunConfig) -> Iterator[_Typed]:
    teacher, student, gradients = config.teacher, config.student, config.analyze.gradients
    bases = {role: model for role, model in config.models.items() if role.startswith("student ")}
    own = {
        f"student {name}": (base, recipe)
        for name, (base, recipe) in config.students.items()
        if isinstance(recipe, LmStudentConfig) and recipe is not student and recipe.gpus_per_worker
    }
    yield _Typed("teacher.dtype", teacher.dtype, "actors.num_gpus", teacher.actors.num_gpus, config.models, HALF)
    if (adapt := teacher.adapt) is not None and adapt.gpus_per_worker:
        adapted = {role: model for role, model in config.models.items() if role in ("teacher", "second teacher")}
        key, gpus = "teacher.adapt.compute_dtype", adapt.gpus_per_worker
        yield _Typed(key, adapt.compute_dtype, "gpus_per_worker", gpus, adapted, HALF_TRAINING)
    if isinstance(student, LmStudentConfig) and student.gpus_per_worker:
        key, gpus = "student.compute_dtype", student.gpus_per_worker
        alike = {role: model for role, model in bases.items() if role not in own}
        yield _Typed(key, student.compute_dtype, "gpus_per_worker", gpus, alike, HALF_TRAINING)
    for role, (base, recipe) in own.items():
        key, gpus = f"{role} by its own recipe, compute_dtype", recipe.gpus_per_worker
        yield _Typed(key, recipe.compute_dtype, "gpus_per_worker", gpus, {role: base}, HALF_TRAINING)
    if gradients is not None and gradients.gpus:
        yield _Typed("analyze.gradients.dtype", gradients.dtype, "gpus", gradients.gpus, bases, HALF_TRAINING)
