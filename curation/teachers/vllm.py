"""The vLLM teacher: answers, log-probabilities and hidden states of one pass, under continuous batching.

Requests enter the engine as others leave it, and rows are yielded as they end, so that no row waits for a batch. The
engine draws the answers; their log-probabilities and states come from the tap (``vllm_tap``). Options of one token take
one request, which can draw nothing else, and one for each further option whose state is requested. Longer options take
a request for each inner node of their trie, whose common beginning the prefix cache saves, and then one for each option
whose state is requested.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_positions, find_ranks, parse
from curation.json_types import Json
from curation.refs import ModelRef
from curation.teachers import Gate, Request
from curation.teachers.completions import AnsweredRow, Array, error_batch, make_answered_batch
from curation.teachers.prompts import ModelTeacher, TokenisedRequest, ask_gate, cut_at_stop, make_scored_row
from curation.teachers.trie import OPTIONS, Walk
from curation.teachers.vllm_engine import Engine, Inbox, stop_ids_of
from curation.teachers.vllm_logprobs import Summary
from curation.teachers.vllm_tap import LETTERS, SCORE_FROM, SURENESS

BATCH_ROWS = 128  # number of rows that are copied from the device at once

TOKENISE_ROWS = 64

MAX_TRIES = 3  # maximum number of times that an answer is fed again because the tap lost its states


class VllmTeacher(ModelTeacher):
    """A teacher for any causal LM that vLLM supports, with one engine that several threads may use at once."""

    def __init__(self, config: AskConfig, model: ModelRef | None) -> None:
        self._tapped = config.states
        super().__init__(config, model)
        self.state_size = int(self._text_config.hidden_size)
        self.stop_ids = stop_ids_of(self._tokenizer.eos_token_id, self._ref, self._text_config)
        longest = getattr(self._text_config, "max_position_embeddings", None)
        self.engine = Engine(config, self._ref, max_positions=longest, ring=compute_ring(config))
        self.slots, self.facts = self.engine.slots, self.engine.facts
        self._decode_lock = threading.Lock()

    @staticmethod
    def engine_key(config: AskConfig) -> Json:
        """Return the engine's arguments, and the settings of what its tap keeps."""
        return {
            "dtype": config.dtype,
            "vllm": config.vllm.model_dump(mode="json"),
            "num_gpus": config.actors.num_gpus,
            "states": sorted(config.states),
            "token_logprobs": config.token_logprobs,
            "ring": compute_ring(config),
        }

    def _ask(self, config: AskConfig) -> None:
        assert config.states in ((), self._tapped), "the engine's states come all together"
        super()._ask(config)

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as they end, up to 128 in a batch; ``requests`` is read as the engine takes them.

        With a gate the prompt is fed alone first; the request for the answer then finds it in the prefix cache.
        """
        kept = self._config if states else self._config.model_copy(update=AskConfig.BARE)
        stream = _Stream(self, decoding, seed, kept, gate)
        try:
            yield from stream.run(self._iter_tokenised(iter(requests), decoding.max_tokens, kept))
        finally:
            if stream.held:
                self.engine.drop(list(stream.held))

    def _iter_tokenised(
        self, requests: Iterator[Request], max_tokens: int, kept: AskConfig
    ) -> Iterator[TokenisedRequest | pa.RecordBatch]:
        """Yield tokenised requests to send, and batches of error rows for those that the model cannot take."""
        while some := list(islice(requests, TOKENISE_ROWS)):
            with self._decode_lock:  # a fast tokenizer is not to be used by two threads at once
                rows, errors = self._tokenise(some, self.engine.max_positions, max_tokens)
            yield from rows
            if errors:
                yield error_batch(errors, kept, self.state_size)

    def close(self) -> None:
        """Stop the engine."""
        self.engine.close()


@dataclass(kw_only=True, eq=False)
class _EngineRequest:
    """A request to the engine for a row's prompt, its answer, an option or a node of the options' trie, with its data.

    Summary and states are those of the newest request for the part, with states by ``find_positions``, hidden_D each.
    """

    tokens: list[int] = field(default_factory=list)  # of the answer or option whose numbers and states are requested
    read: Callable[[Any], list[int]] | None = None  # returns these tokens if the engine draws them, from its output
    is_last: bool = False  # whether only the state of the last token is requested
    tries: int = 0
    fate: str = ""  # as in ``Collected``
    letters: Sequence[float] = ()
    summary: Summary | None = None
    states: list[Array] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class _EngineRow:
    """An open request of the teacher."""

    given: TokenisedRequest
    work: Iterator[None] = field(init=False)  # goes on when no part is under way
    num_sent: int = 0  # parts under way
    by_rank: dict[int, _EngineRequest] = field(default_factory=dict)
    """The answer (rank 1), and further options whose states are requested, by rank of their likelihood."""
    text: str = ""
    truncated: bool = False
    answer: AnsweredRow | None = None  # of options, once they are scored
    error: str | None = None
    is_gated: bool = False  # whether the gate is to be asked once the prompt is fed
    passes: bool = True  # the gate's decision


class _Stream:
    """One call of ``VllmTeacher.label``."""

    def __init__(
        self, teacher: VllmTeacher, decoding: DecodingConfig, seed: int, config: AskConfig, gate: Gate | None
    ) -> None:
        self._teacher, self._engine, self._decoding, self._seed = teacher, teacher.engine, decoding, seed
        self._config, self._positions, self._gate = config, find_positions(config.states), gate
        self._inbox: Inbox = deque()
        self.held: set[str] = set()  # names of requests under way or to be collected
        self._ended: list[tuple[str, _EngineRow, _EngineRequest]] = []  # to be collected
        self._done: list[_EngineRow] = []

    def run(self, waiting: Iterator[TokenisedRequest | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, and the batches that are among the requests."""
        more = True
        while more or self.held:
            while more and self._engine.num_unfinished < self._engine.limit:
                given = next(waiting, None)
                if given is None:
                    more = False
                elif isinstance(given, pa.RecordBatch):
                    yield given
                else:
                    row = _EngineRow(given=given)
                    row.work = self._answer(row)
                    next(row.work)
            if not self._inbox and (more or len(self.held) > len(self._ended)):  # more: another call fills the engine
                self._engine.step()
            while self._inbox:
                name, (row, part), output = self._inbox.popleft()
                if isinstance(output, Exception):
                    raise output
                if part.read is not None:
                    part.tokens, part.read = part.read(output.outputs[0]), None
                self._ended.append((name, row, part))
            if len(self._ended) >= BATCH_ROWS or (self._ended and len(self.held) == len(self._ended)):
                self._collect()
            while len(self._done) >= BATCH_ROWS or (self._done and not (more or self.held)):
                rows, self._done = self._done[:BATCH_ROWS], self._done[BATCH_ROWS:]
                yield from self._iter_batches(rows)

    def _answer(self, row: _EngineRow) -> Iterator[None]:
        """Send a row's requests, and go on each time that the data of all sent ones is collected, up to its answer."""
        given, request, options = row.given, row.given.request, row.given.options
        answer = _EngineRequest(tokens=given.answer or [])
        row.by_rank[1] = answer
        if given.answer is not None:
            row.text = request.given or ""
            self._score(row, answer)
        elif options is None or request.is_drawn:
            if self._gate is not None:
                row.is_gated = True
                self._send(row, answer, given.prompt, make_fed_params())
                yield
                if not row.passes:
                    return
            seed = request.make_seed(self._seed) if self._decoding.temperature else None
            answer.read = lambda output: self._read_drawn(row, output)
            params = make_drawn_params(given, self._decoding, self._teacher.stop_ids, seed)
            self._send(row, answer, given.prompt, params)
        elif max(map(len, options)) == 1 and request.baselines is None and not request.in_pairs:
            answer.read = lambda output: [output.token_ids[0]]
            letters = [tokens[0] for tokens in options]
            params = make_sampling_params(  # draws one of them, and feeds it for its state
                max_tokens=2,
                min_tokens=2,
                ignore_eos=True,
                temperature=0.0,
                allowed_token_ids=sorted(set(letters)) if given.choice is None else [letters[given.choice]],
                detokenize=False,
                extra_args={LETTERS: letters},
            )
            self._send(row, answer, given.prompt, params)
            yield
            drawn = options.index(answer.tokens) if given.choice is None else given.choice
            self._choose(row, [[logprob] for logprob in answer.letters], drawn)
        else:
            trie, nodes = given.trie, {node: _EngineRequest() for node in (0, *given.trie.inner)}
            for node, part in nodes.items():  # the prefix cache holds the prompt
                path = [trie.tokens[of] for of in trie.path(node)]
                self._send(row, part, given.prompt + path, make_fed_params(letters=list(trie.children[node])))
            yield
            logprobs = [0.0] * len(trie.tokens)
            for node, part in nodes.items():
                for child, logprob in zip(trie.children[node].values(), part.letters, strict=True):
                    logprobs[child] = logprob
            row.by_rank.clear()
            self._choose(row, trie.along(logprobs))
        parts = list(row.by_rank.values())
        while parts:
            if row.num_sent:
                yield
            parts = [part for part in parts if self._feed_again(row, part)]

    def _score(self, row: _EngineRow, part: _EngineRequest) -> None:
        """Feed an answer after its prompt; retries do not read the prefix cache."""
        prompt, sure, again = row.given.prompt, row.given.request.is_drawn, part.tries > 0
        params = make_fed_params(score_from=len(prompt), sureness=sure, skip_reading_prefix_cache=again)
        self._send(row, part, prompt + part.tokens, params)

    def _send(self, row: _EngineRow, part: _EngineRequest, tokens: list[int], params: object) -> None:
        self.held.add(self._engine.submit(tokens, params, self._inbox, (row, part)))
        row.num_sent += 1

    def _read_drawn(self, row: _EngineRow, output: Any) -> list[int]:
        """Set a drawn answer's text; return its tokens, without stop token or string and the token beyond the cap."""
        tokens, limit = list(output.token_ids), self._decoding.max_tokens
        if row.given.options is not None:
            walk = Walk(row.given.trie)
            kept = [token for token in tokens if walk.go(token)]
            row.text = walk.option_of(row.given.request.options or ())
            return kept
        by_token = output.finish_reason == "stop" and tokens[-1] in self._teacher.stop_ids
        kept = tokens[:-1] if by_token else tokens[:limit]
        row.text, row.truncated = self._teacher.decode(kept), not by_token and len(tokens) > limit
        if (cut := cut_at_stop(row.text, kept, self._decoding.stop, self._teacher.decode)) is not None:
            row.text, row.truncated, kept = cut[0], False, kept[: cut[1]]
        return kept

    def _collect(self) -> None:
        """Collect the tap's data of the parts that ended, ask the gate about prompts, and let the rows go on."""
        ended, self._ended = self._ended, []
        found = self._engine.collect([(name, 0 if part.is_last else len(part.tokens)) for name, _, part in ended])
        self.held.difference_update(name for name, _, _ in ended)
        prompts = [(place, row) for place, (_, row, _) in enumerate(ended) if row.is_gated]
        if prompts and self._gate is not None:
            wide_ND = np.stack([found.states["prompt_last"][place] for place, _ in prompts])
            passes_N = ask_gate(self._gate, [row.given for _, row in prompts], wide_ND, self._config)
            for (_, row), passes in zip(prompts, passes_N.tolist(), strict=True):
                row.is_gated, row.passes = False, passes
        for place, (_, row, part) in enumerate(ended):
            part.fate, part.letters = found.fates[place], found.letters[place]
            states = [found.states[position][place] for position in self._positions]
            if part.is_last and part.fate != "lost":
                self._complete(part, states[0])
            elif not part.is_last:
                part.summary, part.states = found.summaries[place], states
            row.num_sent -= 1
            if row.num_sent == 0 and next(row.work, row) is row:
                self._done.append(row)

    def _feed_again(self, row: _EngineRow, part: _EngineRequest) -> bool:
        """Feed an answer or option again if the tap could not keep its states; return whether that was so."""
        if part.fate == "lost":
            part.is_last, part.tries = False, part.tries + 1
            if part.tries > MAX_TRIES:
                row.error = "states_lost: the engine computed this answer's states out of order, again and again"
                return False
            self._score(row, part)
            return True
        if part.fate == "short" and self._config.states and not part.is_last:
            part.is_last = True
            self._send(row, part, row.given.prompt + part.tokens, make_fed_params())
            return True
        return False

    def _complete(self, part: _EngineRequest, last_D: Array) -> None:
        """Add the state of the answer's last token, which a further request computed."""
        for place, position in enumerate(self._positions):
            if position == "output_last" or (position == "output_first" and len(part.tokens) == 1):
                part.states[place] = last_D
            elif position == "output_mean":
                part.states[place] = part.states[place] + last_D / len(part.tokens)

    def _choose(self, row: _EngineRow, by_token: list[list[float]], drawn: int | None = None) -> None:
        """Set the answer of a row whose options are scored, and feed the options whose states are requested."""
        normalise, states = self._decoding.normalise_options, self._config.states
        row.answer, ranked = make_scored_row(row.given, by_token, normalise=normalise, drawn=drawn)
        for rank in (1, *find_ranks(states)) if states else ():
            if rank <= len(ranked) and rank not in row.by_rank:  # the engine has fed the letter that it drew
                part = row.by_rank[rank] = _EngineRequest(tokens=ranked[rank - 1])
                self._score(row, part)

    def _iter_batches(self, rows: list[_EngineRow]) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the rows that failed or that the gate stopped, if any, and one of answered rows."""
        config = self._config
        bad = {row.given.request.row_id: row.error for row in rows if row.error is not None}
        stopped = {row.given.request.row_id: len(row.given.prompt) for row in rows if not row.passes}
        if bad or stopped:
            yield error_batch(bad, config, self._teacher.state_size, stopped=stopped)
        answered = [row for row in rows if row.error is None and row.passes]
        if not answered:
            return
        states: dict[tuple[str, int], Array] = {}
        for position, rank in dict.fromkeys((state.position, state.rank) for state in map(parse, config.states)):
            place = self._positions.index(position)
            none_D = np.zeros_like(answered[0].by_rank[1].states[place])  # of a row with fewer options
            parts = [row.by_rank.get(rank) for row in answered]
            states[position, rank] = np.stack([none_D if part is None else part.states[place] for part in parts])
        yield make_answered_batch([row.answer or _make_answered_row(row) for row in answered], states, config)


def _make_answered_row(row: _EngineRow) -> AnsweredRow:
    """Return a row whose answer was drawn or read."""
    tokens, summary = row.by_rank[1].tokens, row.by_rank[1].summary
    assert summary is not None, "the row has ended"
    return AnsweredRow(
        row_id=row.given.request.row_id,
        completion=row.text,
        num_prompt_tokens=len(row.given.prompt),
        num_output_tokens=len(tokens),
        truncated=row.truncated,
        mean_logprob=summary.logprob / len(tokens) if tokens else None,
        token_logprobs=summary.logprobs,
        margins=summary.margins,
        negentropies=summary.negentropies,
    )


def compute_ring(config: AskConfig) -> int:
    """Return the number of an answer's last tokens whose states the tap keeps, since a stop string may cut some off."""
    return 4 + max((len(stop.encode()) for stop in config.decoding.stop), default=0)


def make_drawn_params(
    given: TokenisedRequest, decoding: DecodingConfig, stop_ids: Iterable[int], seed: int | None
) -> Any:
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
