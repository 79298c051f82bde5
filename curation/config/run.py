"""A whole run: its parts, what they ask of each other, its tests, where it runs and who is told of it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from curation.arms import ARMS, PAPER_TRUST, fitted_of, signals_of
from curation.config.analysis import AnalyzeConfig
from curation.config.base import PositiveInt, Section
from curation.config.chain import DEFAULT_SHARES, ChainConfig
from curation.config.defaults import filled, traits_of
from curation.config.endpoint import beyond_endpoint, compared, is_endpoint, with_endpoint
from curation.config.evaluation import EvaluationConfig
from curation.config.given import arms_of, is_given, unknown_number, with_given
from curation.config.given_limits import beyond_given
from curation.config.inputs import DomainConfig, LimitedSplits, RowsConfig
from curation.config.judging import beyond_judge, beyond_verify
from curation.config.models import (
    GenerationConfig,
    ModelConfig,
    SftConfig,
    StudentConfig,
    student_config,
    with_recipes,
)
from curation.config.prices import PricesConfig
from curation.config.scored_options import beyond_options
from curation.config.selection import GOLD_ARMS, SelectionConfig
from curation.config.signals import JudgeConfig, SignalsConfig
from curation.config.states import generated
from curation.config.teacher import PcaConfig, TeacherConfig
from curation.config.tracking import TrackingConfig
from curation.config.trust import TrustConfig, refuse_pca, refuse_twice, with_row
from curation.config.tune import TuneConfig
from curation.storage.paths import Place, place


def _run_dir(path: str) -> str:
    place(path)
    return path


class RayConfig(Section):
    """Where Ray runs: in a cluster, or on this machine with ``num_cpus`` (all cores where unset)."""

    address: str | None = None
    """``HOST:PORT`` of a cluster's head, or ``auto``: the Ray that runs on this machine. Unset: ``RAY_ADDRESS`` of the
    environment where it is set, as in a job of Ray; else Ray starts here."""
    num_cpus: PositiveInt | None = None
    """CPUs of the Ray that starts on this machine; unset: all cores."""
    max_stages: PositiveInt | None = None
    """Most stages at once; unset, as many as the cluster has room for by the CPUs and GPUs that they ask for."""


class RunConfig(RowsConfig):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    """Names the run in reports and, unless ``run_dir`` is set, its directory."""
    run_dir: Annotated[str, AfterValidator(_run_dir)] | None = None
    """Where the run keeps its tables, a path or a URL (``s3://``, ``gs://``); ``runs/<name>`` of the working directory
    where unset."""
    chat_preset: Literal["qwen3", "gemma3", "llama3"] | None = None
    """The paper's use of chat templates with a family (App. "Mathematical Problem Solving"): fills ``chat_template`` of
    teacher, student and evaluation where they are not given."""
    splits: LimitedSplits
    teacher: TeacherConfig
    trust: TrustConfig = TrustConfig()
    tune: TuneConfig = TuneConfig()
    """The search of ``curate tune`` and ``trust.search``."""
    signals: SignalsConfig = SignalsConfig()
    judge: JudgeConfig | None = None
    selection: SelectionConfig
    student: SerializeAsAny[Annotated[StudentConfig, BeforeValidator(student_config)]] = SftConfig()
    """How every student is trained, unless a further one has a recipe of its own."""
    generations: tuple[GenerationConfig, ...] = ()
    """The students' bases, an entry a generation; none: curate only, train nothing."""
    chain: ChainConfig = ChainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    analyze: AnalyzeConfig = AnalyzeConfig()
    """The stages of ``curate analyze``."""
    commit_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Between two commits of a pass; where a commit takes long, more."""
    fragment_mb: PositiveInt = 256
    """MiB of a fragment after the compaction that ends a pass."""
    ray: RayConfig = RayConfig()
    prices: PricesConfig | None = None
    """For ``curate plan`` and the report to say what labelling costs in money."""
    tracking: TrackingConfig = TrackingConfig()
    report_rows: Annotated[int, Field(ge=0, le=100)] = 5
    """Rows of each kind (selected, rejected, confidently wrong, unparsed) whose texts the report shows; 0: no texts."""

    CHAT_PRESETS: ClassVar[Mapping[str, Mapping[str, bool]]] = {
        "qwen3": {"teacher": False, "student": False, "evaluation": True},
        "gemma3": {"teacher": True, "student": False, "evaluation": True},
        "llama3": {"teacher": True, "student": False, "evaluation": True},
    }

    @model_validator(mode="before")
    @classmethod
    def _recipes(cls, value: object) -> Any:
        """Further students' recipes, with the keys of the section ``student`` that they leave out; filled in last."""
        if not isinstance(value, Mapping) or not isinstance(value.get("generations"), Sequence):
            return value
        common = value.get("student") or {}
        common = common.model_dump(mode="json") if isinstance(common, StudentConfig) else common
        if not isinstance(common, Mapping):
            return value
        return {**value, "generations": [with_recipes(item, common) for item in value["generations"]]}

    @model_validator(mode="before")
    @classmethod
    def _chat(cls, value: Any) -> Any:
        family = value.get("chat_preset") if isinstance(value, Mapping) else None
        if not isinstance(family, str) or family not in cls.CHAT_PRESETS:
            return value
        filled = dict(value)
        for section, on in cls.CHAT_PRESETS[family].items():
            given = filled.get(section) or {}
            if isinstance(given, Mapping):
                filled[section] = {"chat_template": on, **given}
            if section == "teacher" and isinstance(given, Mapping) and isinstance(given.get("adapt"), Mapping):
                filled[section]["adapt"] = {"chat_template": on, **given["adapt"]}  # adapted as it is asked
        return filled

    @model_validator(mode="before")
    @classmethod
    def _of_the_domain(cls, value: object) -> Any:
        if not isinstance(value, Mapping):
            return value
        try:
            domain = DomainConfig.model_validate(value.get("domain", cls.model_fields["domain"].default))
        except ValidationError:
            return value  # refused as such
        found = filled(value, traits_of(domain.name, domain.options).defaults)
        trust = value.get("trust")
        return found if isinstance(trust, Mapping) and "preset" in trust else with_row(found)

    @model_validator(mode="before")
    @classmethod
    def _labels_given(cls, value: object) -> Any:
        if isinstance(value, Mapping) and is_endpoint(value.get("teacher")):
            return with_endpoint(value)
        if not isinstance(value, Mapping) or not is_given(value.get("teacher")):
            return value
        default = SelectionConfig.model_fields["arms"].default
        return with_given(value, cls.model_fields["domain"].default.name, arms_of(value["teacher"], default))

    @model_validator(mode="before")
    @classmethod
    def _arms_of_an_audit(cls, value: object) -> Any:
        """With an audit set, the gold arms are among the arms that are not named; grades are no gold labels."""
        if not isinstance(value, Mapping):
            return value
        splits, selection, teacher = value.get("splits"), value.get("selection"), value.get("teacher")
        if not (isinstance(splits, Mapping) and splits.get("audit") is True and isinstance(selection, Mapping)):
            return value
        if isinstance(teacher, Mapping) and teacher.get("grade") is not None:
            return value
        arms = (*arms_of(teacher, SelectionConfig.model_fields["arms"].default), *GOLD_ARMS)
        return {**value, "selection": {"arms": arms, **selection}}

    @property
    def directory(self) -> Place:
        """The run directory, absolute: workers have working directories of their own."""
        return place(self.run_dir or f"runs/{self.name}").absolute()

    @property
    def evaluations(self) -> Place | None:
        """Where answers to tests are kept for other runs; ``None``: nowhere."""
        cache = self.evaluation.cache
        if isinstance(cache, str):
            return place(cache).absolute()
        return self.directory.parent / ".evaluations" if cache else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, split in self.splits.named().items():
            if split.source not in self.sources:
                known = ", ".join(sorted(self.sources))
                raise ValueError(f"splits.{name}.from: {split.source!r} is not one of the sources ({known})")
        if missing := set(self.trust.states) - set(self.teacher.states):
            raise ValueError(f"trust.states: {', '.join(sorted(missing))} not among teacher.states; add it there")
        for kind in fitted_of(self.selection.used):
            if missing := set(self.fit_of(kind).states) - {*self.teacher.states, *self.fitting.states}:
                raise ValueError(f"selection.arms: {kind} reads {', '.join(missing)}; add it to teacher.states")
        refuse_pca(self.trust, {*self.selection.used, self.trust.kind})
        refuse_twice(self.trust, self.selection.arms)
        if "token_logprobs" in self.trust.columns and not self.teacher.token_logprobs:
            raise ValueError(
                "trust.columns: token_logprobs is not stored where teacher.token_logprobs is 0; set that to the "
                "number of tokens whose log-probabilities are to be kept, e.g. 16"
            )
        for labelled in self.splits.labelled():
            domain = self.domain_of(labelled)
            problem = generated(self.teacher.states, f"splits.{labelled} of domain {domain.name}")
            constrained = self.teacher.decoding.constrained
            if problem is not None and (
                constrained == "stepwise" or (traits_of(domain.name, domain.options).generates and not constrained)
            ):
                raise ValueError(problem)
        self._given_labels_suffice()
        self._answers_are_listed()
        measured = self.selection.budget.purity_split
        if measured is not None and measured not in self.splits.named():
            known = ", ".join(["source", *self.splits.probes])
            raise ValueError(
                f"selection.budget.fit_purity: {self.selection.budget.fit_purity!r} is neither source nor a probe of "
                f"splits.probes; known: {known}"
            )
        if self.teacher.adapt is not None and self.splits.adapt is None:
            raise ValueError("teacher.adapt needs a split: add splits.adapt")
        if len(self.generations) > 1 and self.splits.test is None:
            raise ValueError("a chain of generations needs a test split: add splits.test")
        oracles = [f"the {name} arm" for name in self.selection.arms if ARMS[name].oracle]
        if self.selection.budget.needs_gold:
            oracles.append(f"the {self.selection.budget.rule} budget")
        if oracles and not self.splits.audit:
            raise ValueError(f"{oracles[0]} reads the pool's gold labels: set splits.audit: true, or drop it")
        self._students_can_be_trained()
        self._chain_can_be_made()
        self._signals_can_be_made()
        return self

    def _given_labels_suffice(self) -> None:
        """Refuse what reads columns that are not there, or asks a teacher that is none."""
        given = self.teacher.given
        if self.domain.given_labels != given:
            raise ValueError(
                "domain.given_labels: differs from the columns that teacher names; leave it out, and set backend: "
                "given and completion there"
            )
        columns = (*self.trust.columns, *(ARMS[arm].trust for arm in self.selection.used))
        both = self.domain_of("source").may_ask_both_orders
        problem = unknown_number(columns, given, both_orders=both) or beyond_endpoint(self) or beyond_options(self)
        if given is not None and problem is None:
            judges, generations = self.judge is not None, len(self.generations)
            read = self.teacher.reader is not None
            problem = beyond_given(given, self.selection, self.trust, generations=generations, judges=judges, read=read)
        if problem is not None:
            raise ValueError(problem)

    def _answers_are_listed(self) -> None:
        asked = [("teacher.decoding", self.teacher.decoding, split) for split in self.splits.labelled()]
        if self.splits.test is not None:
            asked += [("evaluation.decoding", self.evaluation.decoding, "test")]
            asked += [(f"evaluation.also.{name}", decoding, "test") for name, decoding in self.evaluation.also.items()]
        for key, decoding, split in asked:
            domain = self.domain_of(split)
            if decoding.constrained and not traits_of(domain.name, domain.options).lists_answers:
                raise ValueError(
                    f"{key}.constrained: {decoding.constrained}: domain {domain.name} of splits.{split} does not list "
                    "the possible answers of a row; leave it out, or take chess, mcqa that is not generative, or a "
                    "domain with a method candidates (docs/extending.md)"
                )

    def _students_can_be_trained(self) -> None:
        for index, generation in enumerate(self.generations):
            for name, student in generation.students.items():
                if student.recipe is not None and student.recipe.method != self.student.method:
                    raise ValueError(
                        f"generations.{index}.students.{name}.recipe.method: {student.recipe.method!r} learns from "
                        f"other selections than student.method {self.student.method!r}, which all students of a run "
                        "have; leave it out, or train it in a run of its own"
                    )

    def _chain_can_be_made(self) -> None:
        num, shares = len(self.generations), self.num_shares
        if num > shares:
            raise ValueError(
                f"chain.shares: {shares} shares of the pool are too few for {num} generations; set {num} or more "
                "(other shares are other rows, so that every generation is done again)"
            )
        if num < 2:
            return
        if unknown := [arm for arm in self.chain.arms if arm not in self.selection.arms]:
            raise ValueError(f"chain.arms: {unknown[0]!r} is not among selection.arms")
        if self.splits.overlap == "report":
            raise ValueError(
                "splits.overlap: report keeps questions that are in two splits, so that a row which trained a student "
                "may calibrate or test the trust in it when it teaches; set drop or refuse"
            )

    def _signals_can_be_made(self) -> None:
        wanting = {"second_teacher": "signals.second_teacher", "reward": "signals.reward.model"}
        for arm in self.selection.used:
            signal = ARMS[arm].signal
            if signal is None:
                continue
            if signal.shots and self.splits.shots is None:
                raise ValueError(f"the {arm} arm shows demonstrations: add splits.shots (the paper: five rows)")
            if signal.shots and self.domain_of("shots") != self.domain_of("pool"):
                raise ValueError("splits.shots: demonstrations are rows of another domain than the pool's")
            if signal.asks != "teacher" and signal.asks not in self.signals.roles:
                key = wanting.get(signal.asks, f"signals.models.{signal.asks}")
                raise ValueError(f"the {arm} arm asks another model than the teacher: set {key}")
        if unread := set(self.signals.options) - set(signals_of(self.selection.used)):
            raise ValueError(f"signals.options: {', '.join(sorted(unread))}: no selected arm asks for such a signal")
        if unread := set(self.trust.options) - set(fitted_of(self.selection.used)) - {self.trust.kind}:
            raise ValueError(f"trust.options: {', '.join(sorted(unread))}: no selected arm fits such a function")
        budget = self.selection.budget
        if (problem := beyond_judge(self) or beyond_verify(self)) is not None:
            raise ValueError(problem)
        if budget.needs_calibration and self.splits.calibration is None:
            raise ValueError(
                f"selection.budget.{budget.rule} is calibrated on labelled rows of the pool's own distribution: "
                "add splits.calibration"
            )

    @property
    def rows(self) -> RowsConfig:
        """The rows of the split."""
        changed = {"splits": self.splits.dealt, **self.ungraded}
        return RowsConfig(**{name: getattr(self, name) for name in RowsConfig.model_fields} | changed)

    @property
    def fitting(self) -> TrustConfig:
        """How trust functions are fitted: ``trust``, on the projection of its states where only that is stored."""
        projected = isinstance(self.teacher.store_states, PcaConfig)
        return self.trust.model_copy(update={"states": ("pca",)}) if projected else self.trust

    def fit_of(self, kind: str) -> TrustConfig:
        """How a kind is fitted: by ``fitting``, or by its own settings where the section names another kind."""
        if kind == self.trust.kind or kind != PAPER_TRUST:
            return self.fitting
        defaults = traits_of(self.domain.name, self.domain.options).defaults.get("trust", {})
        own = with_row({"trust": {**defaults, "kind": kind}, "teacher": self.teacher.model_dump(include={"model"})})
        states = {} if self.fitting is self.trust else {"states": self.fitting.states}
        return TrustConfig(**own["trust"]).model_copy(update=states)

    @property
    def has_states(self) -> bool:
        """Whether labels have hidden states: a model of this run labels, or reads what others labelled."""
        reads = self.teacher.reader is not None and bool(self.fitting.states)
        return reads or (self.teacher.endpoint is None and self.teacher.given is None)

    @property
    def compared(self) -> tuple[str, ...]:
        """The inputs by which splits are compared: the states or, where there are none, numbers of the labels table."""
        if self.has_states:
            return self.fitting.states
        if self.teacher.endpoint is not None:
            return compared(self.teacher.endpoint)
        assert self.teacher.given is not None, "what labels has states, a server or given labels"
        return tuple(self.teacher.given.numbers.values()) or ("mean_logprob",)

    @property
    def num_shares(self) -> int:
        """The shares into which the pool is dealt; a generation labels one of them."""
        return self.chain.shares or (DEFAULT_SHARES if len(self.generations) > 1 else 1)

    def pool_share(self, sizes: Mapping[str, int]) -> int:
        """The rows of the pool that a generation labels, of splits of these ``sizes``."""
        return sizes["pool"] // self.num_shares

    @property
    def students(self) -> dict[str, tuple[ModelConfig, StudentConfig]]:
        """Base and recipe of every student: ``0`` that of the first generation that teaches, ``0 large`` beside it."""
        found = {}
        for index, generation in enumerate(self.generations):
            found[str(index)] = (generation.student, self.student)
            for name, student in generation.students.items():
                found[f"{index} {name}"] = (student.model, student.recipe or self.student)
        return found

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models that are named, by their role in words."""
        roles, judge = self.signals.roles, self.judge
        role = "teacher" if self.teacher.reader is None else "reader"
        named: dict[str, ModelConfig | None] = {role: self.teacher.loaded}
        named |= {f"student {name}": base for name, (base, _) in self.students.items()}
        named["second teacher"] = roles.pop("second_teacher", None)
        named |= {"reward model": roles.pop("reward", None), **roles}
        named["judge"] = None if judge is None else judge.model
        return {role: model for role, model in named.items() if model is not None}

    @property
    def runs_code(self) -> dict[str, str]:
        """The roles among ``models`` whose own Python code may run, each with model and revision."""
        allowed = {role: model for role, model in self.models.items() if model.allow_remote_code}
        return {role: f"{model.path} at {model.revision}" for role, model in allowed.items()}
