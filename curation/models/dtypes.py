"""The type that a model runs in where the configuration leaves it open (``dtype: auto``).

It follows from the configuration, the checkpoint's ``config.json`` and, for models that are asked on CPUs, from the
processor on which the run began, which the run's manifest keeps: so a run has the same keys on any machine, and the
answers of one model have one type.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

from curation.config import AskConfig, LmStudentConfig
from curation.errors import ModelError
from curation.models.own_code import read_model_file
from curation.refs import ModelRef

CPUINFO = Path("/proc/cpuinfo")
FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""Instructions for products in bfloat16: of x86 processors, and of ARM's."""


@cache
def find_bfloat16_flag(cpuinfo: Path = CPUINFO) -> str | None:
    """Return the flag of this processor's instructions for bfloat16; ``None`` where it has none, or does not say.

    Without them a product in bfloat16 takes several times as long as one in float32
    (``python -m benchmarks.cpu_dtypes``).
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    words = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return next((flag for flag in FLAGS if flag in words), None)


AUTO = "auto"
HALF = ("bfloat16", "float16")
"""The types that are taken of a checkpoint on a GPU."""
HALF_TRAINING = ("bfloat16",)
"""The same where gradients are computed, which float16 has not the range for."""
_KEYS = ("dtype", "torch_dtype")

_taken_on_cpus: list[bool] = []
"""The answer of :func:`settle_cpus`, for all threads of this process."""

Ask = TypeVar("Ask", bound=AskConfig)
Recipe = TypeVar("Recipe", bound=LmStudentConfig)


def choose_dtype(dtype: str, model: ModelRef | None, *, on_gpu: bool, half: Sequence[str] = HALF) -> str:
    """Return ``dtype``, or what ``auto`` stands for: the checkpoint's own type if it is among ``half``, else float32.

    On CPUs it is float32, but for :func:`settle_ask`.

    ``model`` is ``None`` for one that the run makes from scratch, in float32, and where there are no weights.

    Raises:
        ModelError: the checkpoint has no ``config.json`` that can be read.
    """
    if dtype != AUTO:
        return dtype
    own = read_own_dtype(model) if on_gpu and model is not None else None
    return own if own is not None and own in half else "float32"


def settle_ask(ask: Ask, model: ModelRef | None) -> Ask:
    """Return how a model is asked, with its type: ``auto`` is bfloat16 on CPUs that compute it fast, too."""
    if ask.actors.num_gpus or not takes_bfloat16_on_cpus():
        return ask.model_copy(update={"dtype": choose_dtype(ask.dtype, model, on_gpu=ask.actors.num_gpus > 0)})
    return ask.model_copy(update={"dtype": choose_dtype(ask.dtype, model, on_gpu=True, half=HALF_TRAINING)})


def settle_cpus(recorded: bool | None) -> bool:
    """Decide for this process, and return, whether ``auto`` means bfloat16 for checkpoints that run on CPUs.

    ``recorded``: the decision with which the run began; ``None``: the run begins here, and this processor decides.
    """
    _taken_on_cpus[:] = [find_bfloat16_flag() is not None if recorded is None else recorded]
    return _taken_on_cpus[0]


def takes_bfloat16_on_cpus() -> bool:
    """Return the answer of the last :func:`settle_cpus`; before one, no."""
    return any(_taken_on_cpus)


def settle_training(recipe: Recipe, base: ModelRef | None) -> Recipe:
    """Return how a model is trained from ``base``, with the type that it computes in."""
    dtype = choose_dtype(recipe.compute_dtype, base, on_gpu=recipe.gpus_per_worker > 0, half=HALF_TRAINING)
    return recipe.model_copy(update={"compute_dtype": dtype})


@lru_cache(maxsize=64)
def read_own_dtype(model: ModelRef) -> str | None:
    """Return the type of a checkpoint's weights by its ``config.json`` (the base's of an adapter); None: it has none.

    Raises:
        ModelError: there is no such file that can be read.
    """
    config = read_model_file(model, "config.json")
    if config is None:
        raise ModelError(
            f"model {model.base!r}: config.json cannot be read, which says what dtype: auto is; name a type, e.g. "
            "teacher.dtype: bfloat16"
        )
    text = config.get("text_config")
    parts = [config, text if isinstance(text, dict) else {}]
    found = next((part[key] for part in parts for key in _KEYS if isinstance(part.get(key), str)), None)
    return None if found is None else found.removeprefix("torch.")
