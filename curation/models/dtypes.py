"""The choice of a model's type where the configuration leaves it open (``dtype: auto``).

The type follows from the configuration and the checkpoint's ``config.json`` alone, so that all answers of one model
have the same type on any machine.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from curation.config import AskConfig, LmStudentConfig
from curation.errors import ModelError
from curation.models.own_code import read_model_file
from curation.refs import ModelRef

AUTO = "auto"
HALF, HALF_TRAINING = ("bfloat16", "float16"), ("bfloat16",)
"""Types of a checkpoint that ``auto`` keeps for inference on a GPU, and for training (float16 lacks the range)."""

Ask = TypeVar("Ask", bound=AskConfig)
Recipe = TypeVar("Recipe", bound=LmStudentConfig)


def choose_dtype(dtype: str, model: ModelRef | None, *, on_gpu: bool, half: Sequence[str] = HALF) -> str:
    """Return ``dtype`` with ``auto`` resolved: on GPUs the checkpoint's type if it is among ``half``, else float32.

    ``model`` is None for one that the run creates from scratch, in float32, and if there are no weights. Raise
    ``ModelError`` if the checkpoint has no readable ``config.json``.
    """
    if dtype != AUTO:
        return dtype
    own = read_own_dtype(model) if on_gpu and model is not None else None
    return own if own is not None and own in half else "float32"


def resolve_dtype(ask: Ask, model: ModelRef | None) -> Ask:
    """Return ``ask`` with its type resolved."""
    dtype = choose_dtype(ask.dtype, model, on_gpu=ask.actors.num_gpus > 0)
    return ask.model_copy(update={"dtype": dtype})


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
