"""The teacher: its model and backend, how it answers, which of its states are kept, and the actors that run it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SerializeAsAny, StrictBool, field_validator

from curation.config.base import DISTINCT, AcceleratorType, NotNegative, PositiveInt, Section, make_ray_resources
from curation.config.external import (
    EXTERNAL,
    GIVEN,
    PAID,
    Column,
    Columns,
    EndpointConfig,
    GivenConfig,
    ReaderConfig,
    ServedConfig,
)
from curation.config.models import ADAPTER_MEND, ModelConfig, SftConfig
from curation.config.states import check_state, find_depth_problem
from curation.json_types import Json, JsonView
from curation.registry import BACKENDS


def _check_backend(name: str) -> str:
    BACKENDS.find(name)
    return name


BackendName = Annotated[str, AfterValidator(_check_backend)]


class DecodingConfig(Section):
    """Settings by which a completion is drawn, or an option is chosen.

    Unset keys of ``teacher`` and ``evaluation`` take the domain's defaults (docs/method.md).
    """

    max_tokens: PositiveInt = 8
    """Maximum length of an answer, in tokens."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature. 0 takes the likeliest token (greedy); higher values draw more evenly."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw among the likeliest tokens that together have this probability; 1 is no limit."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Draw among this many of the likeliest tokens; 0 is no limit."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Tokens less likely than this share of the likeliest one are not drawn; 0 is no limit."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Amount subtracted from the logits of tokens already in the answer (not the prompt), greedy or not."""
    constrained: Literal[False, "scored", "stepwise"] = False
    """Constrained decoding, for a domain that lists a row's possible answers: chess (the legal moves), multiple choice,
    or your own domain with a method ``candidates``.

    ``scored`` scores every listed answer and takes the likeliest as a whole. ``stepwise`` draws the answer token by
    token, greedily or sampled, among the tokens that lead to a listed answer. ``false`` leaves the choice to the
    domain: multiple choice is scored, other domains' answers are free."""
    normalise_options: bool = False
    """Whether an option is chosen by the mean log-probability of its tokens; else by their sum, as in the paper."""
    stop: tuple[str, ...] = ("\n",)
    """Strings that end an answer, besides the tokenizer's end token; they are cut from the completion."""

    def _iter_problems(self) -> Iterator[str]:
        if self.constrained == "scored" and self.temperature:
            yield (
                f"constrained: scored takes the likeliest answer and draws none, but temperature is "
                f"{self.temperature:g}; set temperature: 0, or constrained: stepwise"
            )


class ActorsConfig(Section):
    """The pool of teacher actors, and the resources of each."""

    WITHOUT_GPU: ClassVar[Mapping[str, Any]] = {"num_gpus": 0, "memory_gib": 0, "accelerator_type": None}
    """Changes to these settings for actors that hold no model."""

    min: PositiveInt = 1
    """Minimum number of actors of a model's Ray dataset, which it also begins with."""
    max: PositiveInt = 1
    """Maximum number of actors of a pass."""
    initial: PositiveInt | None = None
    """Number of actors requested at first, at most the number of chunks of the first pass. Unset: ``min``. A cluster
    that grows then adds nodes for all of them at once, instead of about twice as many each time."""
    num_cpus: Annotated[float, Field(gt=0)] | None = None
    """CPUs of an actor, and threads of its model. Unset: 1 or, for a model without a GPU, all cores divided by ``max``,
    at most a node's, so that a single actor takes all cores of its machine. Several small models may be faster than one
    with more threads: ``max: 4`` gives each a quarter of the cores. ``OMP_NUM_THREADS`` in the environment overrides
    the threads."""
    num_gpus: NotNegative = 0
    """GPUs of an actor; a fraction shares one."""
    memory_gib: NotNegative = 0
    """Memory that an actor needs on its node, in GiB; 0 declares none. If declared, Ray starts no more actors than a
    node's memory holds, and stages whose memory does not fit wait for each other."""
    accelerator_type: AcceleratorType = None
    """The type of GPU of the actors' nodes, by Ray's name for it, such as ``A100`` (``ray.util.accelerators``, and
    ``ray status -v`` shows those of a cluster); unset: any."""
    max_idle_seconds: Annotated[float, Field(ge=0)] = 120
    """Seconds without work after which actors and their GPUs are released. They are released at once if no later stage
    needs the model or the next stage needs their room, and those beyond ``min`` if Ray Data sees no work for them."""
    max_restarts: Annotated[int, Field(ge=0)] = 8
    """How often in a row an actor's process may die before it has done any work; then the run fails. A model that
    cannot start (vLLM's engine, or a GPU without memory) ends its process, and the next process may be on another node.
    """
    max_row_retries: Annotated[int, Field(ge=0)] = 1
    """How often a row is retried after a process died on it alone, before it becomes an error row (``poison``)."""
    hang_seconds: Annotated[float, Field(gt=0)] = 7200
    """After this many seconds without a finished row, or with a frozen process, an actor is ended, and Ray restarts it;
    set more than the longest answer takes. vLLM is watched more closely (``vllm.hang_seconds``)."""

    @property
    def each(self) -> dict[str, float]:
        """Minimum resources of an actor on its node, by Ray's names."""
        return make_ray_resources(self.num_cpus or 1, self.num_gpus, self.memory_gib, self.accelerator_type)

    def takes_all_cores(self, backend: str) -> bool:
        """Return whether an actor takes all cores that its node has for it."""
        return self.num_cpus is None and not self.num_gpus and BACKENDS[backend].all_cores

    def cpus(self, backend: str, nodes: Sequence[float]) -> float:
        """Return the CPUs of an actor on a cluster, given the number of CPUs of each of its ``nodes``."""
        if not (nodes and self.takes_all_cores(backend)):
            return self.each["CPU"]
        return max(1, min(max(nodes), sum(nodes) // self.max))

    def _iter_problems(self) -> Iterator[str]:
        if self.max < self.min:
            yield f"max {self.max} is below min {self.min}"
        if self.initial is not None and not self.min <= self.initial <= self.max:
            yield f"initial {self.initial} is not between min {self.min} and max {self.max}"


class VllmConfig(Section):
    """Settings of the vLLM backend's engine."""

    engine: Json = Field(default={})
    """Arguments of vLLM's ``EngineArgs`` by name; unknown ones are refused.

    ``tensor_parallel_size: 2`` needs ``actors.num_gpus: 2``. If an actor has a fraction of a GPU,
    ``gpu_memory_utilization`` defaults to nine tenths of that fraction. CUDA graphs are recorded for all batch sizes up
    to ``max_num_seqs`` unless ``compilation_config`` is given."""
    hang_seconds: Annotated[float, Field(gt=0)] = 300
    """Seconds after which an unfinished engine step ends the actor's process, for Ray to restart it."""


class ScriptConfig(Section):
    """Answers of the scripted teacher."""

    completions: Annotated[tuple[str, ...], Field(min_length=1)] = (" e2e4",)
    """Completions, one of which is chosen for each row by a hash of its id."""
    state_size: Annotated[int, Field(gt=0, le=65_536)] = 8
    """Length of a hidden state."""


class ScriptedConfig(ScriptConfig):
    """The scripted teacher: completions by row id, and faults on demand (tests and dry runs)."""

    seconds_per_row: Annotated[float, Field(ge=0)] = 0.0
    """Seconds per row."""
    seconds_per_token: Annotated[float, Field(ge=0)] = 0.0
    """Seconds per word of a prompt and its completion, besides ``seconds_per_row``."""
    slots: Annotated[int, Field(gt=0)] | None = None
    """Number of rows answered concurrently, each in ``seconds_per_answer``, as an engine does."""
    seconds_per_answer: Annotated[float, Field(ge=0)] = 0.0
    """Seconds per row in its slot."""
    start_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Seconds until the teacher has started."""
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


Dtype = Literal["float32", "bfloat16", "float16"]


class AnswersConfig(Section):
    """Settings that a model's answers and states depend on besides its weights and its decoding.

    None of them says where anything runs or is written, since a trust package sets these keys and may come from a
    stranger.
    """

    backend: BackendName = "transformers"
    """A name of ``curation.registry.BACKENDS``, or ``module:NAME`` of your own (docs/extending.md)."""
    options: Json = Field(default={})
    """Settings of your own backend."""
    states: Annotated[tuple[Annotated[str, AfterValidator(check_state)], ...], DISTINCT] = ("output_last",)
    """The hidden states to keep: ``prompt_last``, ``output_first``, ``output_last``, ``output_mean`` of the last layer,
    ``layer<L>_<position>`` of layer L, ``option<R>_output_last`` of options that were not chosen
    (``curation.config.states``)."""
    state_dtype: Literal["float16", "float32"] = "float16"
    """The type in which hidden states are stored."""
    token_logprobs: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Number of tokens at the start of each answer whose log-probabilities are kept as ``token_logprobs``, which
    ``trust.columns`` may then name. Their mean, minimum, first and last are always kept."""
    dtype: Dtype = "float32"
    """The type of the model's weights and of its arithmetic."""
    chat_template: bool = False
    """Whether a prompt is wrapped as one user turn of the tokenizer's chat template; off, as in the paper (Qwen3)."""
    scripted: ScriptConfig = ScriptConfig()
    endpoint: ServedConfig | None = None
    """The model that a server runs, with ``backend: endpoint``."""
    reads_given: bool = False
    """Whether the model only reads the answers that came with the rows; set ``teacher.reader`` instead of this."""


class PassConfig(Section):
    """Settings of passes over rows, on which no answer depends: the actors of the model, chunks and batches."""

    batch_tokens: PositiveInt = 8192
    """Maximum number of tokens in one forward batch, counting padded prompts and answers."""
    chunk_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Target seconds of an actor's work on a chunk, the unit of commits and of loss in a crash. The first chunks are
    small, later ones are sized by the measured speed. A model that answers rows concurrently (an engine, a server) has
    chunks that fill it, however long they take, and their finished rows are committed at this interval."""
    chunk_rows: PositiveInt = 4096
    """Maximum number of rows of a chunk, which is one table fragment."""
    actors: ActorsConfig = ActorsConfig()
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Maximum share of error rows among the rows that the model was asked, above which the run or the filter stops."""
    vllm: VllmConfig = VllmConfig()


class AskConfig(PassConfig, AnswersConfig):
    """Settings by which any model is asked for answers."""

    SPREAD: ClassVar[frozenset[str]] = frozenset({"actors", "chunk_rows", "chunk_seconds", "max_error_rate"})
    """Keys that change how rows are spread over actors, not what is answered."""
    BARE: ClassVar[JsonView] = {"states": (), "token_logprobs": 0}
    """Values of ``states`` and ``token_logprobs`` for readers who need only what is always kept of an answer."""

    dtype: Literal["auto", Dtype] = "auto"  # type: ignore[assignment]
    """The type of weights and arithmetic of the model, and of reward models. ``auto``: on a GPU (``actors.num_gpus``
    above 0) bfloat16 or float16 if the checkpoint's ``config.json`` names it, else float32; a model that the run trains
    has the type of its base."""
    decoding: DecodingConfig = DecodingConfig()
    scripted: ScriptedConfig = ScriptedConfig()
    endpoint: SerializeAsAny[EndpointConfig] | None = None
    """The server that answers, with ``backend: endpoint`` (docs/endpoints.md)."""

    @property
    def answers(self) -> AnswersConfig:
        """The part of these settings that the answers depend on."""
        parts: dict[str, Section] = {"scripted": ScriptConfig.part_of(self.scripted)}
        if self.endpoint is not None:
            parts["endpoint"] = ServedConfig.part_of(self.endpoint)
        return AnswersConfig.part_of(self).model_copy(update=parts)

    @property
    def keyed(self) -> Self:
        """These settings without the keys of a server that change no answer, such as its address and prices."""
        return self if self.endpoint is None else self.model_copy(update={"endpoint": self.endpoint.keyed})

    def paid_in(self, directory: str) -> Self:
        """Return these settings with a server's paid answers kept in a folder of ``directory``."""
        if self.endpoint is None:
            return self
        kept = {"paid": f"{directory}/{PAID}"}
        return self.model_copy(update={"endpoint": self.endpoint.model_copy(update=kept)})

    def of_weights(self, *, chat_template: bool) -> Self:
        """Return these settings for other models, which have weights: without the server, and to answer, not to read.

        ``chat_template`` replaces that of the server.
        """
        if self.endpoint is None:
            return self.model_copy(update={"reads_given": False}) if self.reads_given else self
        theirs = {"backend": "transformers", "endpoint": None, "chat_template": chat_template}
        return self.model_copy(update=theirs)

    @property
    def first_chunk_rows(self) -> int:
        """Number of rows of the first chunks, at most 32 before the time per row is known."""
        return min(self.chunk_rows, 32) if math.isfinite(self.chunk_seconds) else self.chunk_rows


class TeacherConfig(AskConfig):
    """The weak teacher of the first generation and how every teacher labels."""

    model: ModelConfig | None = None
    completion: Column | None = None
    """With ``backend: given``: the source column of the labels made elsewhere. Each is read as a teacher's completion,
    or as a label alone."""
    grade: Column | None = None
    """With ``backend: given``: a column that says whether a row's label is right (1, 0, true, false), in place of a
    gold label. A row where it is empty, or a file without the column, needs a gold label."""
    confidence: Columns = ()
    """With ``backend: given``: a column, or a list of columns, with a number for each label; larger is surer. Trust
    reads the numbers, and each column is an arm ``given_<column>``. An empty cell is a missing number."""
    reader: ReaderConfig | None = None
    """With ``backend: given`` or ``endpoint``: a model that reads prompt and answer once, for hidden states of labels
    made elsewhere (docs/data-forms.md) and of a server's answers (docs/endpoints.md)."""
    adapt: SftConfig | None = None
    """Format adaptation on the ``adapt`` split (paper, App. "Strategy Games"). Unset: none."""
    store_states: StrictBool = True
    """The hidden states of the pool to store. The source split, on which trust is fitted, always keeps all states.

    ``true`` stores all, so that another trust function can score existing labels. ``false`` stores scores only,
    computed by the labelling actors: 8 bytes per row and trust function (and the states of some 5,000 rows, for the
    shift test); the other splits are then labelled after the fit, and again if it changes."""

    @field_validator("adapt")
    @classmethod
    def _by_sft(cls, value: SftConfig | None) -> SftConfig | None:
        if value is not None and value.method != "sft":
            raise ValueError("a teacher's format is taught by sft; leave method out")
        return value

    @property
    def ask(self) -> AskConfig:
        """Settings by which every teacher is asked or, with given labels, their reader reads them."""
        asked = AskConfig.part_of(self)
        if self.reader is None:
            return asked
        if self.endpoint is not None:
            return asked.model_copy(update={"states": ()})
        in_turns = self.chat_template or self.reader.chat_template
        reads = {"backend": self.reader.backend, "reads_given": True, "chat_template": in_turns}
        return asked.model_copy(update=reads)

    @property
    def labelling(self) -> AskConfig:
        """Settings by which the first teacher is asked; a server with a reader gets none that only the reader needs."""
        if self.reading is None:
            return self.ask
        bare = self.ask.without({"state_dtype", "dtype", "batch_tokens", "vllm"})
        return bare.model_copy(update={"actors": self.actors.model_copy(update=ActorsConfig.WITHOUT_GPU)})

    @property
    def reading(self) -> AskConfig | None:
        """Settings by which a reader reads a server's answers; ``None`` without a reader or a server."""
        if self.reader is None or self.endpoint is None:
            return None
        reads = {"reads_given": True, "backend": self.reader.backend, "chat_template": self.reader.chat_template}
        return AskConfig.part_of(self).model_copy(update={**reads, "endpoint": None})

    @property
    def role(self) -> str:
        """The role of the loaded model: ``teacher``, or ``reader`` of answers from elsewhere."""
        return "teacher" if self.reader is None else "reader"

    @property
    def loaded(self) -> ModelConfig | None:
        """The model loaded to label or to read answers; ``None`` if no model is loaded."""
        return self.model if self.reader is None else self.reader.model

    @property
    def given(self) -> GivenConfig | None:
        """The columns of labels made elsewhere; ``None`` if a model labels."""
        if self.backend != GIVEN or self.completion is None:
            return None
        return GivenConfig(completion=self.completion, grade=self.grade, confidence=self.confidence)

    def _iter_problems(self) -> Iterator[str]:
        if self.adapt is not None and self.model is not None and self.model.adapter is not None:
            yield f"adapt: {ADAPTER_MEND}"
        if not self.states and self.backend not in EXTERNAL:
            yield "states must name at least one position"
        ranks, num_gpus = self.vllm.engine.get("tensor_parallel_size", 1), self.actors.num_gpus
        if num_gpus and ranks not in (1, num_gpus):
            yield (
                f"vllm.engine.tensor_parallel_size {ranks} and actors.num_gpus {num_gpus:g} differ: a tensor-parallel "
                "group is one actor with a GPU a rank, all on one node; set both alike"
            )
        init = None if self.loaded is None else self.loaded.init
        if init is not None and (problem := find_depth_problem(self.states, init.num_layers)) is not None:
            yield f"states: {problem}"
