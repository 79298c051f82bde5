"""Open rows of the vLLM teacher: their requests to the engine, and the parameters of these."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_positions, parse
from curation.json_types import Json
from curation.teachers.completions import (
    AnsweredRow,
    Array,
    OfTokens,
    error_batch,
    make_answered_batch,
    make_dropped_batch,
    make_paired_row,
    rank_options,
    subtract_baselines,
)
from curation.teachers.prompts import TokenisedRequest
from curation.teachers.trie import OPTIONS, Trie
from curation.teachers.vllm_tap import LETTERS, SCORE_FROM, SURENESS


@dataclass(kw_only=True)
class EngineRequest:
    """A request to the engine for a row's answer, an option or a node of the options' trie, with its result."""

    tokens: list[int]  # tokens of the answer or option, or of the path to the node
    node: int | None = None  # node of the options' trie whose children's log-probabilities are requested
    logprob: float = 0.0  # sum of the log-probabilities of its tokens
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the first tokens, followed by the least and the last one if the answer is longer."""
    margins: OfTokens | None = None
    negentropies: OfTokens | None = None
    states: list[Array] = field(default_factory=list)
    """hidden_D of each position, in the order of ``find_positions``, with concatenated layers."""
    short: bool = False  # whether only the state of the answer's last token is missing
    tries: int = 0


class Scoring:
    """Scores of a row's options from the log-probabilities at the nodes of their trie.

    For each node with children a request feeds the prompt, which the prefix cache holds, and the path to the node.
    """

    def __init__(self, trie: Trie) -> None:
        self._trie = trie
        self._logprobs = [0.0] * len(trie.tokens)
        self.parts = [
            EngineRequest(tokens=[trie.tokens[of] for of in trie.path(node)], node=node) for node in (0, *trie.inner)
        ]
        """Requests to send, one per node with children."""

    def asks(self, part: EngineRequest) -> list[int]:
        """Return the tokens whose log-probabilities a part requests."""
        return list(self._trie.children[part.node or 0])

    def take(self, part: EngineRequest, logprobs: Sequence[float]) -> None:
        """Set the log-probabilities of the tokens of :meth:`asks`."""
        for child, logprob in zip(self._trie.children[part.node or 0].values(), logprobs, strict=True):
            self._logprobs[child] = logprob

    @property
    def by_token(self) -> list[list[float]]:
        """Log-probabilities of each option's tokens."""
        return self._trie.along(self._logprobs)

    def scores(self, *, normalise: bool) -> list[float]:
        """Return the options' scores: the sum of an option's log-probabilities, or with ``normalise`` their mean."""
        return [sum(values) / (len(values) if normalise else 1) for values in self.by_token]

    def chosen_by(self, given: TokenisedRequest, *, normalise: bool) -> list[float]:
        """Return the scores by which an option is chosen: :meth:`scores` minus the request's baselines, if any."""
        return subtract_baselines(self.scores(normalise=normalise), given.request.baselines)

    def order(self, given: TokenisedRequest, *, normalise: bool) -> list[int]:
        """Return the options' indices by descending likelihood, after that of an option that came with the row."""
        return rank_options(self.chosen_by(given, normalise=normalise), given.choice)


@dataclass(kw_only=True)
class EngineRow:
    """An open request of the teacher."""

    given: TokenisedRequest
    parts: list[EngineRequest]
    left: int  # number of parts that are not done
    text: str = ""
    truncated: bool = False
    letters: list[float] | None = None  # log-probabilities of options of one token
    scoring: Scoring | None = None
    """Scoring of the options, or None if the engine draws the answer or it came with the row."""
    choice: int = 0
    by_rank: dict[int, EngineRequest] = field(default_factory=dict)
    """The answer (rank 1) and further options by rank of their likelihood, if they are fed."""
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


@dataclass(frozen=True)
class RowBatches:
    """A converter of the rows of one call to record batches."""

    config: AskConfig
    state_size: int
    normalise_options: bool

    def of(self, rows: Sequence[EngineRow]) -> Iterator[pa.RecordBatch]:
        """Yield up to three batches: rows that failed, rows that the gate dropped, and answered rows."""
        bad = {row.given.request.row_id: row.error for row in rows if row.error is not None}
        if bad:
            yield error_batch(bad, self.config, self.state_size)
        if dropped := [row.given for row in rows if row.dropped]:
            num_tokens = {given.request.row_id: len(given.prompt) for given in dropped}
            yield make_dropped_batch(num_tokens, self.config, self.state_size)
        answered = [row for row in rows if row.error is None and not row.dropped]
        if not answered:
            return
        answers, names = [self._make_answered_row(row) for row in answered], self.config.states
        positions = find_positions(names)
        states: dict[tuple[str, int], Array] = {}
        for position, rank in dict.fromkeys((state.position, state.rank) for state in map(parse, names)):
            place = positions.index(position)
            none_D = np.zeros_like(answered[0].by_rank[1].states[place])  # of a row with fewer options
            parts = [row.by_rank.get(rank) for row in answered]
            states[position, rank] = np.stack([none_D if part is None else part.states[place] for part in parts])
        yield make_answered_batch(answers, states, self.config)

    def _make_answered_row(self, row: EngineRow) -> AnsweredRow:
        """Return a row that has ended, with its answer, the part of rank 1."""
        options, scoring = row.given.request.options, row.scoring
        if scoring is not None and row.given.request.in_pairs:
            lengths = [len(tokens) for tokens in row.given.options or []]
            scores, num_tokens = scoring.scores(normalise=False), len(row.given.prompt)
            return make_paired_row(row.given.request, scores, num_prompt_tokens=num_tokens, lengths=lengths)
        if scoring is None:
            row.by_rank[1] = row.parts[0]
        if options is not None and not row.given.request.is_drawn:
            row.text = options[row.choice]
        part, normalise = row.by_rank[1], self.normalise_options
        return AnsweredRow(
            row_id=row.given.request.row_id,
            completion=row.text,
            num_prompt_tokens=len(row.given.prompt),
            num_output_tokens=len(part.tokens),
            truncated=row.truncated,
            mean_logprob=part.logprob / len(part.tokens) if part.tokens else None,
            token_logprobs=part.logprobs,
            margins=part.margins,
            negentropies=part.negentropies,
            option_logprobs=row.letters if scoring is None else scoring.scores(normalise=False),
            option_scores=row.letters if scoring is None else scoring.chosen_by(row.given, normalise=normalise),
            given_option=row.given.choice,
        )
