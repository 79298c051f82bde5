"""The vLLM teacher: answers, log-probabilities and hidden states of one pass, under continuous batching.

Requests enter the engine as others leave it, and rows are yielded as they end, so that no row waits for a batch. The
engine draws the answers; their log-probabilities and states come from the tap (``vllm_tap``). Options of one token take
one request, which can draw nothing else, and one for each further option whose state is requested. Longer options take
a request for each inner node of their trie, whose common beginning the prefix cache saves, and then one for each option
whose state is requested.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_positions, find_ranks, parse
from curation.errors import ModelError
from curation.json_types import Json
from curation.models import as_user_turns, check_layers, decode_tokens, load_configuration, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import BaseTeacher, Gate, Request
from curation.teachers.completions import AnsweredRow, Array, error_batch, make_answered_batch, make_dropped_batch
from curation.teachers.prompts import (
    OptionTokens,
    TokenisedRequest,
    ask_gate,
    count_text_tokens,
    make_scored_row,
    tokenise,
)
from curation.teachers.trie import Walk
from curation.teachers.vllm_engine import Engine, Inbox, stop_ids_of
from curation.teachers.vllm_rows import (
    EngineRequest,
    EngineRow,
    answer_params,
    compute_ring,
    make_fed_params,
    make_letter_params,
)
from curation.teachers.vllm_tap import Collected

BATCH_ROWS = 128  # number of rows that are copied from the device at once

TOKENISE_ROWS = 64

MAX_TRIES = 3  # maximum number of times that an answer is fed again because the tap lost its states


class VllmTeacher(BaseTeacher):
    """A teacher for any causal LM that vLLM supports, with one engine that several threads may use at once."""

    def __init__(self, config: AskConfig, model: ModelRef | None) -> None:
        if model is None:
            raise ModelError("the vllm backend needs a model; set teacher.model.path or teacher.model.init")
        self.tokenizer = load_tokenizer(model)
        text_config = load_configuration(model).get_text_config()
        self._ref, self._text_config, self._tapped = model, text_config, config.states
        self._ask(config)
        self.state_size = int(text_config.hidden_size)
        self.stop_ids = stop_ids_of(self.tokenizer.eos_token_id, model, text_config)
        longest = getattr(text_config, "max_position_embeddings", None)
        self.engine = Engine(config, model, max_positions=longest, ring=compute_ring(config))
        self.decode_lock = threading.Lock()
        self.known = OptionTokens()

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
        self.config = config
        if config.chat_template:
            as_user_turns(self.tokenizer, [])  # refuse at once
        check_layers(self._ref, self._text_config.num_hidden_layers, config.states)

    @property
    def slots(self) -> int:
        """Maximum number of requests that the engine runs at once."""
        return self.engine.slots

    @property
    def facts(self) -> dict[str, float]:
        """Duration of the engine's start, size of its cache, slots and memory in use, for the report."""
        return self.engine.facts

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
        kept = self.config if states else self.config.model_copy(update=AskConfig.BARE)
        stream = _Stream(self, decoding, seed, kept, gate)
        try:
            yield from stream.run(requests)
        finally:
            stream.close()

    def close(self) -> None:
        """Stop the engine."""
        self.engine.close()


class _Stream:
    """One call of ``VllmTeacher.label``."""

    def __init__(
        self, teacher: VllmTeacher, decoding: DecodingConfig, seed: int, config: AskConfig, gate: Gate | None
    ) -> None:
        self._teacher, self._engine, self._decoding, self._seed = teacher, teacher.engine, decoding, seed
        self._states, self._positions = config.states, find_positions(config.states)
        self._gate = gate
        self._config = config
        self._inbox: Inbox = deque()
        self._held: set[str] = set()  # names of requests under way or to be collected
        self._ended: list[tuple[str, EngineRow, EngineRequest]] = []  # to be collected
        self._done: list[EngineRow] = []
        self._num_sent = 0

    def run(self, requests: Iterable[Request]) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        waiting = self._iter_tokenised(requests)
        more = True
        while more or self._num_sent or self._ended:
            while more and self._engine.num_unfinished < self._engine.limit:
                given = next(waiting, None)
                if given is None:
                    more = False
                elif isinstance(given, pa.RecordBatch):
                    yield given
                else:
                    self._send_row(given)
            if not self._inbox and (self._num_sent or more):  # more: another call has filled the engine
                self._engine.step()
            while self._inbox:
                name, (row, part), output = self._inbox.popleft()
                if isinstance(output, Exception):
                    raise output
                self._end(name, row, part, output.outputs[0])
            if len(self._ended) >= BATCH_ROWS or (self._ended and not self._num_sent):
                self._collect()
            while len(self._done) >= BATCH_ROWS or (self._done and not (more or self._num_sent or self._ended)):
                rows, self._done = self._done[:BATCH_ROWS], self._done[BATCH_ROWS:]
                yield from self._iter_batches(rows)

    def close(self) -> None:
        """Drop all unfinished requests."""
        if self._held:
            self._engine.drop(list(self._held))

    def _iter_tokenised(self, requests: Iterable[Request]) -> Iterator[TokenisedRequest | pa.RecordBatch]:
        """Yield tokenised requests to send, and batches of error rows for those that the model cannot take."""
        teacher, config = self._teacher, self._teacher.config
        stream = iter(requests)
        while some := list(islice(stream, TOKENISE_ROWS)):
            how = {"chat_template": config.chat_template, "reads_given": config.reads_given}
            with teacher.decode_lock:  # a fast tokenizer is not to be used by two threads at once
                rows = tokenise(teacher.tokenizer, some, known=teacher.known, **how)
            bad: dict[int, str] = {}
            for row in rows:
                problem = row.problem(teacher.engine.max_positions, self._decoding.max_tokens)
                if problem is None:
                    yield row
                else:
                    bad[row.request.row_id] = problem
            if bad:
                yield error_batch(bad, self._config, teacher.state_size)

    def _send_row(self, given: TokenisedRequest) -> None:
        options, part = given.options, EngineRequest(tokens=given.answer or [])
        row = EngineRow(given=given, left=1, by_rank={1: part})
        if given.answer is not None:
            row.text = given.request.given or ""
            self._score(row, part)
        elif options is None or given.request.is_drawn:
            row.is_prompt = self._gate is not None
            if row.is_prompt:
                self._send(row, part, given.prompt, make_fed_params())
            else:
                self._send_answer(row)
        elif max(map(len, options)) == 1 and given.request.baselines is None and not given.request.in_pairs:
            row.is_letter = True
            self._send(row, part, given.prompt, make_letter_params([tokens[0] for tokens in options], given.choice))
        else:
            trie = given.trie
            row.logprobs, row.left = [0.0] * len(trie.tokens), 1 + len(trie.inner)
            for node in (0, *trie.inner):  # the prefix cache holds the prompt
                path = EngineRequest(tokens=[trie.tokens[of] for of in trie.path(node)], node=node)
                params = make_fed_params(letters=list(trie.children[node]))
                self._send(row, path, given.prompt + path.tokens, params)

    def _send_answer(self, row: EngineRow) -> None:
        seed = row.given.request.make_seed(self._seed) if self._decoding.temperature else None
        params = answer_params(row.given, self._decoding, self._teacher.stop_ids, seed)
        self._send(row, row.by_rank[1], row.given.prompt, params)

    def _score(self, row: EngineRow, part: EngineRequest) -> None:
        """Feed an answer after its prompt; retries do not read the prefix cache."""
        prompt, sure, again = row.given.prompt, row.given.request.is_drawn, part.tries > 0
        params = make_fed_params(score_from=len(prompt), sureness=sure, skip_reading_prefix_cache=again)
        self._send(row, part, prompt + part.tokens, params)

    def _send(self, row: EngineRow, part: EngineRequest, tokens: list[int], params: object) -> None:
        self._held.add(self._engine.submit(tokens, params, self._inbox, (row, part)))
        self._num_sent += 1

    def _end(self, name: str, row: EngineRow, part: EngineRequest, output: Any) -> None:
        """Set a part's tokens and its row's answer from the engine's output, and queue the part for collection."""
        self._num_sent -= 1
        self._ended.append((name, row, part))
        if row.is_prompt or part.node is not None or part.tries or part.short or part is not row.by_rank[1]:
            return  # a prompt alone; a node; fed again, for what the tap lacked; or given
        if row.given.answer is not None:
            return  # it came with the row
        if row.is_letter:
            part.tokens = [output.token_ids[0]]
        elif row.given.options is None:
            self._cut(row, part, list(output.token_ids), by_token=output.finish_reason == "stop")
        elif row.given.request.is_drawn:
            walk = Walk(row.given.trie)
            part.tokens = [token for token in output.token_ids if walk.go(token)]
            row.text = walk.option_of(row.given.request.options or ())

    def _cut(self, row: EngineRow, part: EngineRequest, tokens: list[int], *, by_token: bool) -> None:
        """Set text and tokens of an answer, without its stop token or string and the token beyond the cap."""
        limit = self._decoding.max_tokens
        by_token = by_token and tokens[-1] in self._teacher.stop_ids
        kept = tokens[:-1] if by_token else tokens[:limit]
        row.truncated = not by_token and len(tokens) > limit
        row.text = self._decode(kept)
        cuts = [place for stop in self._decoding.stop if (place := row.text.find(stop)) >= 0]
        if cuts:
            row.text, row.truncated = row.text[: min(cuts)], False
            kept = kept[: count_text_tokens(row.text, kept, self._decode)]
        part.tokens = kept

    def _decode(self, tokens: list[int]) -> str:
        return decode_tokens(self._teacher.tokenizer, tokens)

    def _collect(self) -> None:
        """Collect the tap's data of the parts that ended, and feed again those whose states it could not keep."""
        ended, self._ended = self._ended, []
        asked = [(name, 0 if part.short or part.node is not None else len(part.tokens)) for name, _, part in ended]
        found = self._engine.collect(asked)
        self._held.difference_update(name for name, _ in asked)
        prompts = [(place, row) for place, (_, row, _) in enumerate(ended) if row.is_prompt]
        others = [(place, row, part) for place, (_, row, part) in enumerate(ended) if not row.is_prompt]
        self._pass_prompts(prompts, found)
        for place, row, part in others:
            if part.node is not None:
                trie = row.given.trie
                for child, logprob in zip(trie.children[part.node].values(), found.letters[place], strict=True):
                    row.logprobs[child] = logprob
                row.left -= 1
                if row.left == 0:
                    self._choose(row, trie.along(row.logprobs))
                continue
            states = [found.states[position][place] for position in self._positions]
            fate = found.fates[place]
            if row.is_letter and row.answer is None:  # computed in the first step, and so never lost
                self._choose(row, [[logprob] for logprob in found.letters[place]])
            if fate == "lost":
                part.short, part.tries = False, part.tries + 1
                if part.tries <= MAX_TRIES:
                    self._score(row, part)
                    continue
                row.error = "states_lost: the engine computed this answer's states out of order, again and again"
            elif part.short:
                self._complete(part, states[0])
            else:
                part.summary, part.states = found.summaries[place], states
                if fate == "short" and self._states:
                    part.short = True
                    self._send(row, part, row.given.prompt + part.tokens, make_fed_params())
                    continue
            row.left -= 1
            if row.left == 0:
                self._done.append(row)

    def _pass_prompts(self, asked: list[tuple[int, EngineRow]], found: Collected) -> None:
        """Send requests for the answers of the prompts that the gate passes, and drop the other rows."""
        if not asked or self._gate is None:
            return
        wide_ND = np.stack([found.states["prompt_last"][place] for place, _ in asked])
        rows = [row for _, row in asked]
        passes_N = ask_gate(self._gate, [row.given for row in rows], wide_ND, self._config)
        for row, passes in zip(rows, passes_N.tolist(), strict=True):
            row.is_prompt = False
            if passes:
                self._send_answer(row)
            else:
                row.dropped = True
                self._done.append(row)

    def _choose(self, row: EngineRow, by_token: list[list[float]]) -> None:
        """Set the answer of a row whose options are scored, and feed the options whose states are requested."""
        drawn, normalise = None, self._decoding.normalise_options
        if row.is_letter:
            choice = row.given.choice
            drawn = (row.given.options or []).index(row.by_rank[1].tokens) if choice is None else choice
        row.answer, ranked = make_scored_row(row.given, by_token, normalise=normalise, drawn=drawn)
        ranks = (1, *find_ranks(self._states)) if self._states else ()
        for rank in ranks[1:] if row.is_letter else ranks:  # the engine has fed the letter that it drew
            if rank <= len(ranked):
                part = row.by_rank[rank] = EngineRequest(tokens=ranked[rank - 1])
                row.left += 1
                self._score(row, part)
        if row.left == 0:
            self._done.append(row)

    def _iter_batches(self, rows: list[EngineRow]) -> Iterator[pa.RecordBatch]:
        """Yield up to three batches: rows that failed, rows that the gate dropped, and answered rows."""
        config, state_size = self._config, self._teacher.state_size
        if bad := {row.given.request.row_id: row.error for row in rows if row.error is not None}:
            yield error_batch(bad, config, state_size)
        if dropped := [row.given for row in rows if row.dropped]:
            num_tokens = {given.request.row_id: len(given.prompt) for given in dropped}
            yield make_dropped_batch(num_tokens, config, state_size)
        answered = [row for row in rows if row.error is None and not row.dropped]
        if not answered:
            return
        states: dict[tuple[str, int], Array] = {}
        for position, rank in dict.fromkeys((state.position, state.rank) for state in map(parse, config.states)):
            place = self._positions.index(position)
            none_D = np.zeros_like(answered[0].by_rank[1].states[place])  # of a row with fewer options
            parts = [row.by_rank.get(rank) for row in answered]
            states[position, rank] = np.stack([none_D if part is None else part.states[place] for part in parts])
        answers = [_make_answered_row(row) if row.answer is None else row.answer for row in answered]
        yield make_answered_batch(answers, states, config)

    def _complete(self, part: EngineRequest, last_D: Array) -> None:
        """Add the state of the answer's last token, which a further request computed."""
        for place, position in enumerate(self._positions):
            if position == "output_last" or (position == "output_first" and len(part.tokens) == 1):
                part.states[place] = last_D
            elif position == "output_mean":
                part.states[place] = part.states[place] + last_D / len(part.tokens)


def _make_answered_row(row: EngineRow) -> AnsweredRow:
    """Return a row whose answer was drawn or read."""
    part = row.by_rank[1]
    assert part.summary is not None, "the row has ended"
    logprob, logprobs, margins, negentropies = part.summary
    return AnsweredRow(
        row_id=row.given.request.row_id,
        completion=row.text,
        num_prompt_tokens=len(row.given.prompt),
        num_output_tokens=len(part.tokens),
        truncated=row.truncated,
        mean_logprob=logprob / len(part.tokens) if part.tokens else None,
        token_logprobs=logprobs,
        margins=margins,
        negentropies=negentropies,
    )
