"""The configuration of a whole run: all its sections, checked against each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, create_model, model_validator

from curation.arms import FREE, PAPER_TRUST, REFERENCE_ARM, REFERENCE_GOLD
from curation.config.base import DISTINCT, Directory, PositiveInt, Price, Section
from curation.config.evaluation import EvaluationConfig, JudgeConfig, SignalsConfig
from curation.config.external import COLUMN_KEYS, COUNTS, EXTERNAL, GIVEN, NUMBERS, as_tuple
from curation.config.files import merge_mappings
from curation.config.inputs import DomainConfig, RowsConfig
from curation.config.limits import iter_problems
from curation.config.models import GenerationConfig, ModelConfig, SftConfig, StudentConfig, as_student_config
from curation.config.selection import CoreSelection
from curation.config.teacher import TeacherConfig
from curation.config.trust import TrustConfig, TuneConfig, with_row
from curation.features import list_extensions, sections
from curation.json_types import Json, JsonView
from curation.label_columns import make_given_column
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


class PricesConfig(Section):
    """Prices, all optional: items without a price are not in the sum.

    No stage reads prices, so a change redoes nothing.
    """

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Three capital letters (ISO 4217), for display alone: nothing is converted."""
    gpu_hour: Price | None = None
    """Price of one GPU for an hour, with its share of the node."""
    cpu_hour: Price | None = None
    """Price of one CPU for an hour. Give an actor's share of a node's price by one of the two."""
    per_million_prompt_tokens: Price | None = None
    """Price of a million tokens that the first teacher reads. Unset: ``teacher.endpoint.price``, if given."""
    per_million_output_tokens: Price | None = None
    """Price of a million tokens that the first teacher writes."""


class StopConfig(Section):
    """Rules that stop a chain, applied after each generation but the last, without gold labels of the pool.

    Any single rule stops the chain. The rules read numbers of the trust function of the arm that teaches or, if that
    arm ranks by no score of a labelled split, of the arm ``trust``.
    """

    min_auc: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Stop unless the 95 % interval of the AUC on parsed validation rows of the source lies above this."""
    max_shift: Annotated[float, Field(gt=0.5, le=1)] = 0.8
    """Stop if a classifier tells the pool's hidden states from those of the calibration split (without one: of the
    source) with an AUC whose 95 % interval lies above this."""


class ChainConfig(Section):
    """Settings of a chain, read if ``generations`` has at least two entries."""

    arms: Annotated[tuple[str, ...], Field(min_length=1), DISTINCT] = (REFERENCE_ARM,)
    """The arms whose students teach the next generation; each arm has a chain. The first is the main chain, whose
    generations also train the ``selection.arms`` that have no chain of their own."""
    shallow: Annotated[tuple[Literal["first_teacher", "predecessor"], ...], DISTINCT] = ()
    """Baseline students that no chain led to. ``first_teacher``: every base, trained on what each of ``arms`` selected
    from the first teacher's labels. ``predecessor``: the last base, taught by the base before it, which is adapted like
    the first teacher."""
    shares: PositiveInt | None = None
    """Number of equal shares into which the pool is split; each generation labels one. More shares than generations
    leave rows for generations that are added later. Unset: 4 with several generations, else 1."""
    stop: StopConfig | None = StopConfig()
    """Rules that stop the chain; null never stops it."""


class CoreConfig(RowsConfig):
    """A whole run, without the sections of features."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    """The name of the run in reports and, unless ``run_dir`` is set, of its directory."""
    run_dir: Directory | None = None
    """The run's directory, a path or a URL (``s3://``, ``gs://``). Unset: ``runs/<name>`` in the working directory."""
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

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, value: object) -> Any:
        return fill_sections(value) if isinstance(value, Mapping) else value

    @property
    def directory(self) -> Place:
        """The run directory, absolute: workers have working directories of their own."""
        return to_place(self.run_dir or f"runs/{self.name}").absolute()

    def _iter_problems(self) -> Iterator[str]:
        yield from iter_problems(self)

    @property
    def rows(self) -> RowsConfig:
        """The part of the configuration that defines the rows, without checks."""
        changed = {"splits": self.splits.without({"max_error_rate"}), **self.ungraded}
        return RowsConfig(**{name: getattr(self, name) for name in RowsConfig.model_fields} | changed)

    def fit_of(self, kind: str) -> TrustConfig:
        """Return the settings that fit a kind: ``trust``, or the paper's for ``ntf`` if it is not ``trust.kind``."""
        if kind == self.trust.kind or kind != PAPER_TRUST:
            return self.trust
        defaults = self.domain.traits.defaults.get("trust", {})
        return TrustConfig(**with_row({**defaults, "kind": kind}, self.teacher.model))

    @property
    def has_states(self) -> bool:
        """Whether labels have hidden states: a model of this run labels, or reads others' labels."""
        reads = self.teacher.reader is not None and bool(self.trust.states)
        return reads or (self.teacher.endpoint is None and self.teacher.given is None)

    @property
    def compared(self) -> tuple[str, ...]:
        """The inputs by which splits are compared: the states or, where there are none, numbers of the labels table."""
        return self.trust.states if self.has_states else self.numbers

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers of the labels table that trust reads instead of states if no model of this run labels."""
        if self.teacher.endpoint is not None:
            return NUMBERS if self.teacher.endpoint.top_logprobs else COUNTS
        given = self.teacher.given
        return ("mean_logprob",) if given is None or not given.confidence else tuple(given.numbers.values())

    @property
    def num_shares(self) -> int:
        """Number of shares into which the pool is split; each generation labels one."""
        return self.chain.shares or (4 if len(self.generations) > 1 else 1)

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
        named: dict[str, ModelConfig | None] = {self.teacher.role: self.teacher.loaded}
        named |= {f"student {name}": base for name, (base, _) in self.students.items()}
        named |= {"second teacher": roles.pop("second_teacher", None), "reward model": roles.pop("reward", None)}
        named |= {**roles, "judge": None if judge is None else judge.model}
        return {role: model for role, model in named.items() if model is not None}

    @property
    def runs_code(self) -> dict[str, str]:
        """The roles among ``models`` whose own Python code may run, each with model and revision."""
        return {role: f"{of.path} at {of.revision}" for role, of in self.models.items() if of.allow_remote_code}


def fill_sections(value: JsonView) -> Json:
    """Return the sections of a run with the keys that they leave out and that follow from other sections.

    A section that is not a mapping stays unchanged: validation refuses it later, or it was made in Python.
    """
    filled, default = dict(value), CoreConfig.model_fields["domain"].default
    teacher, splits = (found if isinstance(found := value.get(name), Mapping) else {} for name in ("teacher", "splits"))
    server = found if isinstance(found := teacher.get("endpoint"), Mapping) else {}
    backend = teacher.get("backend")
    is_elsewhere = backend in EXTERNAL and teacher.get("reader") is None

    # Gold labels add arms, unless they are grades alone (teacher.grade). Labels from elsewhere add an arm for each
    # given number; they have no hidden states, and only the free signals that come with them.
    arms: Sequence[str] = CoreSelection.model_fields["arms"].default
    if splits.get("audit") is True and teacher.get("grade") is None:
        arms = (*arms, REFERENCE_GOLD, "ground_truth")
    implied: dict[str, Json] = {"selection": {}}
    if is_elsewhere:
        implied |= {"teacher": {"states": ()}, "trust": {"states": ()}}
        arms = [arm for arm in arms if arm not in FREE or (backend != GIVEN and server.get("top_logprobs") != 0)]
    if backend == GIVEN:
        columns = {key: teacher[key] for key in COLUMN_KEYS if teacher.get(key) is not None}
        named = as_tuple(columns.get("confidence", ()))
        numbers = [make_given_column(name) for name in named if isinstance(name, str)]
        arms = list(dict.fromkeys([*arms[:1], *numbers, *arms[1:]]))
        implied["selection"] = {"gold_rollouts": {"source": "answers"}}
        if "completion" in columns:
            filled["domain"] = _add_columns(value.get("domain", default.name), columns)
            if isinstance(sources := value.get("sources"), Mapping):
                filled["sources"] = {
                    name: {**source, "domain": _add_columns(source["domain"], columns)}
                    if isinstance(source, Mapping) and source.get("domain") is not None
                    else source
                    for name, source in sources.items()
                }
    elif backend in EXTERNAL and server.get("kind", "openai") == "openai":
        implied["teacher"] = implied.get("teacher", {}) | {"chat_template": True}
    if backend in EXTERNAL and isinstance(price := server.get("price"), Mapping):
        of = {"per_million_prompt_tokens": price.get("input"), "per_million_output_tokens": price.get("output")}
        implied["prices"] = of
    implied["selection"]["arms"] = tuple(arms)
    for section, keys in implied.items():
        if isinstance(own := value.get(section) or {}, Mapping):
            filled[section] = {**keys, **own}
    _fill_domain_defaults(filled)
    _fill_recipes(filled)
    return filled


def _add_columns(domain: object, columns: JsonView) -> Any:
    named = {"name": domain} if isinstance(domain, str) else domain
    return {**named, "given_labels": dict(columns)} if isinstance(named, Mapping) else named


def _fill_domain_defaults(filled: Json) -> None:
    """Complete sections by the domain's own defaults (``curation.domains.Domain``).

    A file that sets ``evaluation.decoding.temperature: 0`` wants a greedy test: it takes only the length and the stop
    strings from the domain's sampled test, and one run. A preset of ``trust`` in the file replaces all of the domain's
    trust defaults.
    """
    try:
        domain = DomainConfig.model_validate(filled.get("domain", CoreConfig.model_fields["domain"].default))
    except ValidationError:
        return  # validation refuses it later
    trust = filled.get("trust")
    has_preset = isinstance(trust, Mapping) and "preset" in trust
    for section, values in domain.traits.defaults.items():
        own = filled.get(section, {})
        if not isinstance(own, Mapping) or (section == "teacher" and section not in filled):
            continue
        values = dict(values)
        decoding = own.get("decoding")
        if section == "evaluation" and isinstance(decoding, Mapping) and decoding.get("temperature") == 0:
            kept = {"max_tokens", "stop"}
            values["decoding"] = {key: item for key, item in values.get("decoding", {}).items() if key in kept}
            values.pop("num_runs", None)
        if merged := own if section == "trust" and has_preset else merge_mappings(values, own):
            filled[section] = merged
    if not has_preset and isinstance(filled.get("trust"), Mapping):
        teacher = filled.get("teacher")
        model = teacher.get("model") if isinstance(teacher, Mapping) else getattr(teacher, "model", None)
        filled["trust"] = with_row(filled["trust"], model)


def _fill_recipes(filled: Json) -> None:
    """Complete the recipes of further students by the keys of the section ``student``."""
    common = filled.get("student") or {}
    common = common.model_dump(mode="json") if isinstance(common, StudentConfig) else common
    if not isinstance(filled.get("generations"), Sequence) or not isinstance(common, Mapping):
        return
    filled["generations"] = generations = list(filled["generations"])
    for place, generation in enumerate(generations):
        students = generation.get("students") if isinstance(generation, Mapping) else None
        if isinstance(students, Mapping):
            completed = {
                name: {**student, "recipe": {**common, **student["recipe"]}}
                for name, student in students.items()
                if isinstance(student, Mapping) and isinstance(student.get("recipe"), Mapping)
            }
            generations[place] = {**generation, "students": {**students, **completed}}


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
