"""Training of students by GRPO (paper, App. "Training Details", table of GRPO hyperparameters).

The paper leaves open, and we chose: group size 8, all weights rather than an adapter, rollouts at temperature 1, clip
range 0.2, the k3 estimate of KL, the mean loss over all tokens of a batch, a constant learning rate without warm-up.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from curation.config.base import NotNegative, PositiveInt, Section, Share, TrainSection
from curation.config.models import DIVISION, LmStudentConfig, LoraConfig
from curation.json_types import JsonView


class RolloutsConfig(Section):
    """Sampling of a student's own answers during training."""

    backend: Literal["auto", "transformers", "vllm"] = "auto"
    """``vllm`` shares the worker's GPU with the training; ``auto`` is vLLM with a GPU, else transformers."""
    max_tokens: PositiveInt = 4096
    """Maximum length of an answer, in tokens; longer answers are cut."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature of the rollouts."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer, besides the tokenizer's end token; they are cut from the graded text."""
    gpu_memory: Share = 0.3
    """The share of the GPU's memory that vLLM takes for its weights and cache."""
    tensor_parallel: PositiveInt = 1
    """Number of workers that share an engine, each with a part of the weights; a divisor of ``num_workers``."""


class GrpoConfig(LmStudentConfig):
    """Group relative policy optimisation on the selected prompts, rewarded by agreement with the selected labels.

    Preset ``paper``: the table of GRPO hyperparameters. Preset ``scratch``: all weights of a small model on a CPU.
    """

    RESOURCES: ClassVar[set[str]] = {*TrainSection.RESOURCES, *DIVISION}
    """Includes keys that only divide the answers of a step; draws do not depend on them (``train.rollouts``)."""

    method: str = "grpo"
    preset: Literal["paper", "scratch"] = "paper"
    """The preset that gives the values of keys left out."""
    max_length: PositiveInt = 1024
    """Maximum length of a prompt, in tokens; no arm selects a longer one."""
    rollouts: RolloutsConfig = RolloutsConfig()
    group_size: Annotated[int, Field(ge=2)] = 8
    """Number of answers drawn for a prompt; each is compared with the mean reward of its group."""
    micro_batch_size: PositiveInt = 8
    """Answers that a worker processes at a time; ``global_batch_size`` counts prompts."""
    epochs: PositiveInt = 20
    """Number of groups drawn for each prompt. Batches continue across epochs, so none is smaller."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    adam_betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["cosine", "linear", "constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    lora: LoraConfig | None = None
    kl: NotNegative = 0.001
    """Weight in the loss of the KL divergence from the base, estimated by k3 (Schulman 2020)."""
    clip: Share = 0.2
    """Clip range of the ratio of new to old probabilities; without effect if each batch gives one step."""
    entropy: NotNegative = 0.0
    """Weight of the mean entropy in the loss, which rewards entropy."""
    format_reward: NotNegative = 0.0
    """Amount added to the reward of an answer from which a label can be read, right or wrong."""
    patience: PositiveInt = 50
    """Steps in a row after which training ends if all answers of each group had equal rewards: nothing is learnt."""

    @model_validator(mode="after")
    def _engines_divide_the_workers(self) -> Self:
        ranks = self.rollouts.tensor_parallel
        if self.num_workers % ranks:
            raise ValueError(
                f"rollouts.tensor_parallel: {ranks} (workers of an engine) does not divide num_workers: "
                f"{self.num_workers}; change one of the two"
            )
        if ranks != 1 and self.rollouts.backend == "transformers":
            raise ValueError(
                f"rollouts.tensor_parallel: {ranks} applies to vLLM only, and rollouts.backend is transformers; leave "
                "one of them out"
            )
        return self

    def num_steps(self, num_rows: int) -> int:
        """Return the number of optimizer steps for ``num_rows`` prompts; batches continue across epochs."""
        return -(-num_rows * self.epochs // self.global_batch_size)

    @classmethod
    def presets(cls) -> Mapping[str, JsonView]:
        """Return ``paper`` (the defaults) and ``scratch``."""
        scratch = {
            "max_length": 256,
            "global_batch_size": 32,
            "micro_batch_size": 256,
            "learning_rate": 3e-4,
            "warmup_steps": 20,
            "kl": 0.0,
            "gradient_checkpointing": False,
            "rollouts": {"max_tokens": 32},
        }
        return {"paper": {}, "scratch": scratch}
