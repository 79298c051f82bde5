"""The arms and the number of rows that each selects."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from curation.arms import ARMS, REFERENCE_ARM, Signal
from curation.config.base import DISTINCT, PositiveInt, Section, Share
from curation.json_types import Json
from curation.registry import BUDGETS, Budget

CUTS = ("risk", "threshold")
"""Budgets that take all rows above a cut, so that classes cannot have places of their own."""


class RiskConfig(Section):
    """Risk-controlled selection, calibrated on ``splits.calibration`` (paper, "Risk-Controlled Data Selection").

    With probability 1 - ``delta`` over the calibration rows, at most a share ``alpha`` of the selected labels is wrong,
    in expectation over the pool's distribution. ``curation.selection.risk`` says what each rule proves.
    """

    alpha: Share
    """Maximum share of wrong labels among the selected rows."""
    delta: Share = 0.1
    """Maximum probability, over the calibration rows, that the share of wrong labels is larger."""
    rule: Literal["fixed_sequence", "hoeffding", "hoeffding_bonferroni", "hoeffding_grid", "hoeffding_split"] = (
        "fixed_sequence"
    )
    """How a cut is certified; ``hoeffding`` is the paper's rule without a correction for the search."""
    kind: Literal["threshold", "top_k"] = "threshold"
    """The kind of cut: trust at a ``threshold``, or the ``top_k`` rows."""


class ClassRiskConfig(RiskConfig):
    """Risk-controlled selection for a run or a filter, over all rows or for each class of a closed set."""

    per: Literal["all", "label"] = "all"
    """Rows that the guarantee covers: ``all`` selected rows, or those of each weak ``label`` separately, for all
    classes at once; each class then has its own cut, and one without a certified cut selects nothing."""

    def _iter_problems(self) -> Iterator[str]:
        if self.per == "label" and self.rule == "hoeffding":
            yield (
                "per: label promises something of all classes at once, and rule: hoeffding is of one cut that was not "
                "searched for; take rule: hoeffding_bonferroni or fixed_sequence"
            )


class BudgetConfig(Section):
    """The number of rows that every arm selects. Exactly one rule is set and gives one common n."""

    n: PositiveInt | None = None
    """A fixed number of rows."""
    share: Share | None = None
    """A share of the pool rows that were labelled without error, unparsed ones included."""
    oracle: bool = False
    """The number of right weak labels in the pool, at most ``cap`` (paper, world knowledge); needs the audit set."""
    cap: PositiveInt = 2_000
    """Maximum number of rows under ``oracle``."""
    fit_purity: bool | str = False
    """floor(purity of the reference arm x right weak labels in the pool) (paper, quantitative reasoning); needs the
    audit set. ``true`` or ``source`` takes the purity on the fit set; the name of a probe (``splits.probes``), that on
    its held-out rows. The paper says "on its training set", but calibrates on MATH's test split."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """The number of rows whose trust in the reference arm is at least this."""
    risk: ClassRiskConfig | None = None
    """The number of rows that pass a calibrated threshold of the reference arm; 0 if no threshold can be certified."""
    reference: str = REFERENCE_ARM
    """The arm that ``fit_purity``, ``threshold`` and ``risk`` read, whose difficulties ``naive_matched`` matches."""
    own: dict[str, Json] = Field(default={})
    """Another rule of ``curation.registry.BUDGETS``, or ``module:NAME`` of your own, with its settings; it may also be
    written beside the keys above, like them (docs/extending.md)."""

    @property
    def rule(self) -> str:
        """The name of the rule that is set."""
        return self._list_given()[0]

    @property
    def declared(self) -> Budget:
        """The registry's entry of the rule: what the rule reads, and where its code is."""
        return BUDGETS[self.rule]

    @property
    def options(self) -> Json:
        """Arguments of the rule's class."""
        if self.declared.keys is None:
            return self.own[self.rule]
        found: Json = {}
        for key in self.declared.keys:
            value = getattr(self, key)
            found |= value.model_dump() if isinstance(value, Section) else {key: value}
        return found

    @property
    def is_by_label(self) -> bool:
        """Whether each class has a certified cut of its own."""
        return self.risk is not None and self.risk.per == "label"

    @property
    def reads_scores(self) -> bool:
        """Whether n depends on the reference arm's scores."""
        return "scores" in self.declared.reads

    @property
    def needs_gold(self) -> bool:
        """Whether n depends on the pool's gold labels."""
        return "right" in self.declared.reads

    @property
    def needs_calibration(self) -> bool:
        """Whether n depends on the grades of ``splits.calibration``."""
        return "calibration" in self.declared.reads

    @property
    def purity_split(self) -> str | None:
        """The graded split, other than pool and calibration, that n depends on; None if the rule reads none."""
        if "measured" not in self.declared.reads:
            return None
        return "source" if not self.fit_purity or self.fit_purity in (True, "source") else f"probe-{self.fit_purity}"

    @model_validator(mode="before")
    @classmethod
    def _of_registry(cls, value: object) -> object:
        """Move rules that are no fields of this class under ``own``."""
        if not isinstance(value, Mapping):
            return value
        named = [key for key in value if isinstance(key, str) and key not in cls.model_fields]
        own = {key: value[key] for key in named if key in BUDGETS or ":" in key}
        if not own:
            return value
        settings = {key: {} if options is None or options is True else options for key, options in own.items()}
        rest = {key: item for key, item in value.items() if key not in own}
        return {**rest, "own": {**rest.get("own", {}), **settings}}

    def _iter_problems(self) -> Iterator[str]:
        given = self._list_given()
        if len(given) != 1:
            found = " and ".join(given) or "none"
            yield f"takes exactly one of {', '.join(BUDGETS)}; found {found}"
        BUDGETS.find(given[0])

    def _list_given(self) -> list[str]:
        fields = [name for name in BUDGETS if name in type(self).model_fields]
        given = [name for name in fields if (value := getattr(self, name)) is not None and value is not False]
        return [*given, *self.own]


class GoldRolloutsConfig(Section):
    """Rollouts that gold arms train on if the weak arms train on rollouts, with reasoning before the answer.

    Gold arms that trained on bare answers would make recovery measure the format. If weak completions are bare answers,
    or chosen options, gold arms train on the same, and this section has no effect.
    """

    source: Literal["auto", "solutions", "samples", "answers"] = "auto"
    """``solutions``: the dataset's worked solutions. ``samples``: the teacher's own rollouts that gold grades right.
    ``auto``: solutions if nearly all rows have one, else samples. ``answers``: bare answers anyway, without a
    recovery."""
    num_samples: PositiveInt = 8
    """The maximum number of further samples for a row with a wrong weak label, until one is right."""
    temperature: Annotated[float, Field(gt=0)] = 0.7
    """Sampling temperature of these rollouts."""


class CoreSelection(Section):
    """The arms and their common budget, without the keys of features."""

    budget: BudgetConfig
    arms: Annotated[tuple[str, ...], Field(min_length=1), DISTINCT] = (
        "naive",
        "naive_parsed",
        "internal_confidence",
        REFERENCE_ARM,
    )
    """Names of ``curation.arms.ARMS``, or ``module:NAME`` of your own (docs/extending.md). Unset, ``splits.audit`` adds
    ``trust_gold`` and ``ground_truth``, which show the cost of wrong labels and of the choice of rows. An arm whose
    signal gives no readable value for any row ends the run before any row is selected."""
    difficulty_bins: PositiveInt = 10
    """Number of difficulty bins of about equal size for the stratified arms; unknown difficulty has a further bin."""
    gold_rollouts: GoldRolloutsConfig = GoldRolloutsConfig()

    @property
    def used(self) -> tuple[str, ...]:
        """The arms and the budget's reference arm, whose trust functions and signals the run needs."""
        return (*self.arms, self.budget.reference)

    @property
    def counted_by(self) -> dict[str, str]:
        """Keys by which features count rows of a group, ``label`` or another, by the name of the feature."""
        return {}

    def _iter_problems(self) -> Iterator[str]:
        for name in self.used:
            ARMS.find(name)
        signals: dict[str, tuple[str, Signal]] = {}
        for arm in self.used:
            if (signal := ARMS[arm].signal) is None:
                continue
            first, other = signals.setdefault(signal.column, (arm, signal))
            if other != signal:
                yield (f"arms: {first} and {arm} fill the column {signal.column!r} with two signals; rename one")
        reference = ARMS[self.budget.reference]
        if not reference.ranked or reference.gold:
            yield f"budget.reference: {self.budget.reference!r} ranks no weak labels; name an arm that does"
