"""The trust function, its fit, and the search for one (``curate tune``)."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WrapValidator, model_validator

from curation.arms import PAPER_TRUST, TRUST, Fitted, find_fitted
from curation.config.base import NotNegative, PositiveInt, Section, Share, TrainSection, make_ray_resources
from curation.config.states import check_state
from curation.json_types import Json, JsonView
from curation.label_columns import DomainNumber, LabelNumber, is_given


def _check_fitted(name: str) -> str:
    known = {kind for kind, trust in TRUST.items() if isinstance(trust, Fitted)}
    if name not in TRUST or not isinstance(TRUST[name], Fitted):
        raise ValueError(f"{name!r} is not a trust function that is fitted; known: {', '.join(sorted(known))}")
    return name


Number = Literal[LabelNumber, "token_logprobs", DomainNumber]
"""Numbers of a label (``schemas.make_completions_schema``); the last one only some domains have."""
AnyNumber = Annotated[
    Number, WrapValidator(lambda value, other: value if isinstance(value, str) and is_given(value) else other(value))
]
"""A number of every labels table, or one that came with labels made elsewhere (``given_<column>``)."""
Preset = Literal["world_knowledge", "world_knowledge_qwen3", "quantitative_reasoning", "strategy_games"]
DEFAULT_ROW: Preset = "strategy_games"
PAPER: JsonView = {"states": ("output_last",), "fit_on": "all", "standardise": False, "calibration": "none"}
"""Defaults of ``ntf``, besides its row of the paper's table. If the section names another kind, the arm ``ntf`` is
fitted by these, its row and the section's resources, and reads no other key."""


class TrustConfig(TrainSection):
    """The trust function and its fit.

    The default, ``stacked``, is ours (``curation.trust.stacked``); its own settings are under ``options.stacked``.
    The paper's is ``kind: ntf`` (section "Neural Trust Functions"): its network on the raw state of the last answer
    token, fitted on all rows of the source, with the bare sigmoid and the row of its table of NTF architectures for
    domain and teacher. ``neural`` is the same network with our additions: fitting on parsed labels alone (``fit_on``),
    standardised inputs (``standardise``), calibration (``calibration``). Both stop early on validation AUC
    (``patience``): the paper does not give its number of steps, nor stochastic depth, expansion and batch size. Keys
    that a file sets override the defaults of ``ntf``; a key that the kind does not read is refused.
    """

    PRESETS: ClassVar[Mapping[str, JsonView]] = {
        "world_knowledge": {"learning_rate": 5e-5, "class_weight": 1.0},
        "world_knowledge_qwen3": {"learning_rate": 5e-5, "class_weight": 0.5},
        "quantitative_reasoning": {
            "depth": 8,
            "width": 1024,
            "learning_rate": 1e-5,
            "weight_decay": 1e-3,
            "class_weight": 1.0,
        },
        "strategy_games": {"learning_rate": 1e-5, "class_weight": 0.5},
    }
    """The rows of the paper's table: one per domain, but two of world knowledge (OLMo2-1B, Qwen3-0.6B)."""

    kind: Annotated[str, AfterValidator(_check_fitted)] = "stacked"
    """The fitted trust function (``curation.arms.TRUST``) by which the ``trust`` arm ranks: ``stacked`` (ours), ``ntf``
    (the paper's), ``neural``, ``deep_ensemble``, ``attention``, ``linear_probe``, ``boosted_trees``,
    ``fitted_confidence``."""
    search: bool = False
    """Whether to search for the trust function as ``tune`` says, and rank the ``trust`` arm by the result."""
    preset: Preset = DEFAULT_ROW
    """A row of the paper's table of NTF architectures. Unset: that of the run's domain (docs/method.md)
    and, for ``ntf``, of its teacher; this value if the domain has none."""
    states: tuple[Annotated[str, AfterValidator(check_state)], ...] = ("output_last",)
    """Names among ``teacher.states``."""
    num_workers: ClassVar[int] = 1  # type: ignore[misc]  # one process fits a trust function; labelled rows are few
    pca: PositiveInt | None = None
    """Number of principal components through which the states are read, fitted on the fit part; labels keep whole
    states. ``null``: the states themselves, but at most 64 components for ``boosted_trees``."""
    columns: tuple[AnyNumber, ...] = ()
    """Numbers of the labels table that trust reads beside the states; with ``standardise: false`` on their own scales.
    Some have a value for chosen options alone (``option_share``, ``option_lead``, ``num_options``), or for generated
    answers alone (least, first and last ``margin`` and ``negentropy``); a row without one of the numbers gets no score.
    ``token_logprobs`` are as many as ``teacher.token_logprobs`` says. ``given_<column>`` is a column of
    ``teacher.confidence``."""
    fit_on: Literal["parsed", "all"] = "parsed"
    """Rows to fit on. ``parsed``: source rows whose label could be read, because trust never selects others. ``all``
    (the paper's choice): unparsed rows too, as wrong ones."""
    source_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the labelled source rows that the fit uses, by a seeded hash of the question; the rows of a smaller
    share are among those of a larger one. For measuring what more labels would bring."""
    depth: PositiveInt = 4
    """Number of residual blocks of the network."""
    width: PositiveInt = 512
    """Size of a block's input and output."""
    expansion: Annotated[float, Field(gt=0)] = 2.0
    """Hidden size of a block, as a multiple of ``width``."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Dropout rate after each block during training."""
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Rate at which a row skips a block during training; it grows with the block up to this."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Constant learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay of AdamW, on all parameters."""
    class_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Strength of the class reweighting: class c weighs (N / (2 N_c)) ** class_weight; 0 is none, 1 is balanced."""
    batch_size: PositiveInt = 256
    """Rows per optimizer step."""
    max_steps: PositiveInt = 8_000
    """The maximum number of optimizer steps, for any number of rows: 50 epochs of 40,000 rows at the default batch
    size."""
    patience: PositiveInt | None = 800
    """Steps without a better validation AUC before stopping; ``null`` takes all steps and keeps the last weights."""
    standardise: bool = True
    """Whether each input is scaled to mean 0 and standard deviation 1 over the fit rows."""
    validation_fraction: Share = 0.2
    """The share of the rows held out for early stopping and calibration, by a seeded hash of the question. A stack is
    cross-fitted and holds none out."""
    calibration: Literal["platt", "isotonic", "none"] = "platt"
    """How a logit becomes trust: ``platt``, a sigmoid with slope and intercept, ``isotonic``, a step function that
    never falls (both fitted on the held-out rows), or the bare sigmoid, as in the paper. Ranks never depend on it."""
    options: dict[str, Json] = Field(default={})
    """Settings of trust functions, built-in or your own, by name (docs/extending.md)."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_kind(cls, value: object) -> object:
        return {**PAPER, **value} if isinstance(value, Mapping) and value.get("kind") == PAPER_TRUST else value

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs that the function reads from a row, in order: states, then numbers."""
        return (*self.states, *self.columns)


ROW_KEYS = frozenset({"fit_on", "source_share", "validation_fraction"})
"""Keys that decide which part of a fit a source row belongs to."""


def find_read_keys(fitted: Fitted) -> frozenset[str]:
    """Return the keys of the section ``trust`` that change the result of a fit."""
    network = TrustConfig.model_fields.keys() - TrustConfig.RESOURCES - {"kind", "search", "options", "preset"}
    own = {"states", "columns", *ROW_KEYS, *(network if fitted.reads is None else fitted.reads), "pca"}
    if fitted.by_state:
        own.remove("pca")
    if fitted.fit is None:
        own.add("calibration")  # train.trust calibrates what is fitted there
    if any(own & values.keys() for values in TrustConfig.PRESETS.values()):
        own.add("preset")
    return frozenset(own)


def with_row(trust: JsonView, model: object) -> Json:
    """Return a section ``trust``; if it is the paper's, with its table's row for the teacher's ``model``.

    For world knowledge Qwen3 has its own row, and every other teacher that of OLMo2-1B. The other domains have the same
    values for all teachers. ``trust.preset`` must be the domain's.
    """
    path = model.get("path") if isinstance(model, Mapping) else getattr(model, "path", None)
    is_qwen3 = isinstance(path, str) and re.search(r"qwen-?3(?![.\d])", path.rstrip("/").rpartition("/")[2].lower())
    if trust.get("kind") != PAPER_TRUST or not is_qwen3:
        return dict(trust)
    preset = trust.get("preset", DEFAULT_ROW)
    return {**trust, "preset": "world_knowledge_qwen3" if preset == "world_knowledge" else preset}


def refuse_pca(trust: TrustConfig, kinds: Iterable[str]) -> None:
    """Raise ``ValueError`` if ``trust.pca`` is set and a trust function reads state by state."""
    if trust.pca is not None and (found := [name for name, fitted in find_fitted(kinds).items() if fitted.by_state]):
        raise ValueError(
            f"trust.pca: {trust.pca}, but {', '.join(found)} reads state by state, and the components mix all states; "
            "leave trust.pca out, or take another trust function"
        )


class TuneConfig(Section):
    """Settings of a search: the trust functions to try (``tune.space``), how to measure them, and how to choose.

    Every trial is one fit on the labelled source rows. Fits on other folds and seeds then compare the best few trials
    with the trust function of the section ``trust``, and decide (``tune.search``).
    """

    RESOURCES: ClassVar[set[str]] = {"parallel", "cpus_per_trial", "gpus_per_trial", "memory_gib_per_trial"}

    space: Json = Field(default={"preset": "kinds"})
    """Settings to search and their values: ``preset`` and/or keys of ``trust``, ``kind`` and ``options.KIND.NAME``."""
    trials: PositiveInt = 64
    """Number of points to try, proposed by Optuna's tree-structured Parzen estimator from the AUC of earlier ones."""
    folds: Annotated[int, Field(ge=2)] = 5
    """Number of folds of the source. A trial holds out the first; the final comparison holds out each in turn."""
    finalists: PositiveInt = 3
    """Number of best trials to compare with the default."""
    seeds: PositiveInt = 2
    """Number of repetitions of the final comparison, each with its own folds and initial weights."""
    parallel: PositiveInt | None = None
    """Maximum number of concurrent trials. Unset: as many as the cluster has room for, at most 8."""
    cpus_per_trial: Annotated[float, Field(gt=0)] = 1.0
    """CPUs of a trial; a fraction lets small fits share a core."""
    gpus_per_trial: NotNegative = 0
    """GPUs of a trial."""
    memory_gib_per_trial: NotNegative = 0
    """Memory that a trial needs on its node, in GiB; 0 declares none."""

    @property
    def per_trial(self) -> dict[str, float]:
        """Resources of a trial on its node, under Ray's names."""
        return make_ray_resources(self.cpus_per_trial, self.gpus_per_trial, self.memory_gib_per_trial)
