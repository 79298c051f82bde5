"""Open rows of the vLLM teacher: their requests to the engine, and the parameters of these."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from curation.config import AskConfig, DecodingConfig
from curation.json_types import Json
from curation.teachers.completions import AnsweredRow, Array
from curation.teachers.prompts import TokenisedRequest
from curation.teachers.trie import OPTIONS
from curation.teachers.vllm_logprobs import Summary
from curation.teachers.vllm_tap import LETTERS, SCORE_FROM, SURENESS


@dataclass(kw_only=True)
class EngineRequest:
    """A request to the engine for a row's answer, an option or a node of the options' trie, with its result."""

    tokens: list[int]  # tokens of the answer or option, or of the path to the node
    node: int | None = None  # node of the options' trie whose children's log-probabilities are requested
    summary: Summary | None = None
    states: list[Array] = field(default_factory=list)
    """hidden_D of each position, in the order of ``find_positions``, with concatenated layers."""
    short: bool = False  # whether only the state of the answer's last token is missing
    tries: int = 0


@dataclass(kw_only=True)
class EngineRow:
    """An open request of the teacher."""

    given: TokenisedRequest
    left: int  # number of parts that are not done
    text: str = ""
    truncated: bool = False
    answer: AnsweredRow | None = None  # of options, once they are scored
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the nodes of the options' trie, if a request is sent for each node."""
    is_letter: bool = False  # whether the engine draws one of the options, which have one token each
    by_rank: dict[int, EngineRequest] = field(default_factory=dict)
    """Requests for the answer (rank 1), and for further options by rank of their likelihood."""
    error: str | None = None
    is_prompt: bool = False  # whether only the prompt is fed so far, for the gate
    dropped: bool = False


def compute_ring(config: AskConfig) -> int:
    """Return the number of an answer's last tokens whose states the tap keeps, since a stop string may cut some off."""
    return 4 + max((len(stop.encode()) for stop in config.decoding.stop), default=0)


def answer_params(given: TokenisedRequest, decoding: DecodingConfig, stop_ids: Iterable[int], seed: int | None) -> Any:
    """Return the parameters of an answer drawn freely or along its options' trie; ``seed`` is None if greedy."""
    options = given.options
    stop = list(decoding.stop) if options is None else []
    return make_sampling_params(
        max_tokens=given.room(decoding.max_tokens) + 1,  # so that the state of the last one is fed
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        top_k=decoding.top_k,
        min_p=decoding.min_p,
        presence_penalty=decoding.presence_penalty,
        seed=seed,
        stop=stop,
        stop_token_ids=sorted(stop_ids),
        detokenize=bool(stop),
        extra_args={SURENESS: True} | ({} if options is None else {OPTIONS: options}),
    )


def make_letter_params(tokens: list[int], given: int | None = None) -> Any:
    """Return the parameters that draw one of these tokens, feed it for its state, and keep all log-probabilities.

    Only that at the index ``given``, which came with the row, can be drawn if it is set.
    """
    return make_sampling_params(
        max_tokens=2,
        min_tokens=2,
        ignore_eos=True,
        temperature=0.0,
        allowed_token_ids=sorted(set(tokens)) if given is None else [tokens[given]],
        detokenize=False,
        extra_args={LETTERS: tokens},
    )


def make_fed_params(
    *, letters: Sequence[int] = (), score_from: int | None = None, sureness: bool = False, **values: object
) -> Any:
    """Return the parameters that feed a prompt without an answer.

    The log-probabilities of the tokens ``letters`` after the prompt are kept. From position ``score_from`` on the
    prompt is an answer to score, with margin and entropy if ``sureness``.
    """
    asked: Json = {LETTERS: list(letters)} if letters else {}
    asked |= {} if score_from is None else {SCORE_FROM: score_from}
    asked |= {SURENESS: True} if sureness else {}
    return make_sampling_params(max_tokens=1, temperature=0.0, detokenize=False, extra_args=asked or None, **values)


def make_sampling_params(**values: object) -> Any:
    """Return vLLM's ``SamplingParams`` with these values and a single, final output per request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**values, output_kind=RequestOutputKind.FINAL_ONLY)
