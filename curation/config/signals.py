"""Model calls beyond the labelling pass: the arms' signals and the judge."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from curation.arms import Signal
from curation.config.base import PositiveInt, Section
from curation.config.models import ModelConfig
from curation.config.teacher import DecodingConfig
from curation.json_types import Json


class SelfConsistencyConfig(Section):
    """A vote over further samples of the teacher."""

    num_samples: PositiveInt = 8
    """Number of further answers of the teacher to each row."""
    temperature: Annotated[float, Field(gt=0)] = 0.7
    """Sampling temperature of these answers."""


class RewardConfig(Section):
    """The model that the reward arm ranks by."""

    model: ModelConfig
    kind: Literal["classifier", "custom", "verifier"] = "classifier"
    """A sequence-classification head (Skywork-Reward), a head of the model's own code (ArmoRM, Qwen2.5-Math-RM), or a
    causal model that judges in words (CompassVerifier)."""
    chat_template: bool = False
    """Whether a verifier is asked through its chat template; models with a head use theirs if they have one."""

    @model_validator(mode="after")
    def _allowed(self) -> Self:
        if self.kind == "custom" and not self.model.allow_remote_code:
            raise ValueError(
                "kind custom runs the model's own code: read it, then set model.allow_remote_code: true, and "
                "model.revision to what you have read"
            )
        return self


class SignalsConfig(Section):
    """Settings of the signals. A signal is computed only if an arm needs it."""

    second_teacher: ModelConfig | None = None
    """The second, independent teacher of the ensemble arm."""
    self_consistency: SelfConsistencyConfig = SelfConsistencyConfig()
    reward: RewardConfig | None = None
    models: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")], ModelConfig] = Field(default={})
    """Further models that your own signals ask, by the name in ``asks`` (docs/extending.md)."""
    options: dict[str, Json] = Field(default={})
    """Settings of your own signals, by column."""

    @property
    def roles(self) -> dict[str, ModelConfig]:
        """The models that signals ask beside the teacher, by the name in ``curation.arms.Signal.asks``."""
        reward = None if self.reward is None else self.reward.model
        named = {**self.models, "second_teacher": self.second_teacher, "reward": reward}
        return {name: model for name, model in named.items() if model is not None}

    def options_of(self, signal: Signal) -> Json:
        """Return the arguments of a signal's class, except demonstrations."""
        if signal.section is not None:
            section: Section = getattr(self, signal.section)
            return section.model_dump()
        return self.options.get(signal.column, {})

    @model_validator(mode="after")
    def _own_names(self) -> Self:
        if taken := {"teacher", "judge", "student", "second_teacher", "reward"} & set(self.models):
            raise ValueError(f"models: {', '.join(sorted(taken))} has a key of its own; take another name")
        return self


class JudgeConfig(Section):
    """A model that grades the labels which the domain's own rule calls wrong (paper: Omni-Judge, on Omni-MATH only).

    In the domain ``text`` with ``check: judge``, the judge grades all labels of all splits (docs/data-forms.md).
    """

    model: ModelConfig
    splits: tuple[str, ...] = ("pool",)
    """The splits that the judge grades; the domain's rule alone grades the others."""
    decoding: DecodingConfig = DecodingConfig(max_tokens=256, stop=())
    chat_template: bool = False
    """Whether the judge is asked through its chat template."""

    @model_validator(mode="after")
    def _in_words(self) -> Self:
        if self.decoding.constrained:
            raise ValueError(
                f"decoding.constrained: {self.decoding.constrained}: a judge answers in words of its own; leave it out"
            )
        return self
