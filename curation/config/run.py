"""The configuration of a whole run: all its sections, checked against each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, create_model, model_validator

from curation.arms import PAPER_TRUST
from curation.config.base import Directory, PositiveInt, Section
from curation.config.chain import DEFAULT_SHARES, ChainConfig
from curation.config.defaults import fill_defaults, find_traits
from curation.config.endpoint import get_compared_numbers, is_endpoint, with_endpoint
from curation.config.evaluation import EvaluationConfig
from curation.config.given import choose_arms, is_given, with_given
from curation.config.inputs import DomainConfig, LimitedSplits, RowsConfig
from curation.config.limits import iter_problems
from curation.config.models import (
    GenerationConfig,
    ModelConfig,
    SftConfig,
    StudentConfig,
    as_student_config,
    with_recipes,
)
from curation.config.prices import PricesConfig
from curation.config.selection import GOLD_ARMS, CoreSelection
from curation.config.signals import JudgeConfig, SignalsConfig
from curation.config.teacher import PcaConfig, TeacherConfig
from curation.config.trust import TrustConfig, with_row
from curation.config.tune import TuneConfig
from curation.features import list_extensions, sections
from curation.json_types import Json
from curation.storage.paths import Place, to_place


class RayConfig(Section):
    """Location of Ray: a cluster, or this machine with ``num_cpus``."""

    address: str | None = None
    """``HOST:PORT`` of a cluster's head, or ``auto`` for the Ray that runs on this machine. Unset: the environment's
    ``RAY_ADDRESS`` if set, as in a Ray job; else Ray starts on this machine."""
    num_cpus: PositiveInt | None = None
    """CPUs of the Ray that starts on this machine; unset: all cores."""
    max_stages: PositiveInt | None = None
    """Maximum number of concurrent stages. Unset: as many as the cluster's CPUs and GPUs have room for."""


class CoreConfig(RowsConfig):
    """A whole run, without the sections of features."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    """The name of the run in reports and, unless ``run_dir`` is set, of its directory."""
    run_dir: Directory | None = None
    """The run's directory, a path or a URL (``s3://``, ``gs://``). Unset: ``runs/<name>`` in the working directory."""
    chat_preset: Literal["qwen3", "gemma3", "llama3"] | None = None
    """Model family whose use of chat templates in the paper (App. "Mathematical Problem Solving") fills unset
    ``chat_template`` keys of teacher, student and evaluation."""
    splits: LimitedSplits
    teacher: TeacherConfig
    trust: TrustConfig = TrustConfig()
    tune: TuneConfig = TuneConfig()
    """Settings of the search of ``curate tune`` and ``trust.search``."""
    signals: SignalsConfig = SignalsConfig()
    judge: JudgeConfig | None = None
    selection: CoreSelection
    student: SerializeAsAny[Annotated[StudentConfig, BeforeValidator(as_student_config)]] = SftConfig()
    """Training of every student, unless a further student has its own recipe."""
    generations: tuple[GenerationConfig, ...] = ()
    """The students' bases, one entry per generation. Empty: curate only, train nothing."""
    chain: ChainConfig = ChainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    commit_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Seconds between two commits of a pass; more if commits are slow."""
    fragment_mb: PositiveInt = 256
    """Size of a table fragment after the compaction that ends a pass, in MiB."""
    ray: RayConfig = RayConfig()
    prices: PricesConfig | None = None
    """Prices by which ``curate plan`` and the report compute the cost of labelling."""
    report_rows: Annotated[int, Field(ge=0, le=100)] = 5
    """Number of rows of each kind (selected, rejected, confidently wrong, unparsed) shown with texts in the report."""

    CHAT_PRESETS: ClassVar[Mapping[str, Mapping[str, bool]]] = {
        "qwen3": {"teacher": False, "student": False, "evaluation": True},
        "gemma3": {"teacher": True, "student": False, "evaluation": True},
        "llama3": {"teacher": True, "student": False, "evaluation": True},
    }

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, value: object) -> Any:
        """Fill in keys left out: gold arms, given labels, the domain's defaults, chat templates, students' recipes."""
        if not isinstance(value, Mapping):
            return value
        found: Json = dict(value)
        for fill in (cls._with_gold_arms, cls._with_labels, cls._with_domain, cls._with_chat, cls._with_recipes):
            found = fill(found)
        return found

    @classmethod
    def _with_gold_arms(cls, value: Json) -> Json:
        """Add the gold arms to the default arms if there is an audit set; ``teacher.grade`` gives no gold labels."""
        splits, selection, teacher = value.get("splits"), value.get("selection"), value.get("teacher")
        is_graded = isinstance(teacher, Mapping) and teacher.get("grade") is not None
        is_audited = isinstance(splits, Mapping) and splits.get("audit") is True
        if not is_audited or is_graded or not isinstance(selection, Mapping):
            return value
        arms = (*choose_arms(teacher, CoreSelection.model_fields["arms"].default), *GOLD_ARMS)
        return {**value, "selection": {"arms": arms, **selection}}

    @classmethod
    def _with_labels(cls, value: Json) -> Json:
        arms = choose_arms(teacher := value.get("teacher"), CoreSelection.model_fields["arms"].default)
        if is_endpoint(teacher):
            return with_endpoint(value, arms)
        return with_given(value, cls.model_fields["domain"].default.name, arms) if is_given(teacher) else value

    @classmethod
    def _with_domain(cls, value: Json) -> Json:
        try:
            domain = DomainConfig.model_validate(value.get("domain", cls.model_fields["domain"].default))
        except ValidationError:
            return value  # refused as such
        found = fill_defaults(value, find_traits(domain.name, domain.options).defaults)
        trust = value.get("trust")
        return found if isinstance(trust, Mapping) and "preset" in trust else with_row(found)

    @classmethod
    def _with_chat(cls, value: Json) -> Json:
        family = value.get("chat_preset")
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

    @classmethod
    def _with_recipes(cls, value: Json) -> Json:
        """Return the sections with further students' recipes completed by the keys of the section ``student``."""
        common = value.get("student") or {}
        common = common.model_dump(mode="json") if isinstance(common, StudentConfig) else common
        if not isinstance(value.get("generations"), Sequence) or not isinstance(common, Mapping):
            return value
        return {**value, "generations": [with_recipes(item, common) for item in value["generations"]]}

    @property
    def directory(self) -> Place:
        """The run directory, absolute: workers have working directories of their own."""
        return to_place(self.run_dir or f"runs/{self.name}").absolute()

    @property
    def evaluations(self) -> Place | None:
        """The cache of test answers for other runs; ``None`` without one."""
        cache = self.evaluation.cache
        if isinstance(cache, str):
            return to_place(cache).absolute()
        return self.directory.parent / ".evaluations" if cache else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (problem := next(iter_problems(self), None)) is not None:
            raise ValueError(problem)
        return self

    @property
    def rows(self) -> RowsConfig:
        """The part of the configuration that defines the rows, without checks."""
        changed = {"splits": self.splits.dealt, **self.ungraded}
        return RowsConfig(**{name: getattr(self, name) for name in RowsConfig.model_fields} | changed)

    @property
    def fitting(self) -> TrustConfig:
        """Settings that fit trust functions: ``trust``, with the projection of its states if only that is stored."""
        projected = isinstance(self.teacher.store_states, PcaConfig)
        return self.trust.model_copy(update={"states": ("pca",)}) if projected else self.trust

    def fit_of(self, kind: str) -> TrustConfig:
        """Return the settings that fit a kind: ``fitting``, or the paper's for ``ntf`` if it is not ``trust.kind``."""
        if kind == self.trust.kind or kind != PAPER_TRUST:
            return self.fitting
        defaults = find_traits(self.domain.name, self.domain.options).defaults.get("trust", {})
        own = with_row({"trust": {**defaults, "kind": kind}, "teacher": self.teacher.model_dump(include={"model"})})
        states = {} if self.fitting is self.trust else {"states": self.fitting.states}
        return TrustConfig(**own["trust"]).model_copy(update=states)

    @property
    def has_states(self) -> bool:
        """Whether labels have hidden states: a model of this run labels, or reads others' labels."""
        reads = self.teacher.reader is not None and bool(self.fitting.states)
        return reads or (self.teacher.endpoint is None and self.teacher.given is None)

    @property
    def compared(self) -> tuple[str, ...]:
        """The inputs by which splits are compared: the states or, where there are none, numbers of the labels table."""
        return self.fitting.states if self.has_states else self.numbers

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers of the labels table that trust reads instead of states if no model of this run labels."""
        if self.teacher.endpoint is not None:
            return get_compared_numbers(self.teacher.endpoint)
        given = self.teacher.given
        return ("mean_logprob",) if given is None or not given.confidence else tuple(given.numbers.values())

    @property
    def num_shares(self) -> int:
        """Number of shares into which the pool is split; each generation labels one."""
        return self.chain.shares or (DEFAULT_SHARES if len(self.generations) > 1 else 1)

    def pool_share(self, sizes: Mapping[str, int]) -> int:
        """Return the number of pool rows that a generation labels, given the ``sizes`` of the splits."""
        return sizes["pool"] // self.num_shares

    @property
    def students(self) -> dict[str, tuple[ModelConfig, StudentConfig]]:
        """Base and recipe of every student: ``0`` is the first generation's that teaches, ``0 large`` one beside it."""
        found = {}
        for index, generation in enumerate(self.generations):
            found[str(index)] = (generation.student, self.student)
            for name, student in generation.students.items():
                found[f"{index} {name}"] = (student.model, student.recipe or self.student)
        return found

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models that the configuration names, by their role in words."""
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


if TYPE_CHECKING:
    RunConfig: TypeAlias = CoreConfig
    SelectionConfig: TypeAlias = CoreSelection
else:
    SelectionConfig = create_model(
        "SelectionConfig",
        __base__=(*list_extensions("selection"), CoreSelection),
        __module__=__name__,
        __doc__="The arms and their common budget.",
    )
    _sections = {**sections(CoreConfig.model_fields.keys(), "run"), "selection": (SelectionConfig, ...)}
    RunConfig = create_model("RunConfig", __base__=CoreConfig, __module__=__name__, __doc__="A whole run.", **_sections)
