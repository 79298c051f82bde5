"""Prompts and completions as the token ids that a model is trained on.

Training and the stage that finds over-long rows (:mod:`curation.stages.gold`) both count tokens with this module. It
imports neither torch nor transformers: callers pass the tokenizer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from curation.errors import ModelError
from curation.models import as_user_turns, encode_prefixes, encode_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Pair(NamedTuple):
    """A prompt and the completion to learn."""

    prompt: str
    completion: str


class TrainingRow(TypedDict):
    """A pair as token ids: the first ``num_prompt`` are the prompt's, the rest the completion's and the end token."""

    input_ids: list[int]
    num_prompt: int
    row_id: NotRequired[int]
    rejected: NotRequired[list[int]]
    """The ids of the prompt and the rejected answer, if ``input_ids`` has those of the chosen one."""


def count_tokens(row: TrainingRow) -> int:
    """Return the number of tokens of a row; for a pair of answers, that of the prompt with the longer one."""
    return max(len(row["input_ids"]), len(row.get("rejected", ())))


def tokenize(
    tokenizer: "PreTrainedTokenizerBase", pairs: Sequence[Pair], max_length: int | None, *, chat_template: bool = False
) -> list[TrainingRow]:
    """Return the token ids of each pair, without pairs of more than ``max_length`` tokens (None for no limit)."""
    prompts = prompt_ids(tokenizer, [pair.prompt for pair in pairs], chat_template=chat_template)
    completions = encode_completions(tokenizer, [pair.completion for pair in pairs])
    return [
        {"input_ids": [*prompt, *completion], "num_prompt": len(prompt)}
        for prompt, completion in zip(prompts, completions, strict=True)
        if max_length is None or len(prompt) + len(completion) <= max_length
    ]


def prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str], *, chat_template: bool = False
) -> list[list[int]]:
    """Return the token ids of prompts, without the completion, as teachers feed them (``models.encode_prefixes``).

    With ``chat_template`` a prompt is one user turn (``models.as_user_turns``); without that template, that raises.
    """
    texts = as_user_turns(tokenizer, prompts) if chat_template else prompts
    return encode_prefixes(tokenizer, texts, special=not chat_template)


def encode_completions(tokenizer: "PreTrainedTokenizerBase", completions: Sequence[str]) -> list[list[int]]:
    """Return token ids of completions, each followed by the end token; raise ``ModelError`` if there is none."""
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"tokenizer {tokenizer.name_or_path!r} has no end token, with which a completion is to end; set eos_token "
            "in its tokenizer_config.json"
        )
    found = encode_texts(tokenizer, completions, special=False) if completions else []
    return [[*completion, tokenizer.eos_token_id] for completion in found]
