"""The trust function and its fit."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from curation.arms import TRUST, Fitted, fitted_of
from curation.config.base import PositiveInt, Share, TrainSection
from curation.config.states import parse


def _trust_state(name: str) -> str:
    if name != "pca":
        parse(name)
    return name


def _fitted(name: str) -> str:
    known = {kind for kind, trust in TRUST.items() if isinstance(trust, Fitted)}
    if name not in TRUST or not isinstance(TRUST[name], Fitted):
        raise ValueError(f"{name!r} is no trust function that is fitted; known: {', '.join(sorted(known))}")
    return name


Number = Literal[
    "mean_logprob",
    "min_logprob",
    "first_logprob",
    "last_logprob",
    "margin",
    "negentropy",
    "option_share",
    "option_lead",
    "num_options",
    "min_margin",
    "first_margin",
    "last_margin",
    "min_negentropy",
    "first_negentropy",
    "last_negentropy",
    "num_prompt_tokens",
    "num_output_tokens",
    "truncated",
    "token_logprobs",
]
"""``schemas.completions`` says what they mean."""


class TrustConfig(TrainSection):
    """The neural trust function and its fit (paper, section "Neural Trust Functions", table of NTF architectures).

    Our additions, and how to switch each off: fitting on parsed labels alone (``fit_on: all``), early stopping on
    validation AUC (``patience: null``), standardised inputs (``standardise: false``), calibration (``calibration:
    none``; no rows for it: ``calibration_fraction: 0``), a linear probe on a small source (``probe_below: 0``). The
    paper does not give stochastic depth, expansion, batch size or number of steps.
    """

    kind: Annotated[str, AfterValidator(_fitted)] = "neural"
    """The fitted trust function (``curation.arms.TRUST``) by which the ``neural`` arm ranks, e.g. ``deep_ensemble``."""
    search: bool = False
    """Search for the trust function as the section ``tune`` says, and rank the ``neural`` arm by what is found."""
    preset: Literal["world_knowledge", "quantitative_reasoning", "strategy_games"] = "strategy_games"
    """Unset, the preset of the run's domain (``curation.config.defaults``); this value if the domain has none."""
    states: tuple[Annotated[str, AfterValidator(_trust_state)], ...] = ("output_last",)
    """Names among ``teacher.states``. With ``teacher.store_states: {pca: k}`` the fit reads the projection ``pca``."""
    pca: PositiveInt | None = None
    """Read the states through their first k principal components, fitted on the fit part; the labels keep the whole
    states. ``null``: the states themselves, but for ``boosted_trees`` 64 components, or as many as there are."""
    columns: tuple[Number, ...] = ()
    """Numbers of the labels table that it reads beside the states; with ``standardise: false`` on their own scales.
    Some have a value for chosen options alone (``option_share``, ``option_lead``, ``num_options``), or for generated
    answers alone (least, first and last ``margin`` and ``negentropy``); a row without one of the numbers gets no score.
    ``token_logprobs`` are as many as ``teacher.token_logprobs`` says."""
    fit_on: Literal["parsed", "all"] = "parsed"
    """``parsed``: source rows whose label could be read, because trust never selects other rows. ``all`` (the paper's
    choice): unparsed rows too, as wrong ones."""
    source_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the labelled source rows that the fit, early stopping and calibration use, by a seeded hash of the
    row id; the rows of a smaller share are among those of a larger one. For measuring what more labels would bring."""
    depth: PositiveInt = 4
    """Residual blocks of the network."""
    width: PositiveInt = 512
    """Numbers that a block takes and gives."""
    expansion: Annotated[float, Field(gt=0)] = 2.0
    """Numbers within a block, as a multiple of ``width``."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The rate of dropout after each block while it learns."""
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The rate at which a row skips a block while it learns; it grows with the block up to this."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Of AdamW, constant."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Of AdamW, on all parameters."""
    class_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Strength of the class reweighting: class c weighs (N / (2 N_c)) ** class_weight; 0 is none, 1 is balanced."""
    batch_size: PositiveInt = 256
    """Rows of an optimizer step."""
    max_steps: PositiveInt = 8_000
    """The maximum number of optimizer steps, for any number of rows: 50 epochs of 40,000 rows at the default batch
    size."""
    patience: PositiveInt | None = 800
    """Steps without a better validation AUC before stopping; ``null`` takes all steps and keeps the last weights."""
    standardise: bool = True
    """Shift and scale each input to mean 0 and deviation 1 over the fit rows."""
    validation_fraction: Share = 0.2
    """The share of the rows held out for early stopping, by a seeded hash of the row id."""
    calibration_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of further rows held out from fit and early stopping. They turn trust into a probability and decide
    between network and probe on a small source. 0: no choice is made, and without ``calibrate_on: validation`` trust is
    the bare sigmoid, as in the paper."""
    calibration: Literal["platt", "isotonic", "none"] = "platt"
    """How a logit becomes trust: a sigmoid with slope and intercept, a step-like function that never falls, or the bare
    sigmoid. The calibration rows are held out in any case, and ranks never depend on it."""
    calibrate_on: Literal["calibration", "validation"] = "calibration"
    """The rows on which it is fitted: those of ``calibration_fraction``, or those that early stopping reads."""
    probe_below: Annotated[int, Field(ge=0)] = 5_000
    """With fewer rows to fit on, a linear probe is fitted too, and the ``neural`` arm ranks by the one with the better
    AUC on the calibration rows; 0: never."""
    score_dtype: Literal["float32", "bfloat16"] = "float32"
    """The type in which ``neural`` and ``deep_ensemble`` take products when they score. ``bfloat16`` is faster where
    the processor has it, and taken only if it keeps the order of the held-out source rows (``train.rounding``); the
    record of the fit says so."""
    options: dict[str, dict[str, Any]] = Field(default={})
    """Settings of trust functions of one's own, by name (docs/extending.md)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads of a row, in order: states, then numbers."""
        return (*self.states, *self.columns)

    @model_validator(mode="after")
    def _rows_are_left(self) -> Self:
        if self.validation_fraction + self.calibration_fraction >= 1:
            raise ValueError(
                f"validation_fraction {self.validation_fraction} and calibration_fraction {self.calibration_fraction} "
                "leave no rows to fit on; lower one of them"
            )
        return self

    @classmethod
    def presets(cls) -> Mapping[str, Mapping[str, Any]]:
        """One preset per domain, with the values of the paper's table."""
        return {
            "world_knowledge": {"learning_rate": 5e-5, "class_weight": 1.0},
            "quantitative_reasoning": {
                "depth": 8,
                "width": 1024,
                "learning_rate": 1e-5,
                "weight_decay": 1e-3,
                "class_weight": 1.0,
            },
            "strategy_games": {"learning_rate": 1e-5, "class_weight": 0.5},
        }


def refuse_pca(trust: TrustConfig, kinds: Iterable[str]) -> None:
    """Refuse ``trust.pca`` for trust functions that read state by state (``ValueError``)."""
    if trust.pca is not None and (found := [name for name, fitted in fitted_of(kinds).items() if fitted.by_state]):
        raise ValueError(
            f"trust.pca: {trust.pca}, but {', '.join(found)} reads state by state, and the components mix all states; "
            "leave trust.pca out, or take another trust function"
        )
