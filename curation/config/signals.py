"""Model calls beyond the labelling pass: the arms' signals and the judge."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from curation.config.base import PositiveInt, Section
from curation.config.models import ModelConfig
from curation.config.teacher import DecodingConfig


class SelfConsistencyConfig(Section):
    """A vote over further samples of the teacher."""

    num_samples: PositiveInt = 8
    temperature: Annotated[float, Field(gt=0)] = 0.7


class RewardConfig(Section):
    """The model that the reward arm ranks by."""

    model: ModelConfig
    kind: Literal["classifier", "custom", "verifier"] = "classifier"
    """A sequence-classification head (Skywork-Reward), a head of the model's own code (ArmoRM, Qwen2.5-Math-RM), or a
    causal model that judges in words (CompassVerifier)."""
    trust_remote_code: bool = False
    """Run the model's own code; ``custom`` needs it."""
    chat_template: bool = False
    """Ask a verifier through its chat template; models with a head use theirs if they have one."""

    @property
    def runs_code(self) -> bool:
        """Whether the model's own code may run. A verifier is an ordinary causal model; its code never runs."""
        return self.trust_remote_code and self.kind != "verifier"

    @model_validator(mode="after")
    def _trusted(self) -> Self:
        if self.kind == "custom" and not self.trust_remote_code:
            raise ValueError("kind custom runs the model's own code: read it, then set trust_remote_code: true")
        return self


class SignalsConfig(Section):
    """Settings of the signals. A signal is computed only if an arm needs it."""

    second_teacher: ModelConfig | None = None
    """The second, independent teacher of the ensemble arm."""
    self_consistency: SelfConsistencyConfig = SelfConsistencyConfig()
    reward: RewardConfig | None = None


class JudgeConfig(Section):
    """A model that grades the labels which the domain's own rule calls wrong (paper: Omni-Judge, on Omni-MATH only)."""

    model: ModelConfig
    splits: tuple[str, ...] = ("pool",)
    """The splits that the judge grades; the domain's rule alone grades the others."""
    decoding: DecodingConfig = DecodingConfig(max_tokens=256, stop=())
    chat_template: bool = False
    """Ask through the judge's chat template."""
