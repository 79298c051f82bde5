"""The teacher: its model and backend, how it answers, what is kept of its states, the actors that ask it."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SerializeAsAny, field_validator, model_validator

from curation.config import endpoint as endpoints
from curation.config import given
from curation.config.base import AcceleratorType, NotNegative, PositiveInt, Section, make_name_check, make_ray_resources
from curation.config.endpoint import EndpointConfig, ServedConfig
from curation.config.models import ModelConfig, SftConfig
from curation.config.scripted import ScriptConfig, ScriptedConfig
from curation.config.states import find_depth_problem, parse
from curation.json_types import Json, JsonView
from curation.registry import BACKENDS


def _check_state(name: str) -> str:
    parse(name)
    return name


BackendName = Annotated[str, make_name_check(BACKENDS)]


class DecodingConfig(Section):
    """How a completion is drawn, temperature 0 is greedy; of requests with options, how one is chosen.

    Unset keys of ``teacher`` and ``evaluation`` follow from the domain (``curation.config.defaults``).
    """

    max_tokens: PositiveInt = 8
    """Tokens of the longest answer."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 takes the likeliest token; higher values draw more evenly."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw among the likeliest tokens that together have this probability; 1 is no limit."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 is no limit."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Tokens less likely than this share of the likeliest one are not drawn; 0 is no limit."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Taken from the logits of tokens that the answer already has (the prompt's do not count), greedy or not."""
    constrained: Literal[False, "scored", "stepwise"] = False
    """Constrained decoding, for a domain that lists a row's possible answers: chess (the legal moves), multiple choice,
    or one of one's own with a method ``candidates``.

    ``scored``: every answer is scored, and the likeliest as a whole is taken. ``stepwise``: the answer is drawn token
    by token, greedily or sampled, among the tokens that lead to an answer of the list. ``false``: as the domain has it:
    multiple choice is scored, other domains' answers are free."""
    normalise_options: bool = False
    """Choose an option by the mean log-probability of its tokens; off, as in the paper: by their sum."""
    stop: tuple[str, ...] = ("\n",)
    """Strings that end an answer, besides the tokenizer's end token; cut from the completion."""

    @model_validator(mode="after")
    def _scored_draws_nothing(self) -> Self:
        if self.constrained == "scored" and self.temperature:
            raise ValueError(
                f"constrained: scored takes the likeliest answer and draws none, but temperature is "
                f"{self.temperature:g}; set temperature: 0, or constrained: stepwise"
            )
        return self


CHUNK_SECONDS = 30.0
ChunkSeconds = Annotated[float, Field(gt=0)]
"""How long a chunk is to take."""
FIRST_CHUNK_ROWS = 32
"""Rows of the first chunks of a pass."""


class ActorsConfig(Section):
    """The pool of teacher actors and what each takes."""

    WITHOUT_GPU: ClassVar[Mapping[str, Any]] = {"num_gpus": 0, "memory_gib": 0, "accelerator_type": None}
    """Changes for what takes none of a model's resources."""

    min: PositiveInt = 1
    """Actors with which a model's dataset begins, and the fewest that it keeps."""
    max: PositiveInt = 1
    """The most actors of a pass."""
    initial: PositiveInt | None = None
    """How many are asked for at first, though no more than the first pass has chunks; ``min`` where not set. On a
    cluster that grows, nodes for all of them then come at once, not each time for about twice as many."""
    num_cpus: Annotated[float, Field(gt=0)] | None = None
    """CPUs of an actor, and threads of its model. Unset: 1; of a model without a GPU an equal share of all cores for
    each of ``max`` actors, no more than a node has, so that one actor takes all cores of its machine. Several small
    models may be faster than one with more threads: ``max: 4`` gives each a quarter of the cores. Where the variable
    ``OMP_NUM_THREADS`` is set, it is the number of threads."""
    num_gpus: NotNegative = 0
    """GPUs of an actor; a fraction shares one."""
    memory_gib: NotNegative = 0
    """Memory that an actor needs of its node; 0: not declared. Ray then starts no more actors than a node's memory
    holds, and stages whose memory does not fit wait for each other."""
    accelerator_type: AcceleratorType = None
    """The type of GPU of the actors' nodes, by Ray's name for it, such as ``A100`` (``ray.util.accelerators``, and
    ``ray status -v`` shows those of a cluster); unset: any."""
    max_idle_seconds: Annotated[float, Field(ge=0)] = 120
    """Actors that nobody has asked for so long are given back with their GPUs. They are given back at once where
    nothing asks the model again, or the next stage needs their room, and those beyond ``min`` where Ray Data sees no
    work for them."""
    max_restarts: Annotated[int, Field(ge=0)] = 8
    """How often in a row an actor's process may die before it has done anything, until the run gives up. A model that
    does not start there (vLLM's engine, or a GPU without memory) ends its process: the next one may be on another node.
    """
    max_row_retries: Annotated[int, Field(ge=0)] = 1
    """How often a row is tried again whose process died on it alone, before it is an error row (``poison``)."""
    hang_seconds: Annotated[float, Field(gt=0)] = 7200
    """An actor whose model gives no row for so long while it works, or whose process is frozen for so long, is ended,
    for Ray to restart it; more than the longest answers take. vLLM is watched more closely (``vllm.hang_seconds``)."""

    @property
    def each(self) -> dict[str, float]:
        """Least resources of an actor on its node, under Ray's names."""
        return make_ray_resources(self.num_cpus or 1, self.num_gpus, self.memory_gib, self.accelerator_type)

    def takes_all_cores(self, backend: str) -> bool:
        """Return whether an actor takes all the cores that its node has for it; of ``auto`` both backends do."""
        known = BACKENDS.get(backend)
        return self.num_cpus is None and not self.num_gpus and (known is None or known.all_cores)

    def cpus(self, backend: str, nodes: Sequence[float]) -> float:
        """Return CPUs of an actor on ``nodes`` with so many CPUs each."""
        if not (nodes and self.takes_all_cores(backend)):
            return self.each["CPU"]
        return max(1, min(max(nodes), sum(nodes) // self.max))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        if self.initial is not None and not self.min <= self.initial <= self.max:
            raise ValueError(f"initial {self.initial} is not between min {self.min} and max {self.max}")
        return self


class VllmConfig(Section):
    """The engine of the vLLM backend."""

    engine: Json = Field(default={})
    """Arguments of vLLM's ``EngineArgs`` by name; unknown ones are refused.

    ``tensor_parallel_size: 2`` wants ``actors.num_gpus: 2``; with a fraction of a GPU an actor,
    ``gpu_memory_utilization`` is nine tenths of that fraction unless it is given. CUDA graphs are recorded for all
    sizes of a batch up to ``max_num_seqs`` unless ``compilation_config`` is given."""
    hang_seconds: Annotated[float, Field(gt=0)] = 300
    """A step of the engine that takes longer ends the actor's process, for Ray to restart it."""


class PcaConfig(Section):
    """Store principal components of the hidden states, fitted on the source split.

    Paper, App. "Dimensionality Ablations": 256 of 1,024 numbers lose nothing.
    """

    pca: PositiveInt
    """How many, over all of ``trust.states`` side by side."""


Dtype = Literal["float32", "bfloat16", "float16"]


class AnswersConfig(Section):
    """Settings that a model's answers and states depend on besides its weights and its decoding.

    Nothing here says where anything runs or is written: these are the keys that a trust package, which may be a
    stranger's, determines.
    """

    backend: BackendName = "transformers"
    """A name of ``curation.registry.BACKENDS``, or ``module:NAME`` of one's own (docs/extending.md). ``auto`` takes
    vLLM where a probe finds that it can run the model, else transformers."""
    options: Json = Field(default={})
    """Settings of a backend of one's own."""
    states: tuple[Annotated[str, AfterValidator(_check_state)], ...] = ("output_last",)
    """The hidden states to keep: ``prompt_last``, ``output_first``, ``output_last``, ``output_mean`` are the last
    layer's, ``layer<L>_<position>`` are another one's, ``option<R>_output_last`` those of options that were not chosen
    (``curation.config.states``)."""
    state_dtype: Literal["float16", "float32"] = "float16"
    """The type in which hidden states are stored."""
    token_logprobs: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Keep the log-probabilities of the first so many tokens of each answer as ``token_logprobs``, which
    ``trust.columns`` may then name. Their mean, the least, the first and the last are kept in any case."""
    dtype: Dtype = "float32"
    """The type of the model's weights and of its arithmetic."""
    chat_template: bool = False
    """Wrap a prompt as one user turn of the tokenizer's chat template; off, as the paper labels with Qwen3."""
    scripted: ScriptConfig = ScriptConfig()
    endpoint: ServedConfig | None = None
    """The model that a server answers for, with ``backend: endpoint``."""
    reads_given: bool = False
    """The model answers nothing and reads the answers that came with the rows; from ``teacher.reader``: set that."""


class AskConfig(AnswersConfig):
    """The settings by which any model is asked for answers."""

    SPREAD: ClassVar[frozenset[str]] = frozenset({"actors", "chunk_rows", "chunk_seconds", "max_error_rate"})
    """Keys that change how rows are spread over actors, not what is answered."""
    BARE: ClassVar[JsonView] = {"states": (), "token_logprobs": 0}
    """The values of the keys that keep more of an answer than what everyone reads, for whom that is enough."""

    dtype: Literal["auto", Dtype] = "auto"  # type: ignore[assignment]
    """The type of the model's weights and of its arithmetic; of reward models too. ``auto``: on a GPU
    (``actors.num_gpus`` above 0) bfloat16 or float16 where the checkpoint's ``config.json`` names it, else float32; a
    model that the run trains has the type of its base."""
    decoding: DecodingConfig = DecodingConfig()
    batch_tokens: PositiveInt = 8192
    """Tokens (prompt, padded, plus answer) in one forward batch."""
    chunk_seconds: ChunkSeconds = CHUNK_SECONDS
    """How long an actor is to work on a chunk, the unit of commit and of what a crash loses: the first chunks are
    small, later ones as large as the speed says. A model that answers rows side by side (an engine, a server) has
    chunks that fill it, however long they last, and what has ended of them is committed at this interval."""
    chunk_rows: PositiveInt = 4096
    """The most rows of a chunk, which is one table fragment."""
    actors: ActorsConfig = ActorsConfig()
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The run stops if a larger share of the labelled rows are error rows."""
    vllm: VllmConfig = VllmConfig()
    scripted: ScriptedConfig = ScriptedConfig()
    endpoint: SerializeAsAny[EndpointConfig] | None = None
    """The server that answers, with ``backend: endpoint`` (docs/endpoints.md)."""

    @property
    def answers(self) -> AnswersConfig:
        """The keys that decide what is answered."""
        parts: dict[str, Section] = {"scripted": ScriptConfig.part_of(self.scripted)}
        if self.endpoint is not None:
            parts["endpoint"] = ServedConfig.part_of(self.endpoint)
        return AnswersConfig.part_of(self).model_copy(update=parts)

    @property
    def keyed(self) -> Self:
        """The same without what changes no value; of a server that is where it is and what it costs."""
        return self if self.endpoint is None else self.model_copy(update={"endpoint": self.endpoint.keyed})

    def paid_in(self, directory: str) -> Self:
        """Return the same; what a server is paid for is kept in a folder of the directory."""
        if self.endpoint is None:
            return self
        kept = {"paid": f"{directory}/{endpoints.PAID}"}
        return self.model_copy(update={"endpoint": self.endpoint.model_copy(update=kept)})

    def of_weights(self, *, chat_template: bool) -> Self:
        """Return the same for other models, which have weights: without the server, and with a template of their own.

        They answer, and do not read what others answered.
        """
        if self.endpoint is None:
            return self.model_copy(update={"reads_given": False}) if self.reads_given else self
        theirs = {"backend": "transformers", "endpoint": None, "chat_template": chat_template}
        return self.model_copy(update=theirs)

    @property
    def first_chunk_rows(self) -> int:
        """The number of rows of the first chunks, before the time of a row is known."""
        return min(self.chunk_rows, FIRST_CHUNK_ROWS) if math.isfinite(self.chunk_seconds) else self.chunk_rows


class TeacherConfig(AskConfig):
    """The weak teacher of the first generation and how every teacher labels."""

    model: ModelConfig | None = None
    completion: given.Column | None = None
    """With ``backend: given``: the column of the source with the labels, made elsewhere. Each is read as a teacher's
    completion, or as a label alone."""
    grade: given.Column | None = None
    """With ``backend: given``: a column that says whether a row's label is right (1, 0, true, false), in place of a
    gold label. A row where it is empty, or a file without the column, needs a gold label."""
    confidence: given.Columns = ()
    """With ``backend: given``: a column with a number, or a list of them, that came with each label; larger is surer.
    Trust reads them, and each is an arm ``given_<column>``. An empty cell is a missing number."""
    reader: given.ReaderConfig | None = None
    """With ``backend: given`` or ``endpoint``: a model that reads prompt and answer once, for hidden states of labels
    made elsewhere (docs/data-forms.md) and of a server's answers (docs/endpoints.md)."""
    adapt: SftConfig | None = None
    """Format adaptation on the ``adapt`` split (paper, App. "Strategy Games"); none where unset."""
    store_states: bool | PcaConfig = True
    """The hidden states to store of the pool; the source split, which trust is fitted on, keeps all of them in any
    case.

    ``true``: all, so that another trust function scores the labels that are there. ``false``: scores in their place,
    given by the labelling actors, 8 bytes a row and trust function (and the states of some 5,000 rows, for the shift
    test); the other splits are then labelled after the fit, and labelled again where the fit changes. ``{pca: k}``:
    k numbers a row; labelled again where the projection changes (``trust.states``, ``trust.validation_fraction``)."""

    @field_validator("adapt")
    @classmethod
    def _unweighted(cls, value: SftConfig | None) -> SftConfig | None:
        if value is not None and value.weight_by_trust:
            raise ValueError("weight_by_trust: true needs rows with a trust; gold labels have none; remove it")
        return value

    @property
    def ask(self) -> AskConfig:
        """How every teacher is asked; a reader of given labels, which is none, to read them."""
        asked = AskConfig.part_of(self)
        if self.reader is None:
            return asked
        reads = {"backend": self.reader.backend, "reads_given": True} if self.endpoint is None else {"states": ()}
        return asked.model_copy(update=reads)

    @property
    def labelling(self) -> AskConfig:
        """How the first teacher is asked; a server that is read: with nothing that only its reader depends on."""
        if self.reading is None:
            return self.ask
        bare = self.ask.without({"state_dtype", "dtype", "batch_tokens", "vllm"})
        return bare.model_copy(update={"actors": self.actors.model_copy(update=ActorsConfig.WITHOUT_GPU)})

    @property
    def reading(self) -> AskConfig | None:
        """How a reader is asked to read a server's answers; ``None`` where none does."""
        if self.reader is None or self.endpoint is None:
            return None
        reads = {"reads_given": True, "backend": self.reader.backend, "chat_template": self.reader.chat_template}
        return AskConfig.part_of(self).model_copy(update={**reads, "endpoint": None})

    @property
    def loaded(self) -> ModelConfig | None:
        """The model that labels or reads answers; ``None`` where none does."""
        return self.model if self.reader is None else self.reader.model

    @field_validator("store_states", mode="before")
    @classmethod
    def _storage(cls, value: object) -> Any:
        size = value.get("pca") if isinstance(value, Mapping) and set(value) == {"pca"} else None
        if isinstance(value, bool | PcaConfig) or (type(size) is int and size > 0):
            return value
        raise ValueError(f"takes true, false or {{pca: k}} with a whole number k above 0; found {value!r}")

    @property
    def given(self) -> given.GivenConfig | None:
        """The columns with labels made elsewhere; ``None`` where a model labels."""
        if self.backend != given.GIVEN or self.completion is None:
            return None
        return given.GivenConfig(completion=self.completion, grade=self.grade, confidence=self.confidence)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        is_given = self.backend == given.GIVEN
        problem = given.find_given_problem(
            self, states=self.states, is_given=is_given
        ) or endpoints.find_endpoint_problem(self)
        if problem is not None:
            raise ValueError(problem)
        if self.model is None and (self.backend == "auto" or BACKENDS[self.backend].weights):
            raise ValueError(f"backend {self.backend} needs a model (path or init)")
        if self.adapt is not None and self.adapt.method != "sft":
            raise ValueError(f"adapt.method: a teacher's format is taught by sft; found {self.adapt.method!r}")
        if len(set(self.states)) != len(self.states) or not (
            self.states or is_given or self.backend == endpoints.ENDPOINT
        ):
            raise ValueError("states must name at least one position, none twice")
        ranks, num_gpus = self.vllm.engine.get("tensor_parallel_size", 1), self.actors.num_gpus
        if num_gpus and ranks not in (1, num_gpus):
            raise ValueError(
                f"vllm.engine.tensor_parallel_size {ranks} and actors.num_gpus {num_gpus:g} differ: a tensor-parallel "
                "group is one actor with a GPU a rank, all on one node; set both alike"
            )
        init = None if self.loaded is None else self.loaded.init
        if init is not None and (problem := find_depth_problem(self.states, init.num_layers)) is not None:
            raise ValueError(f"states: {problem}")
        return self
