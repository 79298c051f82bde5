"""The type that a model runs in where the configuration leaves it open (``dtype: auto``).

It follows from the configuration and the checkpoint's ``config.json`` alone, never from the machine: so a run has the
same keys on any machine, and the answers of one model have one type.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from curation.config import AskConfig
from curation.config.models import LmStudentConfig
from curation.errors import ModelError
from curation.models.own_code import file_of
from curation.refs import ModelRef

AUTO = "auto"
HALF = ("bfloat16", "float16")
"""The types that are taken of a checkpoint on a GPU."""
HALF_TRAINING = ("bfloat16",)
"""The same where gradients are computed, which float16 has not the range for."""
_KEYS = ("dtype", "torch_dtype")

Ask = TypeVar("Ask", bound=AskConfig)
Recipe = TypeVar("Recipe", bound=LmStudentConfig)


def taken(dtype: str, model: ModelRef | None, *, on_gpu: bool, half: Sequence[str] = HALF) -> str:
    """``dtype``, or what ``auto`` stands for: on a GPU the checkpoint's own type if it is among ``half``, else float32.

    ``model`` is ``None`` for one that the run makes from scratch, in float32, and where there are no weights.

    Raises:
        ModelError: the checkpoint has no ``config.json`` that can be read.
    """
    if dtype != AUTO:
        return dtype
    own = own_dtype(model) if on_gpu and model is not None else None
    return own if own is not None and own in half else "float32"


def settled(ask: Ask, model: ModelRef | None) -> Ask:
    """How a model is asked, with its type."""
    return ask.model_copy(update={"dtype": taken(ask.dtype, model, on_gpu=ask.actors.num_gpus > 0)})


def settled_training(recipe: Recipe, base: ModelRef | None) -> Recipe:
    """How a model is trained from ``base``, with the type that it computes in."""
    dtype = taken(recipe.compute_dtype, base, on_gpu=recipe.gpus_per_worker > 0, half=HALF_TRAINING)
    return recipe.model_copy(update={"compute_dtype": dtype})


@lru_cache(maxsize=64)
def own_dtype(model: ModelRef) -> str | None:
    """The type of a checkpoint's weights, as its ``config.json`` says (the base's, of an adapter); None: it does not.

    Raises:
        ModelError: there is no such file that can be read.
    """
    config = file_of(model, "config.json")
    if config is None:
        raise ModelError(
            f"model {model.base!r}: config.json cannot be read, which says what dtype: auto is; name a type, e.g. "
            "teacher.dtype: bfloat16"
        )
    text = config.get("text_config")
    parts = [config, text if isinstance(text, dict) else {}]
    found = next((part[key] for part in parts for key in _KEYS if isinstance(part.get(key), str)), None)
    return None if found is None else found.removeprefix("torch.")
