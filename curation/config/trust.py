"""The trust function and its fit."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidatorFunctionWrapHandler, WrapValidator

from curation.arms import TRUST, Fitted, fitted_of
from curation.config.base import PositiveInt, Share, TrainSection
from curation.config.states import parse
from curation.json_types import Json, JsonView
from curation.label_columns import LabelNumber, is_given


def _trust_state(name: str) -> str:
    if name != "pca":
        parse(name)
    return name


def _fitted(name: str) -> str:
    known = {kind for kind, trust in TRUST.items() if isinstance(trust, Fitted)}
    if name not in TRUST or not isinstance(TRUST[name], Fitted):
        raise ValueError(f"{name!r} is no trust function that is fitted; known: {', '.join(sorted(known))}")
    return name


Number = Literal[LabelNumber, "token_logprobs", "order_agreement"]
"""``schemas.completions`` says what they mean; ``order_agreement`` is of the domain ``pair`` alone."""


def _given_too(value: object, handler: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, str) and is_given(value) else handler(value)


AnyNumber = Annotated[Number, WrapValidator(_given_too)]
"""A number of every labels table, or one that came with labels made elsewhere (``given_<column>``)."""


class TrustConfig(TrainSection):
    """The trust function and its fit.

    The default, ``stacked``, is ours (``curation.trust.stacked``); its own settings stand under ``options.stacked``.
    The paper's is ``kind: neural`` (section "Neural Trust Functions", table of NTF architectures), which ``preset``,
    ``depth`` and the keys after it describe. Our additions to that, and how to switch each off: fitting on parsed
    labels alone (``fit_on: all``), early stopping on validation AUC (``patience: null``), standardised inputs
    (``standardise: false``), calibration (``calibration: none``). The paper does not give stochastic depth, expansion,
    batch size or number of steps.
    """

    kind: Annotated[str, AfterValidator(_fitted)] = "stacked"
    """The fitted trust function (``curation.arms.TRUST``) by which the ``trust`` arm ranks, e.g. ``neural``."""
    search: bool = False
    """Search for the trust function as the section ``tune`` says, and rank the ``trust`` arm by what is found."""
    preset: Literal["world_knowledge", "quantitative_reasoning", "strategy_games"] = "strategy_games"
    """Unset, the preset of the run's domain (``curation.config.defaults``); this value if the domain has none."""
    states: tuple[Annotated[str, AfterValidator(_trust_state)], ...] = ("output_last",)
    """Names among ``teacher.states``. With ``teacher.store_states: {pca: k}`` the fit reads the projection ``pca``."""
    pca: PositiveInt | None = None
    """Read the states through their first k principal components, fitted on the fit part; the labels keep the whole
    states. ``null``: the states themselves, but for ``boosted_trees`` 64 components, or as many as there are."""
    columns: tuple[AnyNumber, ...] = ()
    """Numbers of the labels table that it reads beside the states; with ``standardise: false`` on their own scales.
    Some have a value for chosen options alone (``option_share``, ``option_lead``, ``num_options``), or for generated
    answers alone (least, first and last ``margin`` and ``negentropy``); a row without one of the numbers gets no score.
    ``token_logprobs`` are as many as ``teacher.token_logprobs`` says. ``given_<column>`` is a column of
    ``teacher.confidence``."""
    fit_on: Literal["parsed", "all"] = "parsed"
    """``parsed``: source rows whose label could be read, because trust never selects other rows. ``all`` (the paper's
    choice): unparsed rows too, as wrong ones."""
    source_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the labelled source rows that the fit uses, by a seeded hash of the question; the rows of a smaller
    share are among those of a larger one. For measuring what more labels would bring."""
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
    """Constant learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay of AdamW, on all parameters."""
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
    """The share of the rows held out for early stopping and calibration, by a seeded hash of the question. A stack is
    cross-fitted and holds none out."""
    calibration: Literal["platt", "isotonic", "none"] = "platt"
    """How a logit becomes trust: a sigmoid with slope and intercept, a step-like function that never falls (both fitted
    on the held-out rows), or the bare sigmoid, as in the paper. Ranks never depend on it."""
    score_dtype: Literal["float32", "bfloat16"] = "float32"
    """The type in which ``neural`` and ``deep_ensemble`` take products when they score. ``bfloat16`` is faster where
    the processor has it, and taken only if it keeps the order of the held-out source rows (``train.rounding``); the
    record of the fit says so."""
    options: dict[str, Json] = Field(default={})
    """Settings of trust functions of one's own, by name (docs/extending.md)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs that the function reads of a row, in order: states, then numbers."""
        return (*self.states, *self.columns)

    @classmethod
    def presets(cls) -> Mapping[str, JsonView]:
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
