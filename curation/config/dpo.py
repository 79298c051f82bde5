"""Training of students by DPO on the selected pairs of answers (Rafailov et al. 2023, arXiv 2305.18290).

The paper does not use DPO. ``beta`` and the single epoch are TRL's defaults; the learning rate is ours, for an adapter.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from curation.config.base import PositiveInt, TrainSection
from curation.config.models import DIVISION, EpochsConfig
from curation.json_types import JsonView


class DpoConfig(EpochsConfig):
    """Direct preference optimisation on the selected pairs, against the base as reference.

    Preset ``lora``: an adapter on a pretrained base. Preset ``scratch``: all weights of a small model on a CPU.
    """

    RESOURCES: ClassVar[set[str]] = {*TrainSection.RESOURCES, *DIVISION}
    """Includes keys that only divide the pairs of a step; their order does not depend on them (``train.stream``)."""

    method: str = "dpo"
    preset: Literal["lora", "scratch"] = "lora"
    """The preset that gives the values of keys left out."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Strength of the tie between a student and its base: the implicit reward of an answer is ``beta`` times its
    log-probability less that under the base."""
    max_length: PositiveInt = 1024
    """Maximum length of a prompt with one of its answers, in tokens; no arm selects a longer one."""
    epochs: PositiveInt = 1
    """Number of passes over the pairs."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate of AdamW."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """beta1 and beta2 of AdamW."""
    global_batch_size: PositiveInt = 32
    """Pairs per optimizer step."""
    micro_batch_size: PositiveInt = 4
    """Pairs that a worker processes at a time."""

    @classmethod
    def presets(cls) -> Mapping[str, JsonView]:
        """Return ``lora`` (the defaults) and ``scratch``."""
        scratch = {
            "max_length": 256,
            "micro_batch_size": 32,
            "learning_rate": 3e-4,
            "lora": None,
            "gradient_checkpointing": False,
        }
        return {"lora": {}, "scratch": scratch}

    @model_validator(mode="after")
    def _reference_is_whole(self) -> Self:
        if self.sharding == "fsdp":
            raise ValueError(
                "sharding: fsdp divides the weights, and dpo needs them as a whole for its reference; set ddp, or "
                "train the adapter on fewer, larger GPUs"
            )
        return self
