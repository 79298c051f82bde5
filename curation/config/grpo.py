"""How students are trained by GRPO (paper, App. "Training Details", table of GRPO hyperparameters).

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
    """How a student's own answers are drawn while it learns."""

    backend: Literal["auto", "transformers", "vllm"] = "auto"
    """``vllm`` shares the worker's GPU with the training; ``auto`` is vLLM with a GPU, else transformers."""
    max_tokens: PositiveInt = 4096
    """Tokens of the longest answer; a longer one is cut there."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature of the rollouts."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer, besides the tokenizer's end token; cut from the text that is graded."""
    gpu_memory: Share | None = None
    """The share of the GPU's memory that vLLM takes. Unset: what the answers that run at once need, as far as the
    training leaves it (``curation.models.rollout_engine``); .3 for models whose sizes are not known."""
    tensor_parallel: PositiveInt | None = None
    """Workers that share an engine, each with a part of the weights; a divisor of ``num_workers``. Unset: the fewest
    whose parts fit beside the training."""


class GrpoConfig(LmStudentConfig):
    """Group relative policy optimisation on the selected prompts, rewarded by agreement with the selected labels.

    Preset ``paper``: the table of GRPO hyperparameters. Preset ``scratch``: all weights of a small model on a CPU.
    """

    RESOURCES: ClassVar[set[str]] = {*TrainSection.RESOURCES, *DIVISION}
    """Also keys that only divide the answers of a step: draws do not depend on them (``train.rollouts``)."""

    method: str = "grpo"
    preset: Literal["paper", "scratch"] = "paper"
    """Gives the values of the keys that are left out."""
    max_length: PositiveInt = 1024
    """Tokens of the longest prompt that is trained on; no arm selects a longer one."""
    rollouts: RolloutsConfig = RolloutsConfig()
    group_size: Annotated[int, Field(ge=2)] = 8
    """Answers drawn for a prompt; each is compared with the mean reward of its group."""
    micro_batch_size: PositiveInt = 8
    """Answers that a worker computes at a time; ``global_batch_size`` counts prompts."""
    epochs: PositiveInt = 20
    """Draws of a group for each prompt. Batches run on over the end of an epoch, so none is smaller."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    adam_betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["cosine", "linear", "constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    lora: LoraConfig | None = None
    kl: NotNegative = 0.001
    """The weight in the loss of the KL divergence from the base, estimated by k3 (Schulman 2020)."""
    clip: Share = 0.2
    """The range of the ratio of new to old probabilities; without effect as long as each batch gives one step."""
    entropy: NotNegative = 0.0
    """The weight in the loss of the mean entropy, which is then rewarded."""
    format_reward: NotNegative = 0.0
    """Added to the reward of an answer from which a label can be read, right or wrong."""
    patience: PositiveInt = 50
    """Training ends when so many steps in a row gave every answer of every group the same reward: nothing is learnt."""

    @model_validator(mode="after")
    def _engines_divide_the_workers(self) -> Self:
        ranks = self.rollouts.tensor_parallel
        if ranks is not None and self.num_workers % ranks:
            raise ValueError(
                f"rollouts.tensor_parallel: {ranks} does not divide num_workers: {self.num_workers}; each engine has "
                "so many workers: change one of the two"
            )
        if ranks not in (None, 1) and self.rollouts.backend == "transformers":
            raise ValueError(
                f"rollouts.tensor_parallel: {ranks} is of vLLM's engines, and rollouts.backend is transformers; leave "
                "one of them out"
            )
        return self

    def num_steps(self, num_rows: int) -> int:
        """Return the optimizer steps for ``num_rows`` prompts; batches run on over the end of an epoch."""
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
