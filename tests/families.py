"""Small random models of four families, each with a tokenizer of its family's kind that is trained here.

A family has what sets its published models apart: whether head and embeddings are one matrix, which tokens begin and
end a text, whether there is a padding token, the chat template's form, several end tokens in the generation settings.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from curation.models import resolve
from curation.refs import ModelRef
from train.tokens import Pair

SUMS = Path(__file__).parents[1] / "examples" / "data" / "math.jsonl"
NUM_MERGES = 90
NUM_SPARE = 5
"""Rows of the embeddings beyond the tokenizer's tokens: published models round their number up."""
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 96,
    "max_position_embeddings": 192,
    "initializer_range": 0.1,  # logits that differ enough for the answers to vary
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """What one family's models and tokenizers have."""

    name: str
    """The ``model_type`` of transformers."""
    settings: dict[str, Any]
    """Fields of its configuration beside ``SHAPE``."""
    tied: bool
    special: tuple[str, ...]
    """The special tokens in the order of their ids."""
    bos: str | None = None
    """Set before every text."""
    eos: str
    pad: str | None = None
    ends: tuple[str, ...]
    """The end tokens of the generation settings."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Further generation settings that the family is published with."""
    template: str | None = None
    tokenizer_class: str
    split: str | None = None
    """Byte-level BPE splits texts by this pattern; None: BPE of characters with byte fallback, as SentencePiece's."""

    seed: int = 0
    """Of weights with which some answers of a dozen tokens end by an end token, and some by their length."""

    @property
    def linear(self) -> set[str]:
        """The modules that LoRA on all linear layers is to adapt."""
        layers = range(self.settings.get("num_hidden_layers", SHAPE["num_hidden_layers"]))
        parts = [f"self_attn.{name}" for name in ATTENTION] + [f"mlp.{name}" for name in MLP]
        return {f"model.layers.{layer}.{part}" for layer in layers for part in parts}


QWEN3 = Family(
    name="qwen3",
    settings={"head_dim": 32},
    tied=True,
    special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    eos="<|im_end|>",
    pad="<|endoftext|>",
    ends=("<|im_end|>", "<|endoftext|>"),
    sampling={"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
    template=(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    tokenizer_class="Qwen2Tokenizer",
    split=r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
    seed=3,
)
OLMO2 = Family(
    name="olmo2",
    settings={},
    tied=False,
    special=("<|endoftext|>", "<|pad|>"),
    eos="<|endoftext|>",
    pad="<|pad|>",
    ends=("<|endoftext|>",),
    tokenizer_class="GPT2Tokenizer",
    split=r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
)
GEMMA3 = Family(
    name="gemma3_text",
    settings={
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 8,  # shorter than the prompts
    },
    tied=True,
    special=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<eos>",
    pad="<pad>",
    ends=("<eos>", "<end_of_turn>"),
    sampling={"do_sample": True, "top_p": 0.95, "top_k": 64},
    template=(
        "{{ bos_token }}{% for message in messages %}<start_of_turn>"
        "{{ 'model' if message.role == 'assistant' else message.role }}\n"
        "{{ message.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    tokenizer_class="GemmaTokenizer",
)
LLAMA = Family(
    name="llama",
    settings={
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    tied=False,
    special=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    sampling={"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    template=(
        "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
        "{{ message.content }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    tokenizer_class="PreTrainedTokenizerFast",
    split=r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
)
FAMILIES = {family.name: family for family in (QWEN3, OLMO2, GEMMA3, LLAMA)}


def make_model(family: Family, path: Path, *, layers: int | None = None) -> ModelRef:
    """A random model with its tokenizer in a directory like a published one; end tokens are drawn now and then."""
    path.mkdir(parents=True)
    tokenizer = tokenizer_of(family)
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.pad}
    described: dict[str, Any] = {name: token for name, token in names.items() if token is not None}
    if "<unk>" in family.special:
        described["unk_token"] = "<unk>"
    described |= {"tokenizer_class": family.tokenizer_class, "clean_up_tokenization_spaces": False}
    if family.template is not None:
        described["chat_template"] = family.template
    (path / "tokenizer_config.json").write_text(json.dumps(described))
    ids = {token: tokenizer.token_to_id(token) for token in family.special}
    tokens = {
        "bos_token_id": None if family.bos is None else ids[family.bos],
        "eos_token_id": [ids[token] for token in family.ends] if len(family.ends) > 1 else ids[family.eos],
        "pad_token_id": None if family.pad is None else ids[family.pad],
    }
    shape = SHAPE | family.settings | ({} if layers is None else {"num_hidden_layers": layers})
    config = AutoConfig.for_model(
        family.name,
        vocab_size=tokenizer.get_vocab_size() + NUM_SPARE,
        tie_word_embeddings=family.tied,
        **shape,
        **tokens,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(family.seed)
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for token in family.ends:
            model.get_output_embeddings().weight[ids[token]] *= 2
    model.generation_config = GenerationConfig(**tokens, **family.sampling)
    model.save_pretrained(path)
    return resolve(str(path))


@cache
def tokenizer_of(family: Family) -> Tokenizer:
    """BPE with a few merges, trained on the sums in the words of the math domain."""
    if family.split is None:
        return _with_byte_fallback(family)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC() if family is QWEN3 else None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(family.split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(vocab_size=len(alphabet) + NUM_MERGES, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in family.special])
    _begin(tokenizer, family.bos)
    return tokenizer


def _with_byte_fallback(family: Family) -> Tokenizer:
    """As converted from SentencePiece: spaces are ``▁``, characters that it has not seen become their bytes."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁?[A-Za-z]+|[\s\S]"), behavior="isolated")
    learner.train_from_iterator(_texts(), trainers.BpeTrainer(vocab_size=60 + NUM_MERGES, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    pieces = [*family.special, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += sorted(learnt["vocab"], key=learnt["vocab"].get)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(pair) for pair in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    _begin(tokenizer, family.bos)
    return tokenizer


def _begin(tokenizer: Tokenizer, bos: str | None) -> None:
    """Let the tokenizer put ``bos`` before every text."""
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )


def _texts() -> Iterator[str]:
    with SUMS.open() as file:
        for line in file.readlines()[:1000]:
            row = json.loads(line)
            yield f"Problem: {row['problem']}\nSolution: The final answer is \\boxed{{{row['answer']}}}."


def sums(num_rows: int, *, start: int = 0) -> list[dict[str, str]]:
    """Rows of the math domain whose answers are 1 or 2: guesses are right at every second one."""
    return [
        {"problem": f"{n + 1 + n * n % 7 % 2} - {n} = ?", "answer": str(1 + n * n % 7 % 2)}
        for n in range(start, start + num_rows)
    ]


def pairs(num_rows: int) -> list[Pair]:
    """Prompts and completions of :func:`sums` as the math domain writes them, without an instruction."""
    return [
        Pair(f"Problem: {row['problem']}\nSolution:", f" The final answer is \\boxed{{{row['answer']}}}.")
        for row in sums(num_rows)
    ]
