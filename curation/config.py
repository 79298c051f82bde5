"""The configuration of a run: pydantic models, unknown keys refused with the nearest known one.

Defaults follow the paper where it gives a value (App. "Training Details", "Detailed NTF Architectures"); each choice
that it leaves open is named in docs/method.md. Relative paths of sources and models are relative to the file.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from curation.arms import ARMS, REFERENCE_ARM, signals_of
from curation.places import Place, place
from curation.states import beyond, others_of, parse


def _state(name: str) -> str:
    parse(name)
    return name


def _trust_state(name: str) -> str:
    return name if name == "pca" else _state(name)


def _run_dir(path: str) -> str:
    place(path)
    return path


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


class DomainConfig(Section):
    """A task interface by ``name`` (registered, an entry point's, or ``module:Class``); all other keys are its options.

    A plain string is the name alone.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """What the domain's class is constructed with."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class SourceConfig(Section):
    """One named input: a file, folder or glob, local or any URL that pyarrow or fsspec takes."""

    path: str
    domain: DomainConfig | None = None
    """The rows' task interface where it is another than the run's: to measure trust out of its domain."""
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


class ProbeConfig(SplitConfig):
    """Labelled rows on which the fitted trust function is measured, beside the validation rows and the pool."""

    regime: Literal["ID", "OOD-dist", "OOD-domain"]
    """In the paper's terms (section "Evaluation"): the fit's own benchmark, another one, another task interface."""


class SplitsConfig(Section):
    """Disjoint parts of the sources, drawn by a seeded permutation of each source's rows."""

    adapt: SplitConfig | None = None
    source: SplitConfig
    calibration: SplitConfig | None = None
    """Labelled rows of the pool's own distribution, on which a risk budget is calibrated."""
    shots: SplitConfig | None = None
    """The fixed demonstrations of the ICL arm (five in the paper)."""
    pool: SplitConfig
    test: SplitConfig | None = None
    probes: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")], ProbeConfig] = {}
    """Further labelled sets on which trust is measured, by name: fit on one source, evaluate on many."""
    audit: bool = False
    """Keep the pool's gold labels in an audit table: for purity, the ground-truth arm and oracle budgets."""

    def named(self) -> dict[str, SplitConfig]:
        """The splits that are given, by name, in a fixed order; a probe's name starts with ``probe-``."""
        names = ("adapt", "source", "calibration", "shots", "test", "pool")
        given = {name: split for name in names if (split := getattr(self, name)) is not None}
        return given | {f"probe-{name}": probe for name, probe in self.probes.items()}


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
    chat_template: bool = False
    """Learn answers to prompts in the tokenizer's chat template, a prompt as one user turn."""

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
    """How a completion is drawn, temperature 0 is greedy; of requests with options, how one is chosen."""

    max_tokens: PositiveInt = 8
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 is no limit."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Tokens less likely than this share of the likeliest one are not drawn; 0 is no limit."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Taken from the logits of tokens that the answer already has (the prompt's do not count), greedy or not."""
    normalise_options: bool = False
    """Choose an option by the mean log-probability of its tokens; off, as in the paper: by their sum."""
    stop: tuple[str, ...] = ("\n",)
    """Strings that end an answer, besides the tokenizer's end token; cut from the completion."""


class ActorsConfig(Section):
    """The pool of teacher actors and what each takes."""

    min: PositiveInt = 1
    max: PositiveInt = 1
    initial: PositiveInt | None = None
    """How many are asked for at the start of a pass, though no more than it has chunks; ``min`` where not set. On a
    cluster that grows, nodes for all of them then come at once, not each time for about twice as many."""
    num_cpus: Annotated[float, Field(gt=0)] = 1
    num_gpus: Annotated[float, Field(ge=0)] = 0
    max_restarts: Annotated[int, Field(ge=0)] = 8
    """How often in a row an actor's process may die before it has done anything, until the run gives up."""
    max_row_retries: Annotated[int, Field(ge=0)] = 1
    """How often a row is tried again whose process died on it alone, before it is an error row (``poison``)."""
    hang_seconds: Annotated[float, Field(gt=0)] = 7200
    """An actor whose model gives no row for so long while it works is ended, for Ray to restart it; more than the
    longest answers take. vLLM is watched more closely (``vllm.hang_seconds``)."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        if self.initial is not None and not self.min <= self.initial <= self.max:
            raise ValueError(f"initial {self.initial} is not between min {self.min} and max {self.max}")
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
    poison_rows: tuple[int, ...] = ()
    """Rows that kill the actor's process whenever they are labelled."""
    hang_rows: tuple[int, ...] = ()
    """Rows on which the teacher hangs for ever."""
    error_rows: tuple[int, ...] = ()
    """Rows that come back as error rows."""


class VllmConfig(Section):
    """The engine of the vLLM backend."""

    engine: dict[str, Any] = {}
    """Arguments of vLLM's ``EngineArgs`` by name; unknown ones are refused.

    ``tensor_parallel_size: 2`` wants ``actors.num_gpus: 2``; with a fraction of a GPU an actor,
    ``gpu_memory_utilization`` is nine tenths of that fraction unless it is given. Where ``teacher.states`` names other
    layers than the last, ``enforce_eager`` is set, which is slower: CUDA graphs and compiled code would be recorded
    without those layers."""
    hang_seconds: Annotated[float, Field(gt=0)] = 300
    """A step of the engine that takes longer ends the actor's process, for Ray to restart it."""


class PcaConfig(Section):
    """Store principal components of the hidden states, fitted on the source split.

    Paper, App. "Dimensionality Ablations": 256 of 1,024 numbers lose nothing.
    """

    pca: PositiveInt
    """How many, over all of ``trust.states`` side by side."""


class TeacherConfig(Section):
    """The weak teacher of the first generation and how every teacher labels."""

    backend: Literal["transformers", "vllm", "auto", "scripted"] = "transformers"
    """``auto`` takes vLLM where a probe finds that it can run the model, else transformers."""
    model: ModelConfig | None = None
    adapt: SftConfig | None = None
    """Format adaptation on the ``adapt`` split (paper, App. "Strategy Games"); none where unset."""
    states: tuple[Annotated[str, AfterValidator(_state)], ...] = ("output_last",)
    """The hidden states to keep: ``prompt_last``, ``output_first``, ``output_last``, ``output_mean`` are the last
    layer's, ``layer<L>_<position>`` are another one's (``curation.states``)."""
    state_dtype: Literal["float16", "float32"] = "float16"
    store_states: bool | PcaConfig = True
    """What is stored of the hidden states; of the source split, which trust is fitted on, all of them in any case.

    ``true``: all, so that another trust function scores the labels that are there. ``false``: scores in their place,
    given by the labelling actors, 8 bytes a row and trust function (and the states of some 5,000 rows, for the shift
    test); the other splits are then labelled after the fit, and labelled again where the fit changes. ``{pca: k}``:
    k numbers a row; labelled again where the projection changes (``trust.states``, ``trust.validation_fraction``)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    decoding: DecodingConfig = DecodingConfig()
    chat_template: bool = False
    """Wrap a prompt as one user turn of the tokenizer's chat template; off, as the paper labels with Qwen3."""
    batch_tokens: PositiveInt = 8192
    """Tokens (prompt, padded, plus answer) in one forward batch."""
    chunk_rows: PositiveInt = 4096
    """Rows of one task and one table fragment: the unit of commit and of what a crash loses."""
    actors: ActorsConfig = ActorsConfig()
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    vllm: VllmConfig = VllmConfig()
    scripted: ScriptedConfig = ScriptedConfig()

    @field_validator("store_states", mode="before")
    @classmethod
    def _storage(cls, value: Any) -> Any:
        size = value.get("pca") if isinstance(value, Mapping) and set(value) == {"pca"} else None
        if isinstance(value, bool | PcaConfig) or (type(size) is int and size > 0):
            return value
        raise ValueError(f"takes true, false or {{pca: k}} with a whole number k above 0; found {value!r}")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.backend != "scripted" and self.model is None:
            raise ValueError(f"backend {self.backend} needs a model (path or init)")
        if len(set(self.states)) != len(self.states) or not self.states:
            raise ValueError("states must name at least one position, none twice")
        ranks, num_gpus = self.vllm.engine.get("tensor_parallel_size", 1), self.actors.num_gpus
        if num_gpus and ranks not in (1, num_gpus):
            raise ValueError(
                f"vllm.engine.tensor_parallel_size {ranks} and actors.num_gpus {num_gpus:g} differ: a tensor-parallel "
                "group is one actor with a GPU a rank, all on one node; set both alike"
            )
        if self.model is not None and self.model.init is not None:
            problem = beyond(self.states, self.model.init.num_layers)
            if problem is not None:
                raise ValueError(f"states: {problem}")
        eager = self.vllm.engine.get("enforce_eager", True)
        if not eager and others_of(self.states):
            raise ValueError(
                f"vllm.engine.enforce_eager: {eager!r} cannot be used where states names other layers than the last: "
                "CUDA graphs and compiled code would be recorded without them; leave it out"
            )
        return self


class TrustConfig(TrainSection):
    """The neural trust function and its fit (paper, section "Neural Trust Functions", table of NTF architectures).

    Ours, and to be switched off: early stopping on validation AUC (``patience: null``) and standardised inputs
    (``standardise: false``). Not given in the paper: stochastic depth, expansion, batch size, epochs.
    """

    preset: Literal["world_knowledge", "quantitative_reasoning", "strategy_games"] = "strategy_games"
    states: tuple[Annotated[str, AfterValidator(_trust_state)], ...] = ("output_last",)
    """Names among ``teacher.states``; the fit itself reads ``pca`` where ``teacher.store_states`` asks for it."""
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


class RiskConfig(Section):
    """Risk-controlled selection, calibrated on ``splits.calibration`` (paper, "Risk-Controlled Data Selection").

    With probability 1 - ``delta`` over the calibration rows at most ``alpha`` of the labels selected are wrong, in
    expectation over the pool's distribution. ``curation.selection.risk`` says what each rule proves.
    """

    alpha: Share
    delta: Share = 0.1
    rule: Literal["fixed_sequence", "hoeffding", "hoeffding_bonferroni", "hoeffding_grid", "hoeffding_split"] = (
        "fixed_sequence"
    )
    kind: Literal["threshold", "top_k"] = "threshold"


class BudgetConfig(Section):
    """How many rows every arm selects; exactly one rule, each resolved into one common n."""

    RULES: ClassVar = ("n", "share", "oracle", "fit_purity", "threshold", "risk")

    n: PositiveInt | None = None
    """A fixed number of rows."""
    share: Share | None = None
    """A share of the pool rows that were labelled without error, unparsed ones included."""
    oracle: bool = False
    """The number of right weak labels in the pool, at most ``cap`` (paper, world knowledge); needs the audit set."""
    cap: PositiveInt = 2_000
    fit_purity: bool = False
    """floor(purity of the reference arm on its fit set x right weak labels in the pool) (paper, quantitative
    reasoning); needs the audit set."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """As many rows as have a trust of at least this in the reference arm."""
    risk: RiskConfig | None = None
    """As many rows as a calibrated threshold of the reference arm lets pass; none where none can be certified."""
    reference: str = REFERENCE_ARM
    """The arm that ``fit_purity``, ``threshold`` and ``risk`` read, whose difficulties ``naive_matched`` matches."""

    @property
    def rule(self) -> str:
        """The rule that is given."""
        return self._given()[0]

    @property
    def needs_gold(self) -> bool:
        """The pool's gold labels go into n."""
        return self.oracle or self.fit_purity

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = self._given()
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"takes exactly one of {', '.join(self.RULES)}; found {found}")
        return self

    def _given(self) -> list[str]:
        return [name for name in self.RULES if (value := getattr(self, name)) is not None and value is not False]


class SelectionConfig(Section):
    """The arms and their common budget."""

    budget: BudgetConfig
    arms: tuple[str, ...] = ("naive", "internal_confidence", "neural", "ground_truth")
    """Names of ``curation.arms.ARMS``."""
    difficulty_bins: PositiveInt = 10
    """Bins of about equal size by which the stratified arms draw; rows of unknown difficulty are one more."""

    @property
    def used(self) -> tuple[str, ...]:
        """The arms and the budget's reference: whose trust functions and signals are needed."""
        return (*self.arms, self.budget.reference)

    @model_validator(mode="after")
    def _arms(self) -> Self:
        if len(set(self.arms)) != len(self.arms) or not self.arms:
            raise ValueError("arms must name at least one arm, none twice")
        for name in self.used:
            if name not in ARMS:
                near = difflib.get_close_matches(name, ARMS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ARMS)}"
                raise ValueError(f"no arm is called {name!r}; {hint}")
        reference = ARMS[self.budget.reference]
        if not reference.ranked or reference.gold:
            raise ValueError(f"budget.reference: {self.budget.reference!r} ranks no weak labels; name an arm that does")
        return self


class SelfConsistencyConfig(Section):
    """The vote of further samples of the teacher."""

    num_samples: PositiveInt = 8
    temperature: Annotated[float, Field(gt=0)] = 0.7


class RewardConfig(Section):
    """The model that the reward arm ranks by."""

    model: ModelConfig
    kind: Literal["classifier", "custom", "verifier"] = "classifier"
    """A sequence-classification head (Skywork-Reward), a head of the model's own code (ArmoRM, Qwen2.5-Math-RM), or a
    causal model that judges in words (CompassVerifier)."""
    trust_remote_code: bool = False
    """Run the model's own code; ``custom`` needs it."""
    chat_template: bool = False
    """Ask a verifier through its chat template; models with a head use theirs where they have one."""

    @model_validator(mode="after")
    def _trusted(self) -> Self:
        if self.kind == "custom" and not self.trust_remote_code:
            raise ValueError("kind custom runs the model's own code: read it, then set trust_remote_code: true")
        return self


class SignalsConfig(Section):
    """What the passes beyond labelling need; each is made only where an arm asks for it."""

    second_teacher: ModelConfig | None = None
    """The ensemble arm's other, independent teacher."""
    self_consistency: SelfConsistencyConfig = SelfConsistencyConfig()
    reward: RewardConfig | None = None


class JudgeConfig(Section):
    """A model that grades the labels which the domain's own rule calls wrong (paper: Omni-Judge, on Omni-MATH only)."""

    model: ModelConfig
    splits: tuple[str, ...] = ("pool",)
    """Where it is asked; the others are graded by the domain's rule alone."""
    decoding: DecodingConfig = DecodingConfig(max_tokens=256, stop=())
    chat_template: bool = False
    """Ask through the judge's chat template."""


class GenerationConfig(Section):
    """One generation: the student's un-adapted base."""

    student: ModelConfig


class EvaluationConfig(Section):
    """How students are tested; greedy unless said otherwise."""

    decoding: DecodingConfig = DecodingConfig()
    num_runs: PositiveInt = 1
    """Tests with a seed each, whose accuracies are averaged (paper, math: 5); more than one needs a temperature."""
    chat_template: bool = False
    """Ask base, teacher and students through the tokenizer's chat template, a prompt as one user turn."""
    margin: Share = 0.02
    """What a student may fall short of ground truth by and still be called near-lossless."""

    @model_validator(mode="after")
    def _runs_differ(self) -> Self:
        if self.num_runs > 1 and self.decoding.temperature == 0:
            raise ValueError(f"num_runs: {self.num_runs} greedy runs are all the same; set decoding.temperature")
        return self


class RayConfig(Section):
    """Where Ray runs: in a cluster, or on this machine with ``num_cpus`` (all cores where unset)."""

    address: str | None = None
    """``HOST:PORT`` of a cluster's head, or ``auto``: the Ray that runs on this machine. Unset: ``RAY_ADDRESS`` of the
    environment where it is set, as in a job of Ray; else Ray starts here."""
    num_cpus: PositiveInt | None = None


class MlflowConfig(Section):
    """Where MLflow keeps a finished run."""

    uri: str | None = None
    """A tracking server or store; unset: what MLflow itself finds, first of all ``MLFLOW_TRACKING_URI``."""
    experiment: str = "trust-curation"


class WandbConfig(Section):
    """Where Weights & Biases keep a finished run; the key is theirs to find (``wandb login``, ``WANDB_API_KEY``)."""

    project: str = "trust-curation"
    entity: str | None = None
    mode: Literal["online", "offline"] = "online"


class TrackingConfig(Section):
    """Trackers of experiments that are told of a finished run; none unless named (``{mlflow: {}}``)."""

    mlflow: MlflowConfig | None = None
    wandb: WandbConfig | None = None

    def given(self) -> dict[str, MlflowConfig | WandbConfig]:
        """The trackers that are named; a tracker's name is its package's too."""
        named = {"mlflow": self.mlflow, "wandb": self.wandb}
        return {name: config for name, config in named.items() if config is not None}


class RunConfig(Section):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    run_dir: Annotated[str, AfterValidator(_run_dir)] | None = None
    """Where the run keeps its tables, a path or a URL (``s3://``, ``gs://``); ``runs/<name>`` of the working directory
    where unset."""
    seed: Annotated[int, Field(ge=0)] = 0
    chat_preset: Literal["qwen3", "gemma3", "llama3"] | None = None
    """The paper's use of chat templates with a family (App. "Mathematical Problem Solving"): fills ``chat_template`` of
    teacher, student and evaluation where they are not given."""
    domain: DomainConfig = DomainConfig(name="chess")
    sources: Annotated[dict[str, SourceConfig], Field(min_length=1)]
    splits: SplitsConfig
    teacher: TeacherConfig
    trust: TrustConfig = TrustConfig()
    signals: SignalsConfig = SignalsConfig()
    judge: JudgeConfig | None = None
    selection: SelectionConfig
    student: SftConfig = SftConfig()
    """How every student is trained."""
    generations: tuple[GenerationConfig, ...] = ()
    """The students' bases, one a generation; none: curate only, train nothing."""
    chain_arm: str = REFERENCE_ARM
    """The arm whose student teaches the next generation."""
    evaluation: EvaluationConfig = EvaluationConfig()
    commit_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Between two commits of a pass; where a commit takes long, more."""
    fragment_mb: PositiveInt = 256
    """MiB of a fragment after the compaction that ends a pass."""
    ray: RayConfig = RayConfig()
    tracking: TrackingConfig = TrackingConfig()

    CHAT_PRESETS: ClassVar[Mapping[str, Mapping[str, bool]]] = {
        "qwen3": {"teacher": False, "student": False, "evaluation": True},
        "gemma3": {"teacher": True, "student": False, "evaluation": True},
        "llama3": {"teacher": True, "student": False, "evaluation": True},
    }

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

    @property
    def directory(self) -> Place:
        """The run directory, absolute: workers have working directories of their own."""
        return place(self.run_dir or f"runs/{self.name}").absolute()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, split in self.splits.named().items():
            if split.source not in self.sources:
                known = ", ".join(sorted(self.sources))
                raise ValueError(f"splits.{name}.from: {split.source!r} is not one of the sources ({known})")
        if missing := set(self.trust.states) - set(self.teacher.states):
            raise ValueError(f"trust.states: {', '.join(sorted(missing))} not among teacher.states; add it there")
        if self.judge is not None and (unknown := set(self.judge.splits) - set(self.splits.named())):
            raise ValueError(f"judge.splits: {', '.join(sorted(unknown))} not among the splits that are given")
        if self.teacher.adapt is not None and self.splits.adapt is None:
            raise ValueError("teacher.adapt needs a split: add splits.adapt")
        if self.generations and self.splits.test is None:
            raise ValueError("generations need a test split: add splits.test")
        oracles = [f"the {name} arm" for name in self.selection.arms if ARMS[name].oracle]
        if self.selection.budget.needs_gold:
            oracles.append(f"the {self.selection.budget.rule} budget")
        if oracles and not self.splits.audit:
            raise ValueError(f"{oracles[0]} reads the pool's gold labels: set splits.audit: true, or drop it")
        if len(self.generations) > 1 and self.chain_arm not in self.selection.arms:
            raise ValueError(f"chain_arm: {self.chain_arm!r} is not among selection.arms")
        self._signals_can_be_made()
        return self

    def _signals_can_be_made(self) -> None:
        asked = signals_of(self.selection.used)
        if "icl_mean_logprob" in asked and self.splits.shots is None:
            raise ValueError("the icl_confidence arm shows demonstrations: add splits.shots (the paper: five rows)")
        if "icl_mean_logprob" in asked and self.domain_of("shots") != self.domain_of("pool"):
            raise ValueError("splits.shots: demonstrations are rows of another domain than the pool's")
        if "ensemble_agreement" in asked and self.signals.second_teacher is None:
            raise ValueError("the ensemble arm asks a second teacher: set signals.second_teacher")
        if "reward" in asked and self.signals.reward is None:
            raise ValueError("the reward arm ranks by a reward model: set signals.reward.model")
        graded = {"pool": self.splits.audit, "calibration": self.selection.budget.risk is not None}
        for split in self.judge.splits if self.judge is not None else ():
            if not graded.get(split, True):
                mend = "set splits.audit: true" if split == "pool" else "set selection.budget.risk"
                raise ValueError(f"judge.splits: {split} is not graded in this run; {mend}, or leave it out")
        if self.selection.budget.risk is not None and self.splits.calibration is None:
            raise ValueError(
                "selection.budget.risk is calibrated on labelled rows of the pool's own distribution: "
                "add splits.calibration"
            )

    @property
    def fitting(self) -> TrustConfig:
        """How trust functions are fitted: ``trust``, on the projection of its states where only that is stored."""
        projected = isinstance(self.teacher.store_states, PcaConfig)
        return self.trust.model_copy(update={"states": ("pca",)}) if projected else self.trust

    def domain_of(self, split: str) -> DomainConfig:
        """The task interface of a split's rows: its source's, where that names one."""
        return self.sources[self.splits.named()[split].source].domain or self.domain
