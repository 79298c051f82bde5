"""Models, existing or from scratch, and how students are trained.

The paper has no DPO (Rafailov et al. 2023, arXiv 2305.18290); ``beta`` and the single epoch are TRL's defaults, the
learning rate is ours, for an adapter. GRPO is that of its App. "Training Details", table of GRPO hyperparameters, which
leaves open, and we chose: group size 8, all weights rather than an adapter, rollouts at temperature 1, the k3 estimate
of KL, the mean loss over all tokens of a batch, a constant learning rate without warm-up.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, field_validator

from curation.arms import ARMS
from curation.config.base import Location, NotNegative, PositiveInt, Section, Share, TrainSection
from curation.config.files import FileText
from curation.json_types import Json, JsonView
from curation.registry import METHODS, load_code
from curation.storage.files import check_name


class InitConfig(Section):
    """A model from scratch: random weights and a word-level tokenizer of the domain's vocabulary."""

    family: str = "qwen3"
    """The model type, as transformers names it."""
    hidden_size: PositiveInt
    """Size of the hidden states."""
    num_layers: PositiveInt
    """Number of transformer blocks."""
    num_heads: PositiveInt = 4
    """Number of attention heads."""
    max_positions: PositiveInt = 256
    """Maximum length of a prompt with its answer, in tokens."""
    extra: Json = Field(default={})
    """Further fields of the family's transformers configuration, e.g. ``num_key_value_heads`` (unset: ``num_heads``),
    ``head_dim`` (unset: ``hidden_size`` / ``num_heads``) and ``intermediate_size`` (unset: 3 x ``hidden_size``)."""

    def shape(self) -> Json:
        """Return the fields by transformers' own names."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_heads,
            "head_dim": self.hidden_size // self.num_heads,
            "intermediate_size": 3 * self.hidden_size,
            "max_position_embeddings": self.max_positions,
            **self.extra,
        }


class ModelConfig(Section):
    """A causal LM: a local path or hub id, or one made from scratch (``init``)."""

    path: Location | None = None
    """A hub id, a folder relative to the configuration file, or a URL."""
    revision: str | None = None
    """The commit, branch or tag of a hub id; with ``allow_remote_code`` it pins the code."""
    adapter: Location | None = None
    """A LoRA adapter on the model, saved by peft: a folder, hub id or URL."""
    init: InitConfig | None = None
    allow_remote_code: bool = False
    """Whether to run the model's own Python code, with all rights of the run. ``revision`` must pin the code that you
    have read: the commit of a hub id, or the digest that `curate validate` names for a directory."""

    @field_validator("path", "adapter", mode="before")
    @classmethod
    def _beside_the_file(cls, value: object) -> object:
        place = value.beside if isinstance(value, FileText) and check_name(value) else None
        return value if place is None or not place.exists() else str(place)  # what does not exist is a hub id

    def _iter_problems(self) -> Iterator[str]:
        if (self.path is None) == (self.init is None):
            yield "takes exactly one of path and init"
        if self.init is not None and self.allow_remote_code:
            yield "allow_remote_code: a model from scratch brings no code; leave it out"


ADAPTER_MEND = (
    "what is trained has no adapter of its own; merge it into its model (peft: merge_and_unload, save_pretrained), and "
    "give that folder as path"
)


def _check_base(model: ModelConfig) -> ModelConfig:
    if model.adapter is not None:
        raise ValueError(f"adapter: {model.adapter!r}: {ADAPTER_MEND}")
    return model


BaseConfig = Annotated[ModelConfig, AfterValidator(_check_base)]
"""A model that is trained."""


class LoraConfig(Section):
    """LoRA on all linear layers but the output embedding (paper, table of SFT hyperparameters)."""

    rank: PositiveInt = 16
    """Rank of the added matrices."""
    alpha: PositiveInt = 32
    """Scale of the adapter: ``alpha`` / ``rank``."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of an adapter's inputs during training."""


class StudentConfig(TrainSection):
    """Settings of students' training that every ``method`` has."""

    method: str = "sft"
    """A name of ``curation.registry.METHODS``, or ``module:NAME`` of your own (docs/extending.md)."""
    max_length: PositiveInt = 1024
    """Maximum length of a trained row, in tokens; no arm selects a longer one."""
    chat_template: bool = False
    """Whether prompts are wrapped as one user turn of the tokenizer's chat template."""

    def to_key(self) -> Json:
        """Return the section's part of a cache key, always with the method, by which the class is found."""
        return {"method": self.method, **super().to_key()}


def as_student_config(value: object) -> StudentConfig:
    """Return the section ``student`` as an instance of its method's class."""
    return value if isinstance(value, StudentConfig) else find_student_section(value).model_validate(value)


def find_student_section(value: object) -> type[StudentConfig]:
    """Return the class of the section ``student``."""
    name = value.get("method", "sft") if isinstance(value, Mapping) else "sft"
    found: type[StudentConfig] = load_code(METHODS.find(str(name)).config)
    return found


class LmStudentConfig(StudentConfig):
    """A student whose weights, or an adapter on them, are trained by AdamW, by default as in the paper's SFT."""

    RESOURCES: ClassVar[set[str]] = {
        *TrainSection.RESOURCES,
        "num_workers",
        "micro_batch_size",
        "gradient_checkpointing",
        "sharding",
    }
    """Includes keys that only divide a step among workers and passes: neither the order of rows (``train.stream``) nor
    draws of answers (``train.rollouts``) depend on them."""

    global_batch_size: PositiveInt = 128
    """Rows per optimizer step."""
    micro_batch_size: PositiveInt = 4
    """Sequences that a worker processes at a time."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Peak learning rate of AdamW."""
    adam_betas: tuple[float, float] = (0.9, 0.95)
    """beta1 and beta2 of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay of AdamW, on all trained weights."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Schedule of the learning rate after the warm-up."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Maximum gradient norm; larger gradients are scaled down to it."""
    lora: LoraConfig | None = LoraConfig()
    """The adapter to train; null trains all weights."""
    gradient_checkpointing: bool = True
    """Whether activations are recomputed in the backward pass instead of kept: slower, less memory."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the forward and backward pass (autocast), and of all weights that are not trained: a base under an
    adapter, a reference, GRPO's engine. Trained weights, their gradients and the optimizer's state stay float32.
    ``auto``: bfloat16 on a GPU (``gpus_per_worker`` above 0) where the ``config.json`` of the base names it, else
    float32."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """Division among several workers: each holds all weights (``ddp``), or a shard of weights, gradients and optimizer
    state (``fsdp``: PyTorch's ``fully_shard``, FSDP2). A checkpoint of one cannot be resumed with the other."""

    def num_steps(self, num_rows: int) -> int | None:
        """Return the number of optimizer steps for ``num_rows`` trained rows, or ``None`` if the method sets none."""
        return None


class EpochsConfig(LmStudentConfig):
    """A student that is trained on the selected rows, epoch after epoch."""

    epochs: PositiveInt | None = None
    """Number of passes over the rows. Unset: the paper's rule, 3 below 2,000 rows given to training, else 1."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of the steps in which the learning rate rises from 0; always less than a third."""

    def num_epochs(self, num_rows: int) -> int:
        """Return the number of passes for ``num_rows`` rows given to training, including rows that training drops."""
        return self.epochs or (3 if num_rows < 2_000 else 1)

    def num_steps(self, num_rows: int) -> int:
        """Return the number of optimizer steps for ``num_rows`` trained rows; an epoch's last step may be smaller."""
        return -(-num_rows // self.global_batch_size) * self.num_epochs(num_rows)


class SftConfig(EpochsConfig):
    """Supervised fine-tuning, loss on the completion's tokens only.

    Preset ``paper``: App. "Training Details", table of SFT hyperparameters. Preset ``scratch``: full weights of a small
    model from random ones, or from a small base.
    """

    PRESETS: ClassVar[Mapping[str, JsonView]] = {
        "paper": {},
        "scratch": {
            "epochs": 3,
            "max_length": 256,
            "micro_batch_size": 128,
            "learning_rate": 1e-3,
            "lora": None,
            "gradient_checkpointing": False,
        },
    }

    preset: Literal["paper", "scratch"] = "paper"
    """The preset that gives the values of keys left out."""


class DpoConfig(EpochsConfig):
    """Direct preference optimisation on the selected pairs, against the base as reference.

    Preset ``lora``: an adapter on a pretrained base. Preset ``scratch``: all weights of a small model on a CPU.
    """

    PRESETS: ClassVar[Mapping[str, JsonView]] = {
        "lora": {},
        "scratch": {
            "max_length": 256,
            "micro_batch_size": 32,
            "learning_rate": 3e-4,
            "lora": None,
            "gradient_checkpointing": False,
        },
    }

    method: str = "dpo"
    preset: Literal["lora", "scratch"] = "lora"
    """The preset that gives the values of keys left out."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Strength of the tie between a student and its base: the implicit reward of an answer is ``beta`` times its
    log-probability less that under the base."""
    max_length: PositiveInt = 1024
    """Maximum length of a prompt with one of its answers, in tokens; no arm selects a longer one."""
    epochs: PositiveInt = 1
    """Number of passes over the pairs."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate of AdamW."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """beta1 and beta2 of AdamW."""
    global_batch_size: PositiveInt = 32
    """Pairs per optimizer step."""
    micro_batch_size: PositiveInt = 4
    """Pairs that a worker processes at a time."""

    def _iter_problems(self) -> Iterator[str]:
        yield from super()._iter_problems()
        if self.sharding == "fsdp":
            yield (
                "sharding: fsdp divides the weights, and dpo needs them as a whole for its reference; set ddp, or "
                "train the adapter on fewer, larger GPUs"
            )


class RolloutsConfig(Section):
    """Sampling of a student's own answers during training."""

    backend: Literal["auto", "transformers", "vllm"] = "auto"
    """``vllm`` shares the worker's GPU with the training; ``auto`` is vLLM with a GPU, else transformers."""
    max_tokens: PositiveInt = 4096
    """Maximum length of an answer, in tokens; longer answers are cut."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature of the rollouts."""
    gpu_memory: Share = 0.3
    """The share of the GPU's memory that vLLM takes for its weights and cache."""
    tensor_parallel: PositiveInt = 1
    """Number of workers that share an engine, each with a part of the weights; a divisor of ``num_workers``."""


class GrpoConfig(LmStudentConfig):
    """Group relative policy optimisation on the selected prompts, rewarded by agreement with the selected labels.

    Preset ``paper``: the table of GRPO hyperparameters. Preset ``scratch``: all weights of a small model on a CPU.
    """

    PRESETS: ClassVar[Mapping[str, JsonView]] = {
        "paper": {},
        "scratch": {
            "max_length": 256,
            "global_batch_size": 32,
            "micro_batch_size": 256,
            "learning_rate": 3e-4,
            "warmup_steps": 20,
            "kl": 0.0,
            "gradient_checkpointing": False,
            "rollouts": {"max_tokens": 32},
        },
    }

    method: str = "grpo"
    preset: Literal["paper", "scratch"] = "paper"
    """The preset that gives the values of keys left out."""
    max_length: PositiveInt = 1024
    """Maximum length of a prompt, in tokens; no arm selects a longer one."""
    rollouts: RolloutsConfig = RolloutsConfig()
    group_size: Annotated[int, Field(ge=2)] = 8
    """Number of answers drawn for a prompt; each is compared with the mean reward of its group."""
    micro_batch_size: PositiveInt = 8
    """Answers that a worker processes at a time; ``global_batch_size`` counts prompts."""
    epochs: PositiveInt = 20
    """Number of groups drawn for each prompt. Batches continue across epochs, so none is smaller."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    adam_betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["cosine", "linear", "constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    lora: LoraConfig | None = None
    kl: NotNegative = 0.001
    """Weight in the loss of the KL divergence from the base, estimated by k3 (Schulman 2020)."""

    def _iter_problems(self) -> Iterator[str]:
        yield from super()._iter_problems()
        ranks = self.rollouts.tensor_parallel
        if self.num_workers % ranks:
            yield (
                f"rollouts.tensor_parallel: {ranks} (workers of an engine) does not divide num_workers: "
                f"{self.num_workers}; change one of the two"
            )
        if ranks != 1 and self.rollouts.backend == "transformers":
            yield (
                f"rollouts.tensor_parallel: {ranks} applies to vLLM only, and rollouts.backend is transformers; leave "
                "one of them out"
            )

    def num_steps(self, num_rows: int) -> int:
        """Return the number of optimizer steps for ``num_rows`` prompts; batches continue across epochs."""
        return -(-num_rows * self.epochs // self.global_batch_size)


class FurtherStudentConfig(Section):
    """A student beside the one that teaches: another base, or another recipe."""

    model: BaseConfig
    """The student's un-adapted base."""
    recipe: SerializeAsAny[Annotated[StudentConfig, BeforeValidator(as_student_config)]] | None = None
    """Keys of the section ``student`` that differ for this student, never ``method``. Unset: none differs."""


NOT_STUDENTS = ("predecessor", "shallow", "teacher", "base")
"""Names that no student may have, since reports use them for other models and for the baselines of a chain."""


class GenerationConfig(Section):
    """One generation: the un-adapted base of the student that teaches the next one, and the students beside it."""

    student: BaseConfig
    """The base whose students teach the next generation. No arm selects a row that is too long for it."""
    students: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_]{0,39}$")], FurtherStudentConfig] = Field(
        default={}
    )
    """Further students by name: they learn from the same selections, are tested, and teach none (docs/students.md)."""

    @field_validator("students")
    @classmethod
    def _stages_can_be_named(cls, named: dict[str, FurtherStudentConfig]) -> dict[str, FurtherStudentConfig]:
        lower: dict[str, str] = {}
        for name in named:
            if name in ARMS or name in NOT_STUDENTS:
                what = "an arm" if name in ARMS else "a model or a line that every run may have"
                raise ValueError(f"{name!r} is the name of {what}; give the student another name, e.g. {name}_student")
            if (same := lower.setdefault(name.lower(), name)) != name:
                raise ValueError(
                    f"{same!r} and {name!r} differ only in upper and lower case, which some file systems ignore; "
                    "rename one"
                )
        return named
