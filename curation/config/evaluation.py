"""Settings of model calls beyond the labelling pass: tests, the signals of arms, and the judge."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from curation.arms import Signal
from curation.config.base import PositiveInt, PresetSection, Section, Share
from curation.config.models import ModelConfig
from curation.config.teacher import DecodingConfig
from curation.json_types import Json, JsonView

MAIN = "main"
"""The name of ``evaluation.decoding`` among the decodings."""
ENDS = ("max_tokens", "stop", "normalise_options", "constrained")
"""Keys of a decoding in ``also`` that default to those of ``evaluation.decoding``."""


class EvaluationConfig(PresetSection):
    """Settings of tests. Unset keys take the domain's defaults (docs/method.md), else greedy decoding."""

    _NUCLEUS: ClassVar = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
    PRESETS: ClassVar[Mapping[str, JsonView]] = {
        "strategy_games": {"also": {"nucleus": _NUCLEUS, "high_temperature": {"temperature": 1.0}}}
    }

    preset: Literal["strategy_games"] | None = None
    """``strategy_games`` adds the paper's two sampled decodings to ``also``, beside the greedy one (App. "Strategy
    Games" under evaluation)."""
    decoding: DecodingConfig = DecodingConfig()
    """The main decoding. Comparisons, recovery and verdicts use its tests alone."""
    also: dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], DecodingConfig] = Field(default={})
    """Further decodings by name, with which every model is also tested. ``max_tokens``, ``stop``, ``normalise_options``
    and ``constrained`` default to those of ``decoding``; the other keys do not."""
    num_runs: PositiveInt = 1
    """Number of test runs with different seeds, whose accuracies are averaged (paper, math: 5). More than one needs a
    temperature above 0. A greedy decoding in ``also`` runs once."""
    chat_template: bool = False
    """Whether prompts to base, teacher and students are wrapped as one user turn of the tokenizer's chat template."""
    margin: Share = 0.02
    """Largest shortfall in accuracy from ground truth at which a student is still called near-lossless."""

    @property
    def decodings(self) -> dict[str, DecodingConfig]:
        """All decodings by name, the main one first."""
        return {MAIN: self.decoding, **self.also}

    def runs(self, decoding: DecodingConfig) -> int:
        """Return the number of test runs of a decoding: ``num_runs`` if it samples, else 1."""
        return self.num_runs if decoding.temperature else 1

    @field_validator("also", mode="before")
    @classmethod
    def _end_alike(cls, value: object, info: ValidationInfo) -> object:
        main = info.data.get("decoding")
        if not isinstance(value, Mapping) or main is None:
            return value
        ends = {key: getattr(main, key) for key in ENDS}
        return {name: {**ends, **given} if isinstance(given, Mapping) else given for name, given in value.items()}

    def _iter_problems(self) -> Iterator[str]:
        if self.num_runs > 1 and self.decoding.temperature == 0:
            yield f"num_runs: {self.num_runs} greedy runs are all the same; set decoding.temperature"
        if MAIN in self.also:
            yield f"also.{MAIN}: is the name of evaluation.decoding in reports; give it another one"
        seen: dict[str, str] = {}
        for name, decoding in self.decodings.items():
            other = seen.setdefault(decoding.model_dump_json(), name)
            if other != name:
                of = "evaluation.decoding" if other == MAIN else f"also.{other}"
                yield f"also.{name}: is the same decoding as {of}; drop it"


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

    def _iter_problems(self) -> Iterator[str]:
        if self.kind == "custom" and not self.model.allow_remote_code:
            yield (
                "kind custom runs the model's own code: read it, then set model.allow_remote_code: true, and "
                "model.revision to what you have read"
            )


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

    def _iter_problems(self) -> Iterator[str]:
        if taken := {"teacher", "judge", "student", "second_teacher", "reward"} & set(self.models):
            yield f"models: {', '.join(sorted(taken))} has a key of its own; take another name"


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

    def _iter_problems(self) -> Iterator[str]:
        if self.decoding.constrained:
            yield (
                f"decoding.constrained: {self.decoding.constrained}: a judge answers in words of its own; leave it out"
            )
