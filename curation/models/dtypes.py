"""The choice of a model's type where the configuration leaves it open (``dtype: auto``).

The type follows from the configuration, the checkpoint's ``config.json`` and, for inference on CPUs, the processor on
which the run began. The run's manifest records that processor's support of bfloat16, so that a run has the same cache
keys on any machine, and all answers of one model have the same type.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

from curation.config import AskConfig, LmStudentConfig
from curation.errors import ModelError
from curation.models.own_code import read_model_file
from curation.refs import ModelRef

FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # flags of x86 and ARM processors with instructions for bfloat16 products
AUTO = "auto"
HALF, HALF_TRAINING = ("bfloat16", "float16"), ("bfloat16",)
"""Types of a checkpoint that ``auto`` keeps for inference on a GPU, and for training (float16 lacks the range)."""

_taken_on_cpus: list[bool] = []
"""Result of :func:`settle_cpus`, if it was called, shared by all threads of this process."""

Ask = TypeVar("Ask", bound=AskConfig)
Recipe = TypeVar("Recipe", bound=LmStudentConfig)


@cache
def find_bfloat16_flag(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the flag of this processor's bfloat16 instructions, or None if it has none or they are not known.

    Without them a product in bfloat16 takes several times as long as in float32 (``python -m benchmarks.cpu_dtypes``).
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    words = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return next((flag for flag in FLAGS if flag in words), None)


def choose_dtype(dtype: str, model: ModelRef | None, *, on_gpu: bool, half: Sequence[str] = HALF) -> str:
    """Return ``dtype`` with ``auto`` resolved: on GPUs the checkpoint's type if it is among ``half``, else float32.

    ``model`` is None for one that the run creates from scratch, in float32, and if there are no weights; ``ModelError``
    if the checkpoint has no readable ``config.json``.
    """
    if dtype != AUTO:
        return dtype
    own = read_own_dtype(model) if on_gpu and model is not None else None
    return own if own is not None and own in half else "float32"


def resolve_dtype(ask: Ask, model: ModelRef | None) -> Ask:
    """Return ``ask`` with its type resolved; ``auto`` can also be bfloat16 on CPUs (:func:`settle_cpus`)."""
    on_gpu, on_cpu = ask.actors.num_gpus > 0, not ask.actors.num_gpus and takes_bfloat16_on_cpus()
    dtype = choose_dtype(ask.dtype, model, on_gpu=on_gpu or on_cpu, half=HALF_TRAINING if on_cpu else HALF)
    return ask.model_copy(update={"dtype": dtype})


def settle_cpus(recorded: bool | None) -> bool:
    """Decide for this process, and return, whether ``auto`` means bfloat16 for bfloat16 checkpoints on CPUs.

    ``recorded`` is the decision made when the run began; if ``None``, the run begins here and this processor decides.
    """
    _taken_on_cpus[:] = [find_bfloat16_flag() is not None if recorded is None else recorded]
    return _taken_on_cpus[0]


def takes_bfloat16_on_cpus() -> bool:
    """Return the result of the last :func:`settle_cpus`, or False if it was never called."""
    return any(_taken_on_cpus)


def resolve_compute_dtype(recipe: Recipe, base: ModelRef | None) -> Recipe:
    """Return ``recipe`` with the compute type resolved for training from ``base``."""
    dtype = choose_dtype(recipe.compute_dtype, base, on_gpu=recipe.gpus_per_worker > 0, half=HALF_TRAINING)
    return recipe.model_copy(update={"compute_dtype": dtype})


@lru_cache(maxsize=64)
def read_own_dtype(model: ModelRef) -> str | None:
    """Return the type of weights in ``config.json`` (of an adapter's base), or None; ``ModelError`` if unreadable."""
    config = read_model_file(model, "config.json")
    if config is None:
        raise ModelError(
            f"model {model.base!r}: config.json cannot be read, which says what dtype: auto is; name a type, e.g. "
            "teacher.dtype: bfloat16"
        )
    text = config.get("text_config")
    parts = [config, text if isinstance(text, dict) else {}]
    found = next(
        (part[key] for part in parts for key in ("dtype", "torch_dtype") if isinstance(part.get(key), str)), None
    )
    return None if found is None else found.removeprefix("torch.")
