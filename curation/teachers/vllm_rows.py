"""Rows of the vLLM teacher under way: what is asked of the engine for each, and how."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from curation.config import AskConfig
from curation.teachers import Gate
from curation.teachers.completions import Array, prompt_batch, prompt_states
from curation.teachers.prompts import TokenisedRequest


@dataclass(kw_only=True)
class Part:
    """What is asked of the engine for a row: its answer, or one of its options; and what came of it."""

    tokens: list[int]
    """Of the answer."""
    logprob: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    """Of the first tokens, as many as are kept."""
    states: list[Array] = field(default_factory=list)
    """hidden_D by position, in the order of ``positions_of`` the names of states, layers side by side."""
    short: bool = False
    """All is there but the state of the answer's last token."""
    tries: int = 0


@dataclass(kw_only=True)
class Row:
    """One request of the teacher under way."""

    given: TokenisedRequest
    parts: list[Part]
    left: int
    """Parts that are not done."""
    text: str = ""
    truncated: bool = False
    letters: list[float] | None = None
    """Log-probabilities of options of one token."""
    choice: int = 0
    by_rank: dict[int, Part] = field(default_factory=dict)
    """The answer, and options by their likelihood, as far as they are fed."""
    error: str | None = None
    is_prompt: bool = False
    """What is under way is the prompt alone, for the gate."""
    dropped: bool = False


def ring_of(config: AskConfig) -> int:
    """Tokens of an answer's end whose states the tap keeps until it is known which of them a stop string cuts off."""
    return 4 + max((len(stop.encode()) for stop in config.decoding.stop), default=0)


def passing(gate: Gate, rows: Sequence[Row], wide_ND: Array, kept: Sequence[str], state_dtype: str) -> list[bool]:
    """Whether ``gate`` lets each row pass, by the states at its last prompt token, layers side by side."""
    row_ids = [row.given.request.row_id for row in rows]
    num_tokens = [len(row.given.prompt) for row in rows]
    passes: list[bool] = gate(
        prompt_batch(row_ids, num_tokens, prompt_states(wide_ND, kept, gate.states), state_dtype)
    ).tolist()
    return passes


def sampling_params(**values: Any) -> Any:
    """VLLM's own, with one output a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**values, output_kind=RequestOutputKind.FINAL_ONLY)
