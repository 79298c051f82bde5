"""Models to train and trained models: what of a base is trainable, and the result with the record of its training."""

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from curation.config import LmStudentConfig, LoraConfig
from curation.config.models import ADAPTER_MEND
from curation.errors import ConfigError
from curation.models import load_model, resolve
from curation.models.loading import make_saved_ref
from curation.refs import ModelRef
from curation.storage.paths import Place

if TYPE_CHECKING:
    import peft
    from transformers import PreTrainedModel

TRAINING = "training.json"  # file beside a trained model that holds its ``TrainingRecord``


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """The record of how a model was trained."""

    num_rows: int  # number of rows trained on
    num_dropped: int
    """The number of given rows that were dropped as longer than ``max_length``. 0 for a student that teaches,
    because :mod:`curation.stages.gold` excludes such rows before the selection."""
    num_epochs: int  # number of passes over the rows, computed from all given rows, including dropped ones
    losses: list[float]  # mean loss of each logging interval; for supervised fine-tuning, in nats per token
    seconds: float
    curves: dict[str, list[float | None]] = field(default_factory=dict)
    """Further measures by name, with ``step``: one value per logging interval, ``None`` if not measured."""
    dropped: list[int] = field(default_factory=list)  # ids of the rows that were dropped, ascending


class TrainingResult(NamedTuple):
    """A trained model and the record of its training."""

    model: ModelRef
    record: TrainingRecord


def count_warm_up_steps(requested: int, num_steps: int) -> int:
    """Return the number of warm-up steps: ``requested``, but less than a third of all steps."""
    return max(0, min(requested, (num_steps - 1) // 3))


def load_base(base: ModelRef, config: LmStudentConfig) -> "PreTrainedModel":
    """Return the base of a training on the CPU; raise ``ConfigError`` if it has an adapter.

    With a new adapter none of its weights are trained, so they have the training's compute type, which saves memory and
    autocast's conversions. Weights that are trained are float32, since an update of AdamW below 1/256 of a weight is
    lost in bfloat16 (master weights; Micikevicius et al. 2018, arXiv 1710.03740).
    """
    if base.adapter is not None:
        raise ConfigError(f"{base.base}: {ADAPTER_MEND}")
    return load_model(base, dtype="float32" if config.lora is None else config.compute_dtype)


def make_trainable(model: "PreTrainedModel", lora: LoraConfig | None) -> Any:
    """Return the model to train: unchanged, or with a new adapter of :func:`make_adapter_config`."""
    model.config.use_cache = False  # also avoids a warning of transformers under gradient checkpointing
    if lora is None:
        return model
    from peft import get_peft_model

    return get_peft_model(model, make_adapter_config(lora))


def make_adapter_config(lora: LoraConfig) -> "peft.LoraConfig":
    """Return an adapter on all linear layers but the output embedding."""
    import peft

    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def read_saved(base: ModelRef, lora: LoraConfig | None, output: Place) -> TrainingResult:
    """Return the model that :meth:`train.trainer.Guarded.finish` saved to ``output``, and its record."""
    if lora is None:
        model = resolve(str(output), code=make_saved_ref(base, output).code)
    else:
        model = replace(base, adapter=str(output))
    return TrainingResult(model=model, record=TrainingRecord(**json.loads((output / TRAINING).read_text())))
