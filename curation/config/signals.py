"""What is asked beyond the labelling pass: the arms' signals and the judge."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from curation.config.base import PositiveInt, Section
from curation.config.models import ModelConfig
from curation.config.teacher import DecodingConfig


class SelfConsistencyConfig(Section):
    """The vote of further samples of the teacher."""

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
    """Ask a verifier through its chat template; models with a head use theirs where they have one."""

    @property
    def runs_code(self) -> bool:
        """The model's own code may be run; a verifier is a causal model like any other, whose code never is."""
        return self.trust_remote_code and self.kind != "verifier"

    @model_validator(mode="after")
    def _trusted(self) -> Self:
        if self.kind == "custom" and not self.trust_remote_code:
            raise ValueError("kind custom runs the model's own code: read it, then set trust_remote_code: true")
        return self


class SignalsConfig(Section):
    """What the passes beyond labelling need; each is made only where an arm asks for it."""

    second_teacher: ModelConfig | None = None
    """The ensemble arm's other, independent teacher."""
    self_consistency: SelfConsistencyConfig = SelfConsistencyConfig()
    reward: RewardConfig | None = None


class JudgeConfig(Section):
    """A model that grades the labels which the domain's own rule calls wrong (paper: Omni-Judge, on Omni-MATH only)."""

    model: ModelConfig
    splits: tuple[str, ...] = ("pool",)
    """Where it is asked; the others are graded by the domain's rule alone."""
    decoding: DecodingConfig = DecodingConfig(max_tokens=256, stop=())
    chat_template: bool = False
    """Ask through the judge's chat template."""
