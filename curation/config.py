"""The configuration of a run: pydantic models, unknown keys refused with the nearest known one.

Defaults follow the paper where it gives a value (App. "Training Details", "Detailed NTF Architectures"); each choice
that it leaves open is named in docs/method.md. Relative paths of sources and models are relative to the file.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curation.errors import ConfigError

StateName = Literal["prompt_last", "output_first", "output_last", "output_mean"]
PositiveInt = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class PresetSection(Section):
    """A section whose ``preset`` gives the values of the keys that are not named."""

    @classmethod
    def presets(cls) -> Mapping[str, Mapping[str, Any]]:
        """The values of each preset."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        name = value.get("preset", cls.model_fields["preset"].default)
        return {**(cls.presets().get(name, {}) if isinstance(name, str) else {}), **value}


class TrainSection(PresetSection):
    """A recipe that Ray Train runs, and what its workers take."""

    RESOURCES: ClassVar[set[str]] = {"cpus_per_worker", "gpus_per_worker", "max_failures"}
    """Keys that change how a result is made, not what it is."""

    num_workers: PositiveInt = 1
    cpus_per_worker: PositiveInt = 1
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0
    max_failures: Annotated[int, Field(ge=0)] = 2


class SourceConfig(Section):
    """One named input: a file, folder or glob, local or any URL that pyarrow or fsspec takes."""

    path: str
    format: Literal["auto", "parquet", "jsonl", "csv", "lance"] = "auto"
    id_column: str | None = None
    """A column of unique integers to use as row ids; position-based ids otherwise."""


class SplitConfig(Section):
    """A share of one source: exactly ``rows``, a ``fraction`` of its rows, or (neither given) all that is left."""

    source: str = Field(alias="from")
    rows: PositiveInt | None = None
    fraction: Share | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.rows is not None and self.fraction is not None:
            raise ValueError("takes rows or fraction, not both")
        return self


class SplitsConfig(Section):
    """Disjoint parts of the sources, drawn by a seeded permutation of each source's rows."""

    adapt: SplitConfig | None = None
    source: SplitConfig
    calibration: SplitConfig | None = None
    pool: SplitConfig
    test: SplitConfig | None = None
    audit: bool = False
    """Keep the pool's gold labels in an audit table: for purity, the ground-truth arm and oracle budgets."""

    def named(self) -> dict[str, SplitConfig]:
        """The splits that are given, by name, in a fixed order."""
        names = ("adapt", "source", "calibration", "test", "pool")
        return {name: split for name in names if (split := getattr(self, name)) is not None}


class InitConfig(Section):
    """A model from scratch: random weights and a word-level tokenizer of the domain's vocabulary."""

    family: str = "qwen3"
    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt = 4
    num_kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    max_positions: PositiveInt = 256
    extra: dict[str, Any] = {}
    """Further fields of the family's transformers configuration."""

    def shape(self) -> dict[str, Any]:
        """The fields under transformers' own names."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads or self.num_heads,
            "head_dim": self.head_dim or self.hidden_size // self.num_heads,
            "intermediate_size": self.intermediate_size or 3 * self.hidden_size,
            "max_position_embeddings": self.max_positions,
            **self.extra,
        }


class ModelConfig(Section):
    """A causal LM: a local path or hub id, or one made from scratch (``init``)."""

    path: str | None = None
    revision: str | None = None
    adapter: str | None = None
    init: InitConfig | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.path is None) == (self.init is None):
            raise ValueError("takes exactly one of path and init")
        return self


class LoraConfig(Section):
    """LoRA on all linear layers (paper, table of SFT hyperparameters)."""

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class SftConfig(TrainSection):
    """Supervised fine-tuning, loss on the completion's tokens only.

    Preset ``paper``: App. "Training Details", table of SFT hyperparameters. Preset ``scratch``: full weights of a small
    model from random ones, or from a small base.
    """

    preset: Literal["paper", "scratch"] = "paper"
    epochs: PositiveInt | None = None
    """Passes over the rows; unset is the paper's rule: 3 below 2,000 rows, else 1."""
    max_length: PositiveInt = 1024
    global_batch_size: PositiveInt = 128
    micro_batch_size: PositiveInt = 4
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    lora: LoraConfig | None = LoraConfig()
    gradient_checkpointing: bool = True

    @classmethod
    def presets(cls) -> Mapping[str, Mapping[str, Any]]:
        """``paper`` (the defaults) and ``scratch``."""
        scratch = {
            "epochs": 3,
            "max_length": 256,
            "micro_batch_size": 128,
            "learning_rate": 1e-3,
            "lora": None,
            "gradient_checkpointing": False,
        }
        return {"paper": {}, "scratch": scratch}

    def num_epochs(self, num_rows: int) -> int:
        """The number of passes for a training set of ``num_rows``."""
        return self.epochs or (3 if num_rows < 2_000 else 1)


class DecodingConfig(Section):
    """How a completion is drawn; temperature 0 is greedy."""

    max_tokens: PositiveInt = 8
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 is no limit."""
    stop: tuple[str, ...] = ("\n",)
    """Strings that end an answer, besides the tokenizer's end token; cut from the completion."""


class ActorsConfig(Section):
    """The pool of teacher actors and what each takes."""

    min: PositiveInt = 1
    max: PositiveInt = 1
    num_cpus: Annotated[float, Field(gt=0)] = 1
    num_gpus: Annotated[float, Field(ge=0)] = 0
    max_restarts: Annotated[int, Field(ge=0)] = 2
    max_task_retries: Annotated[int, Field(ge=0)] = 2

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self


class ScriptedConfig(Section):
    """The scripted teacher: completions by row id, and faults on demand (tests and dry runs)."""

    completions: tuple[str, ...] = (" e2e4",)
    """One is chosen by a hash of the row id."""
    state_size: PositiveInt = 8
    seconds_per_row: Annotated[float, Field(ge=0)] = 0.0
    log: str | None = None
    """A file that receives a line ``row_id`` for each row labelled, before the row is handed on."""
    crash_rows: tuple[int, ...] = ()
    """Rows that kill the actor's process, each once per file ``<log>.crashed-<row>``."""
    error_rows: tuple[int, ...] = ()
    """Rows that come back as error rows."""


class TeacherConfig(Section):
    """The weak teacher of the first generation and how every teacher labels."""

    backend: Literal["transformers", "scripted"] = "transformers"
    model: ModelConfig | None = None
    adapt: SftConfig | None = None
    """Format adaptation on the ``adapt`` split (paper, App. "Strategy Games"); none where unset."""
    states: tuple[StateName, ...] = ("output_last",)
    state_dtype: Literal["float16", "float32"] = "float16"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    decoding: DecodingConfig = DecodingConfig()
    batch_tokens: PositiveInt = 8192
    """Tokens (prompt, padded, plus answer) in one forward batch."""
    chunk_rows: PositiveInt = 4096
    """Rows of one task and one table fragment: the unit of commit and of what a crash loses."""
    actors: ActorsConfig = ActorsConfig()
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    scripted: ScriptedConfig = ScriptedConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.backend != "scripted" and self.model is None:
            raise ValueError(f"backend {self.backend} needs a model (path or init)")
        if len(set(self.states)) != len(self.states) or not self.states:
            raise ValueError("states must name at least one position, none twice")
        return self


class TrustConfig(TrainSection):
    """The neural trust function and its fit (paper, section "Neural Trust Functions", table of NTF architectures).

    Ours, and to be switched off: early stopping on validation AUC (``patience: null``) and standardised inputs
    (``standardise: false``). Not given in the paper: stochastic depth, expansion, batch size, epochs.
    """

    preset: Literal["world_knowledge", "quantitative_reasoning", "strategy_games"] = "strategy_games"
    states: tuple[StateName, ...] = ("output_last",)
    depth: PositiveInt = 4
    width: PositiveInt = 512
    expansion: Annotated[float, Field(gt=0)] = 2.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    stochastic_depth: Annotated[float, Field(ge=0, lt=1)] = 0.1
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    class_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Strength of the class reweighting: class c weighs (N / (2 N_c)) ** class_weight; 0 is none, 1 is balanced."""
    batch_size: PositiveInt = 256
    max_epochs: PositiveInt = 50
    patience: PositiveInt | None = 5
    """Epochs without a better validation AUC before stopping; ``null`` runs all epochs and keeps the last."""
    standardise: bool = True
    validation_fraction: Share = 0.2

    @classmethod
    def presets(cls) -> Mapping[str, Mapping[str, Any]]:
        """One a domain, the values of the paper's table."""
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


class BudgetConfig(Section):
    """How many rows every arm selects: ``n``, or the paper's oracle count of right weak labels, at most ``cap``."""

    n: PositiveInt | None = None
    oracle: bool = False
    cap: PositiveInt = 2_000

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.n is None) != self.oracle:
            raise ValueError("takes n (a positive integer) or oracle: true, one of them")
        return self


ArmName = Literal["naive", "internal_confidence", "neural", "ground_truth"]


class SelectionConfig(Section):
    """The arms and their common budget."""

    budget: BudgetConfig
    arms: tuple[ArmName, ...] = ("naive", "internal_confidence", "neural", "ground_truth")

    @model_validator(mode="after")
    def _arms(self) -> Self:
        if len(set(self.arms)) != len(self.arms) or not self.arms:
            raise ValueError("arms must name at least one arm, none twice")
        return self


class GenerationConfig(Section):
    """One generation: the student's un-adapted base."""

    student: ModelConfig


class EvaluationConfig(Section):
    """How students are tested; greedy unless said otherwise."""

    decoding: DecodingConfig = DecodingConfig()


class RayConfig(Section):
    """Where Ray runs: ``address`` of a cluster, or a local one with ``num_cpus`` (all cores where unset)."""

    address: str | None = None
    num_cpus: PositiveInt | None = None


class RunConfig(Section):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    run_dir: str | None = None
    """Where the run keeps its tables; ``runs/<name>`` of the working directory where unset."""
    seed: Annotated[int, Field(ge=0)] = 0
    domain: str = "chess"
    sources: Annotated[dict[str, SourceConfig], Field(min_length=1)]
    splits: SplitsConfig
    teacher: TeacherConfig
    trust: TrustConfig = TrustConfig()
    selection: SelectionConfig
    student: SftConfig = SftConfig()
    """How every student is trained."""
    generations: tuple[GenerationConfig, ...] = ()
    """The students' bases, one a generation; none: curate only, train nothing."""
    chain_arm: ArmName = "neural"
    """The arm whose student teaches the next generation."""
    evaluation: EvaluationConfig = EvaluationConfig()
    commit_seconds: Annotated[float, Field(ge=0)] = 2.0
    ray: RayConfig = RayConfig()

    @property
    def directory(self) -> Path:
        """The run directory, absolute: workers have working directories of their own."""
        return Path(self.run_dir or f"runs/{self.name}").absolute()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, split in self.splits.named().items():
            if split.source not in self.sources:
                known = ", ".join(sorted(self.sources))
                raise ValueError(f"splits.{name}.from: {split.source!r} is not one of the sources ({known})")
        if missing := set(self.trust.states) - set(self.teacher.states):
            raise ValueError(f"trust.states: {', '.join(sorted(missing))} not among teacher.states; add it there")
        if self.teacher.adapt is not None and self.splits.adapt is None:
            raise ValueError("teacher.adapt needs a split: add splits.adapt")
        if self.generations and self.splits.test is None:
            raise ValueError("generations need a test split: add splits.test")
        needs_gold = self.selection.budget.oracle or "ground_truth" in self.selection.arms
        if needs_gold and not self.splits.audit:
            raise ValueError(
                "the ground_truth arm and the oracle budget read the pool's gold labels: "
                "set splits.audit: true, or drop them"
            )
        if len(self.generations) > 1 and self.chain_arm not in self.selection.arms:
            raise ValueError(f"chain_arm: {self.chain_arm!r} is not among selection.arms")
        return self


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a YAML file, with ``a.b=c`` overrides (values are YAML), paths made absolute.

    Raises:
        ConfigError: a file that is missing or no YAML mapping, a broken rule, an unknown key.
    """
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); `curate init` writes a commented one") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds no mapping; `curate init` writes a commented one")
    for override in overrides:
        _override(raw, override)
    return _absolute(parse_config(raw, str(path)), path.resolve().parent)


def parse_config(raw: Mapping[str, Any], where: str = "config") -> RunConfig:
    """The configuration in a mapping; errors are named by key, with ``where`` before it."""
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        problems = [_explain(RunConfig, item) for item in error.errors()]
        raise ConfigError(f"{where}: {'; '.join(problems)}") from error


def _override(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r}: is not of the form a.b=value")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is no YAML") from error
    *parents, last = key.split(".")
    node: Any = raw
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else node[_place(node, parent, text)]
        if not isinstance(node, dict | list):
            raise ConfigError(f"--set {text!r}: {parent} is a value, not a section")
    node[last if isinstance(node, dict) else _place(node, last, text)] = parsed


def _place(node: list[Any], part: str, text: str) -> int:
    """The place in a list that a part of a key names."""
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(f"--set {text!r}: {part!r} is not one of the {len(node)} places of the list, counted from 0")
    return int(part)


def _absolute(config: RunConfig, root: Path) -> RunConfig:
    def source(item: SourceConfig) -> SourceConfig:
        local = "://" not in item.path
        return item.model_copy(update={"path": str(root / item.path)}) if local else item

    def model(item: ModelConfig) -> ModelConfig:
        update = {
            key: str(root / value)
            for key in ("path", "adapter")
            if (value := getattr(item, key)) is not None and (root / value).exists()
        }
        return item.model_copy(update=update)

    teacher = config.teacher
    if teacher.model is not None:
        teacher = teacher.model_copy(update={"model": model(teacher.model)})
    return config.model_copy(
        update={
            "sources": {name: source(item) for name, item in config.sources.items()},
            "teacher": teacher,
            "generations": tuple(g.model_copy(update={"student": model(g.student)}) for g in config.generations),
        }
    )


def _explain(root: type[BaseModel], error: Mapping[str, Any]) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location) or "(top level)"
    if error["type"] == "extra_forbidden":
        known = _known_keys(root, location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("missing", "value_error"):
        return f"{key}: {message}" if location else message
    return f"{key}: {error['input']!r}: {message}"


def _known_keys(root: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys of the section at a location, following models through optional, list and mapping types."""
    model: type[BaseModel] | None = root
    inside = False  # a list or a mapping: the next part is a place or a name in it, not a key of ours
    for part in location:
        if inside:
            inside = False
            continue
        fields = {(field.alias or name): field for name, field in model.model_fields.items()} if model else {}
        if part not in fields:
            return []
        annotation = fields[part].annotation
        model, inside = _model_in(annotation), _is_container(annotation)
    return sorted((field.alias or name) for name, field in model.model_fields.items()) if model else []


def _is_container(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_container(get_args(annotation)[0])
    return get_origin(annotation) in (tuple, list, dict)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, tuple, dict, list, Annotated) or get_args(annotation):
        return next((model for arg in get_args(annotation) if (model := _model_in(arg)) is not None), None)
    return None
