"""The arms as data: the trust function that ranks the rows, the rule that selects them, and the labels that are used.

A line of ``TRUST`` adds a trust function and an arm of the same name; an arm that differs in something else is a line
of ``ARMS``. Each line names the code (``module:Class``) and what it needs. Source: paper, App. "Baseline Details".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Literal

from curation import label_columns
from curation.errors import ConfigError
from curation.label_columns import ORDER_AGREEMENT
from curation.registry import Registry, check_options, load_code, make_instance_check

REFERENCE_ARM = "trust"
"""The method's own arm, which ranks rows by the trust function that the section ``trust`` configures."""
PAPER_TRUST = "ntf"
"""The paper's trust function: the network of ``neural`` with the paper's settings (``curation.config.trust``)."""
REFERENCE_GOLD = "trust_gold"
"""The arm that trains on the rows of ``REFERENCE_ARM`` with their gold labels."""
FREE = ("internal_confidence", "margin", "entropy", "min_logprob", "last_logprob")
"""Free signals: trust functions that read one column which every labelling pass fills, so that they need no gold labels
and no further pass. Every run, search and filter measures them beside the reference arm. Numbers that came with labels
made elsewhere are free, too (:func:`is_free`)."""

Unit = Literal["share", "logprob", "logit", "negentropy"]
"""The scale of a ranking column, which determines its conversion to a trust in [0, 1] (``curation.trust.TO_UNIT``)."""


@dataclass(frozen=True)
class Draw:
    """A uniform draw by row id."""

    words: str


@dataclass(frozen=True)
class Column:
    """A column of the labels table that the labelling pass fills."""

    words: str
    column: str
    unit: Unit = "share"


@dataclass(frozen=True)
class Signal:
    """A column that is filled by asking a model a further question about each row."""

    words: str
    column: str
    made_by: str
    """A class with the members of ``curation.signals.SignalMethod``, as ``module:Class``."""
    unit: Unit = "share"
    asks: str = "teacher"
    """The model that answers: ``teacher``, ``second_teacher``, ``reward`` or a name of ``signals.models``."""
    shots: bool = False
    """Whether its prompts show demonstrations: rows of the split ``shots``, which its class takes as ``shots``."""
    section: str | None = None
    """The key of ``signals`` with its class's arguments; by default the column's key of ``signals.options``."""


@dataclass(frozen=True)
class Fitted:
    """A trust function that is fitted on the source split. It adds two columns, its score and its trust."""

    words: str
    made_by: str
    """A subclass of ``curation.trust.states.StateTrust``, as ``module:Class``."""
    reads: tuple[str, ...] | None = ()
    """Keys of ``RunConfig.trust`` that its fit reads beside those that all fits read; ``None`` means all keys of the
    neural fit. The function is fitted again only if one of these keys changes."""
    fit: str | None = None
    """The function that fits it on rows in memory, in a training process, as ``module:function``; by default
    ``made_by``'s class method ``fitted``, in the driver's process (``train.trust.fit_rows``)."""
    by_state: bool = False
    """Whether it reads each hidden state separately, so that ``trust.pca``, which concatenates them, is refused."""


@dataclass(frozen=True)
class Configured:
    """The fitted function that the section ``trust`` of a run names (``trust.kind``) or its search chooses."""

    words: str


Trust = Draw | Column | Signal | Fitted | Configured


def _accept_trust(path: str, found: object) -> Trust:
    if not isinstance(found, Trust):
        raise TypeError(f"it is a {type(found).__name__}, not a Column, Signal or Fitted of curation.arms")
    return found


class _Trusts(Registry[Trust]):
    def find(self, name: str) -> Trust:
        if label_columns.is_given(name):
            return Column(name.replace("_", " "), name)
        return super().find(name)


TRUST: Registry[Trust] = _Trusts(
    "trust function",
    {
        "naive": Draw("naive among parsed"),
        REFERENCE_ARM: Configured("trust"),
        "internal_confidence": Column("internal confidence", "mean_logprob", "logprob"),
        "margin": Column("margin", "margin", "logit"),
        "entropy": Column("entropy", "negentropy", "negentropy"),
        "min_logprob": Column("least log-probability", "min_logprob", "logprob"),
        "last_logprob": Column("last log-probability", "last_logprob", "logprob"),
        ORDER_AGREEMENT: Column("agreement of both orders", ORDER_AGREEMENT),
        "icl_confidence": Signal(
            "ICL + internal confidence",
            "icl_mean_logprob",
            "curation.signals.methods:IclMeanLogprob",
            "logprob",
            shots=True,
        ),
        "verbalized_confidence": Signal(
            "verbalized confidence", "verbalized_confidence", "curation.signals.verbalized:VerbalizedConfidence"
        ),
        "ensemble": Signal(
            "ensemble", "ensemble_agreement", "curation.signals.methods:EnsembleAgreement", asks="second_teacher"
        ),
        "self_consistency": Signal(
            "self-consistency",
            "self_consistency",
            "curation.signals.methods:SelfConsistency",
            section="self_consistency",
        ),
        # of a causal model; one with a reward head is curation.teachers.reward
        "reward": Signal("reward model", "reward", "curation.signals.methods:Verifier", "logit", asks="reward"),
        "stacked": Fitted("stacked trust", "curation.trust.stacked:StackedTrust", fit="train.stack:fit_stacked"),
        "fitted_confidence": Fitted(
            "fitted confidence", "curation.trust.stacked:StackedTrust", fit="train.stack:fit_confidence"
        ),
        "linear_probe": Fitted("linear probe", "curation.trust.linear_probe:LinearProbe", reads=("class_weight",)),
        "boosted_trees": Fitted("boosted trees", "curation.trust.boosted_trees:BoostedTrees", reads=("class_weight",)),
        "deep_ensemble": Fitted(
            "deep ensemble",
            "curation.trust.deep_ensemble:DeepEnsemble",
            reads=None,
            fit="train.trust:fit_deep_ensemble",
        ),
        "attention": Fitted(
            "attention",
            "curation.trust.attention:AttentionTrust",
            reads=None,
            fit="train.trust:fit_attention",
            by_state=True,
        ),
        "neural": Fitted("neural trust", "curation.trust.neural:NeuralTrust", reads=None, fit="train.trust:fit_neural"),
        PAPER_TRUST: Fitted(
            "NTF of the paper", "curation.trust.neural:NeuralTrust", reads=None, fit="train.trust:fit_neural"
        ),
    },
    _accept_trust,
    groups=("curation.trust", "curation.signals"),
)
"""Trust functions by name. Each but a draw is also an arm, as is each number that came with labels made elsewhere."""


def is_free(name: str) -> bool:
    """Return whether a trust function is a free signal: one of ``FREE``, or a number that only some domains have."""
    return name in FREE or label_columns.is_from_domain(name)


def free_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the free signals that a labels table with the given columns has."""
    return (*FREE, *filter(label_columns.is_from_domain, columns))


@dataclass(frozen=True)
class Rule:
    """A rule by which an arm selects rows within the budget."""

    made_by: str
    """A class with the member ``cut`` of ``curation.selection.Selector``, as ``module:Class``."""
    reads: tuple[Literal["stratum", "accuracy", "reference"], ...] = ()
    """Fields of ``Candidates`` that it reads beside row ids and scores; ``accuracy`` makes it an oracle."""


STRATUM: Literal["stratum"] = "stratum"
TOP = Rule("curation.selection.top_n:TopN")
STRATIFIED = Rule("curation.selection.quotas:Stratified", (STRATUM,))
DISTRIBUTION_AWARE = Rule("curation.selection.quotas:DistributionAware", ("stratum", "accuracy"))
MATCHED = Rule("curation.selection.quotas:Matched", ("stratum", "reference"))
RULES: Registry[Rule] = Registry(
    "selection rule",
    {"top": TOP, "stratified": STRATIFIED, "distribution_aware": DISTRIBUTION_AWARE, "matched": MATCHED},
    make_instance_check(Rule),
    groups=("curation.rules",),
)
"""Selection rules by name; ``ARM@RULE`` is an arm that differs from ``ARM`` in its rule."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to choose training rows."""

    words: str
    trust: str
    """A name of ``TRUST``."""
    rule: Rule = TOP
    ranked: bool = True
    """Whether the arm ranks rows by trust; a uniform draw does not."""
    parsed: bool = True
    """Whether rows with unparsed labels are excluded; of the uniform draws only ``naive_parsed`` excludes them."""
    gold: bool = False
    """Whether students are trained on gold labels of the pool."""

    @property
    def signal(self) -> Signal | None:
        """The signal that another pass adds to the pool's labels for this arm, or None."""
        trust = TRUST[self.trust]
        return trust if isinstance(trust, Signal) else None

    @property
    def takes_top(self) -> bool:
        """Whether the arm takes its top rows by trust; only such arms can be divided by class or have rows checked."""
        return self.ranked and self.rule == TOP

    @property
    def oracle(self) -> bool:
        """Whether the arm uses gold labels of the pool, as labels or to allocate places to bins."""
        return self.gold or "accuracy" in self.rule.reads


class _Arms(Registry[Arm]):
    def find(self, name: str) -> Arm:
        arm, at, rule = name.partition("@")
        given = label_columns.is_given(arm)
        found = Arm(words=TRUST.find(arm).words, trust=arm) if given else super().find(arm)
        if not at:
            return found
        return replace(found, words=f"{found.words}, {rule}", rule=RULES.find(rule))


ARMS: Registry[Arm] = _Arms(
    "arm",
    {
        "naive": Arm(words="naive", trust="naive", ranked=False, parsed=False),
        "naive_parsed": Arm(words="naive among parsed", trust="naive", ranked=False),
        "naive_stratified": Arm(words="naive, stratified", trust="naive", rule=STRATIFIED, ranked=False, parsed=False),
        "naive_distribution_aware": Arm(
            words="naive, distribution-aware", trust="naive", rule=DISTRIBUTION_AWARE, ranked=False, parsed=False
        ),
        **{name: Arm(words=trust.words, trust=name) for name, trust in TRUST.items() if not isinstance(trust, Draw)},
        "naive_matched": Arm(
            words="naive, difficulty-matched", trust="naive", rule=MATCHED, ranked=False, parsed=False
        ),
        REFERENCE_GOLD: Arm(words="trust, gold labels", trust=REFERENCE_ARM, gold=True),
        "ground_truth": Arm(words="ground truth", trust="naive", ranked=False, parsed=False, gold=True),
    },
    lambda path, found: (
        Arm(words=found.words, trust=path) if isinstance(found, Trust) else make_instance_check(Arm)(path, found)
    ),
    groups=("curation.arms", *TRUST.groups),
)
"""Arms by name."""


def find_signals(names: Iterable[str]) -> dict[str, Signal]:
    """Return the signals that the named arms ask for, each once, by column."""
    return {signal.column: signal for name in names if (signal := ARMS[name].signal) is not None}


def find_fitted(names: Iterable[str]) -> dict[str, Fitted]:
    """Return the trust functions that have to be fitted for the named arms, each once, by name."""
    trusts = {ARMS[name].trust: TRUST[ARMS[name].trust] for name in names}
    return {name: trust for name, trust in trusts.items() if isinstance(trust, Fitted)}


def check_fit_options(where: str, kind: str, config: object, options: Mapping[str, object]) -> None:
    """Raise ``ConfigError``, with the key ``where``, if the fit of a trust function does not take these options."""
    fitted = find_fitted([kind])[kind]
    if fitted.fit is None:
        takes = load_code(fitted.made_by).fitted
        check_options(where, takes, options, None, None, config, None)
    else:
        takes = load_code(fitted.fit)
        check_options(where, takes, options, None, config, seed=0, origin={}, note=None)
    known = signature(takes).parameters
    for name, value in options.items():
        wanted = known[name].annotation if name in known else None
        if wanted in (int, float) and (isinstance(value, bool) or not isinstance(value, int | wanted)):
            raise ConfigError(f"{where}: {name} is {value!r}, not {'an integer' if wanted is int else 'a number'}")
