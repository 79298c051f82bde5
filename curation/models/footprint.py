"""Estimates of the memory that a model needs: weights, cache, gradients, optimizer, activations.

All numbers follow from a model's configuration and the recipe; nothing is loaded and torch is not imported. Numbers of
parameters are exact for ``FAMILIES``. Activations are counted tensor by tensor for a decoder layer of transformers
(norms, projections, attention without a matrix of scores, gated feed-forward), without the allocator's rounding and the
kernels' buffers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from curation.config.grpo import GrpoConfig
from curation.config.models import LmStudentConfig, LoraConfig
from curation.errors import ConfigError
from curation.json_types import JsonView

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FULL = 4  # bytes of a float32, the type of trained weights, their gradients and each of AdamW's two states
CONTEXT = 0.6 * GIB  # bytes of GPU memory that a CUDA context with its kernels is assumed to take

QK_NORMS = {"qwen3": "head", "gemma3_text": "head", "olmo2": "all"}
"""Families with norms of queries and keys, either one norm for each head or one for all heads concatenated."""
BIASED = ("qwen2",)  # families whose queries, keys and values have biases that the configuration does not name
FAMILIES = ("gemma3_text", "llama", "mistral", "olmo2", "qwen2", "qwen3")
"""Values of ``model_type`` whose parameters this module can count."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of a decoder, by their names in transformers' configurations."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None  # number of tokens that a layer with a sliding window sees
    num_windowed: int = 0  # number of layers with a sliding window
    dtype: str | None = None  # type of the checkpoint's weights

    @classmethod
    def of(cls, config: JsonView) -> Self | None:
        """Return the sizes in a configuration with transformers' defaults filled in, or None if it is not supported."""
        if config.get("model_type") not in FAMILIES or config.get("quantization_config"):
            return None
        heads = int(config["num_attention_heads"])
        kinds = config.get("layer_types") or ()
        dtype = config.get("dtype") or config.get("torch_dtype")
        return cls(
            **{name: config[name] for name in ("model_type", "hidden_size", "num_hidden_layers", "intermediate_size")},
            num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab_size=config["vocab_size"],
            tie_word_embeddings=bool(config.get("tie_word_embeddings")),
            attention_bias=bool(config.get("attention_bias")),
            mlp_bias=bool(config.get("mlp_bias")),
            window=config.get("sliding_window"),
            num_windowed=sum(kind == "sliding_attention" for kind in kinds),
            dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        )

    @property
    def query_width(self) -> int:
        """Width of a token's queries over all heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of a token's keys over all heads, and of its values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Numbers of inputs and outputs of a layer's linear modules, by name."""
        wide, narrow, hidden, inner = self.query_width, self.key_width, self.hidden_size, self.intermediate_size
        return {
            "q_proj": (hidden, wide),
            "k_proj": (hidden, narrow),
            "v_proj": (hidden, narrow),
            "o_proj": (wide, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of a layer."""
        total = sum(inputs * outputs for inputs, outputs in self.linears.values())
        biased: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj") if self.mlp_bias else ()
        if self.attention_bias or self.model_type in BIASED:
            biased += ("q_proj", "k_proj", "v_proj")
        if self.attention_bias:
            biased += ("o_proj",)
        total += sum(self.linears[name][1] for name in biased)
        total += (4 if self.model_type == "gemma3_text" else 2) * self.hidden_size
        norms = {"head": 2 * self.head_dim, "all": self.query_width + self.key_width}
        return total + norms.get(QK_NORMS.get(self.model_type, ""), 0)

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters of the token embeddings."""
        return self.vocab_size * self.hidden_size

    def parameters(self, *, head: bool = True) -> int:
        """Return the number of all parameters; ``head`` includes the output embedding unless it is tied."""
        outputs = self.embedding_parameters if head and not self.tie_word_embeddings else 0
        return self.embedding_parameters + outputs + self.num_hidden_layers * self.layer_parameters + self.hidden_size

    def lora_parameters(self, lora: LoraConfig) -> int:
        """Return the number of parameters of an adapter on the modules that ``lora`` names, in all layers."""
        sizes = self.linears
        if lora.targets != "all-linear":
            named = {each.rpartition(".")[2] for each in lora.targets}
            sizes = {name: size for name, size in sizes.items() if name in named}
        return self.num_hidden_layers * lora.rank * sum(map(sum, sizes.values()))

    def cache_bytes(self, num_tokens: int, dtype: str) -> int:
        """Return the bytes of the keys and values of a row with ``num_tokens`` tokens."""
        seen = num_tokens if self.window is None else min(num_tokens, self.window)
        slots = (self.num_hidden_layers - self.num_windowed) * num_tokens + self.num_windowed * seen
        return 2 * self.key_width * slots * BYTES[dtype]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory of one process, in bytes."""

    parts: Mapping[str, float]  # bytes at the peak by use, for the longest row or micro-batch; no zeros
    least: float  # minimum number of bytes to compute anything: those held permanently, and those of one short row
    notes: str = ""  # text on further consequences of the sizes

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())


def compute_asking_memory(
    shape: DecoderShape, *, dtype: str, on_gpu: bool, batch_tokens: int, answer_tokens: int, head: bool
) -> Footprint:
    """Return the memory of a process that runs a model's inference by transformers.

    ``dtype`` is that of weights, cache and arithmetic; ``on_gpu`` counts a CUDA context. A batch has ``batch_tokens``
    tokens with padding, and its prompts are assumed to be as long as answers, at most ``answer_tokens``. With ``head``
    the model answers, and so has an output embedding, instead of scoring.
    """
    size = BYTES[dtype]
    weights = shape.parameters(head=head) * size
    # of one layer: its input, the normed input, and the feed-forward's three widest tensors
    passing = (4 * shape.hidden_size + 3 * shape.intermediate_size) * size
    rows = max(1, batch_tokens // (2 * answer_tokens))
    context = CONTEXT if on_gpu else 0
    parts = {
        "weights": weights,
        "cache": shape.cache_bytes(batch_tokens, dtype),
        "activations": batch_tokens * passing,
        "logits": rows * shape.vocab_size * (size + FULL) if head else 0,
        "CUDA": context,
    }
    return Footprint(parts=_drop_zeros(parts), least=weights + context + shape.cache_bytes(answer_tokens, dtype))


def compute_serving_memory(
    shape: DecoderShape, *, dtype: str, ranks: int, on_gpu: bool, row_tokens: int, answer_tokens: int, max_running: int
) -> Footprint:
    """Return the memory of a rank of vLLM's engine, with a cache for one longest row, the minimum for its start.

    The ``ranks`` of the tensor-parallel group divide weights and cache. The longest row has ``row_tokens`` tokens with
    its answer, the longest answer ``answer_tokens``. The logits of the ``max_running`` rows that run at once are also
    held in float32. ``dtype`` and ``on_gpu`` are as in :func:`compute_asking_memory`.
    """
    size = BYTES[dtype]
    weights = shape.parameters() * size / ranks
    context = CONTEXT if on_gpu else 0
    row = shape.cache_bytes(row_tokens, dtype) / ranks
    logits = max_running * shape.vocab_size * (size + FULL)
    full = max_running * shape.cache_bytes(row_tokens, dtype) / ranks
    return Footprint(
        parts=_drop_zeros({"weights": weights, "cache of a row": row, "logits": logits, "CUDA": context}),
        least=weights + context + shape.cache_bytes(answer_tokens, dtype) / ranks,
        notes=f"{max_running:,} rows of {row_tokens:,} tokens at once would fill {full / GIB:,.1f} GiB of cache",
    )


def compute_training_memory(
    shape: DecoderShape, config: LmStudentConfig, *, dtype: str, on_gpu: bool, answer_tokens: int, engine: float = 0.0
) -> Footprint:
    """Return the memory of a worker that trains a student by ``config``.

    Trained weights are float32, with gradients and AdamW's two states; frozen weights below an adapter have the type of
    the arithmetic (``dtype``). The reference model of DPO and GRPO is another copy, unless an adapter
    can be switched off. The recipe's ``max_length`` limits a row (in GRPO: a prompt); only the tokens of an answer that
    is learnt, at most ``answer_tokens``, have logits. ``engine`` is the bytes of the engine that draws GRPO's answers,
    and sleeps while gradients are computed; ``on_gpu`` counts a CUDA context.
    """
    held = compute_held_memory(shape, config, dtype=dtype, on_gpu=on_gpu)
    stays, grown = sum(held.values()) - held["buckets"] - held["cast weights"], held["gradients"]
    moving = _compute_moving_memory(shape, config, dtype, answer_tokens)
    rows = config.global_batch_size * (config.group_size if isinstance(config, GrpoConfig) else 1)
    is_accumulating = rows > config.micro_batch_size * config.num_workers  # and so holds gradients beside activations
    if engine > sum(moving.values()):  # the peak is then while answers are drawn
        moving = {"engine": engine}
    elif not is_accumulating:  # gradients grow as activations are freed
        if held["gradients"] > sum(moving.values()):
            moving = {}
        else:
            del held["gradients"]
    row_tokens = min(_compute_micro_batch(config, answer_tokens)[1], answer_tokens + 1)
    row = row_tokens * (shape.num_hidden_layers * shape.hidden_size * BYTES[dtype] + shape.vocab_size * FULL)
    least = stays - grown + max(grown, engine, row)
    return Footprint(parts=_drop_zeros(held | moving), least=least)


def compute_held_memory(shape: DecoderShape, config: LmStudentConfig, *, dtype: str, on_gpu: bool) -> dict[str, float]:
    """Return the bytes, by use, that such a training holds from step to step, or whenever it computes."""
    shards = config.num_workers if config.sharding == "fsdp" else 1
    parameters = shape.parameters()
    trained = parameters if config.lora is None else shape.lora_parameters(config.lora)
    frozen = 0 if config.lora is None else parameters * BYTES[dtype]
    cast = dtype != "float32" and config.lora is None and shards == 1  # autocast keeps its copies for the backward pass
    compares = config.method == "dpo" or (isinstance(config, GrpoConfig) and config.kl > 0)  # with a frozen base
    root = shape.embedding_parameters * (1 if shape.tie_word_embeddings else 2)
    return {
        "weights": (frozen + trained * FULL) / shards,
        "cast weights": trained * BYTES[dtype] if cast else 0,
        "gradients": trained * FULL / shards,
        "buckets": trained * FULL if config.num_workers > 1 and shards == 1 else 0,
        "optimizer": 2 * trained * FULL / shards,
        "reference": (parameters * BYTES[dtype] if compares and config.lora is None else 0) / shards,
        # The largest unit that FSDP gathers, and the next layer, which it gathers meanwhile.
        "gathered": 0 if shards == 1 else (root + 2 * shape.layer_parameters) * BYTES[dtype],
        "CUDA": CONTEXT if on_gpu else 0,
    }


def _compute_moving_memory(
    shape: DecoderShape, config: LmStudentConfig, dtype: str, answer_tokens: int
) -> dict[str, float]:
    """Return the bytes of a micro-batch of the longest rows, by use, at the larger peak: in the loss or in a layer.

    A norm, computed in float32, keeps its input, its output and, if its weight is trained, what the weight multiplies.
    Attention keeps queries, keys, values and output; the feed-forward keeps four tensors. When the loss is computed,
    SFT and DPO hold the model's logits, a float32 copy, the copy without the last token and its log-softmax. GRPO holds
    the model's, those at the sampling temperature, their log-softmax and a gradient, all in the arithmetic's type.
    """
    rows, row_tokens = _compute_micro_batch(config, answer_tokens)
    size, widths = BYTES[dtype], shape.query_width + shape.key_width
    inner = FULL * (2 if config.lora is None else 1)
    norms = (4 if shape.model_type == "gemma3_text" else 2) * shape.hidden_size * (inner + size)
    head_norms = widths * inner if shape.model_type in QK_NORMS else 0
    layer = norms + head_norms + (2 * widths + 4 * shape.intermediate_size) * size  # of a token
    logit = 4 * size if isinstance(config, GrpoConfig) else (size if size < FULL else 0) + 3 * FULL
    logits = rows * min(row_tokens, answer_tokens + 1) * shape.vocab_size * logit
    if not config.gradient_checkpointing:
        return {"activations": rows * row_tokens * shape.num_hidden_layers * layer, "logits": logits}
    inputs = rows * row_tokens * shape.num_hidden_layers * shape.hidden_size * BYTES[dtype]
    again = 1.5 * rows * row_tokens * layer  # with the gradients of its widest tensors
    return {"layers' inputs": inputs, **({"logits": logits} if logits > again else {"a layer": again})}


def _compute_micro_batch(config: LmStudentConfig, answer_tokens: int) -> tuple[int, int]:
    """Return the number of sequences of a micro-batch, and the number of tokens of the longest one."""
    if isinstance(config, GrpoConfig):
        return config.micro_batch_size, config.max_length + answer_tokens
    return config.micro_batch_size * (2 if config.method == "dpo" else 1), config.max_length


def _drop_zeros(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in parts.items() if amount}


GIB_OF = {
    "T4": 15,
    "A10G": 23,
    "L4": 23,
    "V100": 32,
    "A100-40G": 40,
    "L40S": 45,
    "A100": 80,
    "A100-80G": 80,
    "H100": 80,
    "H20": 96,
    "RTX-PRO-6000": 96,
    "H200": 140,
    "B200": 180,
}
"""Maximum GiB of memory that a driver shows for each card; for a name with several sizes (V100, A100) the larger."""


def get_card_gib(name: str) -> int:
    """Return the memory of a card, in GiB; raise ``ConfigError`` if the name is unknown."""
    if name not in GIB_OF:
        raise ConfigError(f"--gpu: {name!r} is not a card whose memory is known; give one of {', '.join(GIB_OF)}")
    return GIB_OF[name]
