"""Answers decoded by a causal LM, greedily or sampled, with their log-probabilities and hidden states.

The state at token k is known in the step that draws token k + 1. So a row that ends by a stop token has its last state
in that step, and a row that ends at the length cap or with its option needs one step more. Log-probabilities, margins
and entropies are the model's own, before penalty, temperature and limits.

An answer constrained to options continues only with tokens that lead to an option. It ends where no option continues;
where one option ends and another continues, an end token may be drawn too. ``max_tokens`` and ``stop`` do not apply.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import (
    MinPLogitsWarper,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_layers, find_positions
from curation.hashing import hash64
from curation.models import decode_tokens
from curation.teachers import Gate
from curation.teachers.completions import (
    AnsweredRow,
    Array,
    OfTokens,
    completion_batch,
    make_dropped_batch,
    prompt_batch,
    prompt_states,
    select_by_name,
)
from curation.teachers.forward import Forward
from curation.teachers.logit_numbers import compute_sureness
from curation.teachers.prompts import TokenisedRequest
from curation.teachers.trie import Walk, bar_others

HALF = "\ufffd"
"""Replacement character, which a tokenizer writes for bytes that are not a complete character."""


@dataclass(kw_only=True)
class _OpenAnswer:
    """An answer that is being decoded."""

    generator: torch.Generator | None
    walk: Walk | None = None  # of an answer that is held to options
    options: Sequence[str] = ()
    tokens: list[int] = field(default_factory=list)  # the answer so far, without a stop token
    logprobs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    negentropies: list[float] = field(default_factory=list)
    text: str = ""
    truncated: bool = False
    num_content: int | None = None  # set once the answer's end is known

    def go_on(self, token: int, numbers: Sequence[float]) -> None:
        """Add a token with its log-probability, and margin and negative entropy of its distribution."""
        self.tokens.append(token)
        for kept, number in zip((self.logprobs, self.margins, self.negentropies), numbers, strict=True):
            kept.append(number)


class Decoder:
    """A decoder that draws answers token by token."""

    def __init__(self, forward: Forward, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]) -> None:
        self._forward = forward
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._piece_texts: dict[int, str] = {}

    @torch.inference_mode()
    def complete(
        self,
        requests: Sequence[TokenisedRequest],
        config: AskConfig,
        decoding: DecodingConfig,
        *,
        seed: int,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield completions of requests that fit one batch: the rows that ``gate`` stopped, if any, then the others."""
        prompts = [request.prompt for request in requests]
        prefix, (logits_B1V, hidden_B1D) = self._forward.start(prompts, find_layers(config.states))
        if gate is not None:
            passes_B = gate(_make_prompt_batch(requests, hidden_B1D[:, 0], gate, config))
            if not passes_B.all():
                stopped = [requests[place] for place in np.flatnonzero(~passes_B).tolist()]
                num_tokens = {request.request.row_id: len(request.prompt) for request in stopped}
                yield make_dropped_batch(num_tokens, config, self._forward.state_size)
                kept = np.flatnonzero(passes_B).tolist()
                if not kept:
                    return
                kept_K = self._forward.tensor(kept)
                requests, prefix = [requests[place] for place in kept], prefix.select(kept_K)
                logits_B1V, hidden_B1D = logits_B1V[kept_K], hidden_B1D[kept_K]
        row_ids_B = np.array([request.request.row_id for request in requests], dtype=np.int64)
        seeds = (hash64(row_ids_B, seed) >> np.uint64(1)).tolist()
        rows = [
            _OpenAnswer(
                generator=torch.Generator().manual_seed(own) if decoding.temperature else None,
                walk=None if request.options is None else Walk(request.trie),
                options=request.request.options or (),
            )
            for request, own in zip(requests, seeds, strict=True)
        ]
        active = list(range(len(rows)))
        keep = 2 + max((len(end.encode()) for end in decoding.stop), default=0)  # tokens: a byte each, at least
        states = _States(hidden_B1D[:, 0], find_positions(config.states), keep=keep)
        seen_BV = torch.zeros_like(logits_B1V[:, 0], dtype=torch.bool) if decoding.presence_penalty else None
        while True:
            self._draw([rows[index] for index in active], logits_B1V[:, 0], seen_BV, decoding)
            ended = [place for place, index in enumerate(active) if self._has_ended(rows[index], states.num_steps)]
            states.finish(
                ended, [active[place] for place in ended], [rows[active[place]].num_content or 0 for place in ended]
            )
            if len(ended) == len(active):
                break
            if ended and 2 * len(ended) >= len(active):  # go on with the others alone once they are the smaller half
                gone = set(ended)
                kept = [place for place in range(len(active)) if place not in gone]
                kept_K = self._forward.tensor(kept)
                prefix = prefix.select(kept_K)
                states.select(kept_K)
                seen_BV = None if seen_BV is None else seen_BV[kept_K]
                active = [active[place] for place in kept]
            # A finished row that stays in the batch is fed its last token again; what it gives is not read.
            next_B1 = self._forward.tensor(
                [[rows[index].tokens[-1] if rows[index].tokens else self._forward.pad] for index in active]
            )
            logits_B1V, hidden_B1D = self._forward.extend(prefix, next_B1)
            states.answer(hidden_B1D[:, 0])
        yield _make_batch(requests, rows, states, config)

    def _draw(
        self, rows: list[_OpenAnswer], logits_BV: torch.Tensor, seen_BV: torch.Tensor | None, decoding: DecodingConfig
    ) -> None:
        """Append the next token of each row that has not ended, and check whether it ends the answer.

        ``seen_BV`` marks the tokens of each answer, and is updated in place.
        """
        allowed_BV = logits_BV if seen_BV is None else logits_BV - decoding.presence_penalty * seen_BV
        walks = {place: row.walk for place, row in enumerate(rows) if row.walk is not None and row.num_content is None}
        if walks:
            held = {place: walk.allowed(self._stop_ids) for place, walk in walks.items()}
            allowed_BV = allowed_BV.clone()
            bar_others(allowed_BV, held)
        if decoding.temperature == 0:
            chosen_B = allowed_BV.argmax(dim=-1)
        else:
            probs_BV = compute_distribution(allowed_BV, decoding).cpu()
            draws = [
                torch.multinomial(probs_V, 1, generator=row.generator)
                for probs_V, row in zip(probs_BV, rows, strict=True)
            ]
            chosen_B = torch.cat(draws).to(logits_BV.device)
        if seen_BV is not None:
            seen_BV.scatter_(1, chosen_B[:, None], True)
        whole_B = logits_BV.logsumexp(dim=-1)
        logprob_B = logits_BV.gather(1, chosen_B[:, None])[:, 0] - whole_B
        numbers_B3 = torch.cat([logprob_B[:, None], compute_sureness(logits_BV, whole_B)], dim=1)
        for row, token, numbers in zip(rows, chosen_B.tolist(), numbers_B3.tolist(), strict=True):
            if row.num_content is not None:
                continue
            if row.walk is not None:
                self._go(row, row.walk, token, numbers)
            elif token in self._stop_ids:
                row.num_content, row.text = len(row.tokens), self._decode(row.tokens)
            elif len(row.tokens) == decoding.max_tokens:  # the step beyond the cap: its token is dropped
                row.num_content, row.text, row.truncated = len(row.tokens), self._decode(row.tokens), True
            else:
                row.go_on(token, numbers)
                self._cut_at_stop(row, decoding.stop)

    def _go(self, row: _OpenAnswer, walk: Walk, token: int, numbers: Sequence[float]) -> None:
        goes_on = walk.go(token)
        if goes_on:
            row.go_on(token, numbers)
        if walk.is_over or not goes_on:
            row.num_content, row.text = len(row.tokens), walk.option_of(row.options)

    def _cut_at_stop(self, row: _OpenAnswer, stop: tuple[str, ...]) -> None:
        piece = self._get_piece(row.tokens[-1])
        if HALF not in piece and not any(end[-1] in piece for end in stop):
            return
        text = self._decode(row.tokens)
        cuts = [place for end in stop if (place := text.find(end)) >= 0]
        if cuts:
            row.text = text[: min(cuts)]
            row.num_content = count_text_tokens(row.text, row.tokens, self._decode)

    def _has_ended(self, row: _OpenAnswer, num_steps: int) -> bool:
        """Return whether the answer has ended and the state of its last token is known."""
        return row.num_content is not None and row.num_content <= num_steps

    def _get_piece(self, token: int) -> str:
        """Return the text that a token adds within an answer (some tokenizers omit a space at the beginning)."""
        if token not in self._piece_texts:
            self._piece_texts[token] = self._decode([token, token])[len(self._decode([token])) :]
        return self._piece_texts[token]

    def _decode(self, tokens: list[int]) -> str:
        return decode_tokens(self._tokenizer, tokens)


class _States:
    """Hidden states of a batch at the requested positions, filled in as rows end."""

    def __init__(self, prompt_BD: torch.Tensor, positions: tuple[str, ...], *, keep: int) -> None:
        """Begin with the states at the last prompt tokens; all states have their layers concatenated."""
        self.num_steps = 0
        """Number of answer tokens whose states are known."""
        self._prompt_BD = self._first_BD = prompt_BD.float()
        self._sum_BD = torch.zeros_like(self._prompt_BD)
        self._kept = {position: torch.zeros(prompt_BD.shape) for position in positions}
        self._recent: deque[torch.Tensor] = deque(maxlen=keep)  # states of the newest answer tokens, [B, D] each
        self._done: set[int] = set()

    def answer(self, hidden_BD: torch.Tensor) -> None:
        """Add the states at the answer tokens that were just fed."""
        state_BD = hidden_BD.float()
        if self.num_steps == 0:
            self._first_BD = state_BD
        self.num_steps += 1
        self._sum_BD = self._sum_BD + state_BD
        self._recent.append(state_BD)

    def finish(self, places: list[int], rows: list[int], num_content: list[int]) -> None:
        """Keep the requested states of ``rows`` (indices in the whole batch), at ``places`` among the active rows."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for place, row, length in zip(places, rows, num_content, strict=True):
            if row not in self._done:
                groups.setdefault(length, []).append((place, row))
        for length, members in groups.items():
            place_K, row_K = torch.tensor(members).T
            self._done.update(row_K.tolist())
            for position, kept_ND in self._kept.items():
                kept_ND[row_K] = self._compute_state(position, length)[place_K.to(self._prompt_BD.device)].cpu()

    def _compute_state(self, position: str, length: int) -> torch.Tensor:
        """Return the states of a position, [B, D], for answers of ``length`` tokens whose states are all known."""
        if position == "prompt_last" or length == 0:
            return self._prompt_BD
        if position == "output_first":
            return self._first_BD
        beyond = self.num_steps - length  # answer tokens seen that belong to a stop string
        if position == "output_last":
            return self._recent[-1 - beyond]
        surplus = sum(list(self._recent)[len(self._recent) - beyond :], torch.zeros_like(self._sum_BD))
        return (self._sum_BD - surplus) / length

    def select(self, places_K: torch.Tensor) -> None:
        """Drop all active rows but those at ``places_K``."""
        self._prompt_BD, self._first_BD = self._prompt_BD[places_K], self._first_BD[places_K]
        self._sum_BD = self._sum_BD[places_K]
        self._recent = deque((state_BD[places_K] for state_BD in self._recent), maxlen=self._recent.maxlen)

    def arrays(self) -> dict[tuple[str, int], Array]:
        """Return the states of all rows, float32 [N, D], by position and rank; the rank is always 1, the answer's."""
        return {(position, 1): kept_ND.numpy() for position, kept_ND in self._kept.items()}


def _make_prompt_batch(
    requests: Sequence[TokenisedRequest], hidden_BD: torch.Tensor, gate: Gate, config: AskConfig
) -> pa.RecordBatch:
    """Return the batch that a gate reads, for requests whose prompts have been fed."""
    states = prompt_states(hidden_BD.float().cpu().numpy(), config.states, gate.states)
    row_ids = [request.request.row_id for request in requests]
    return prompt_batch(row_ids, [len(request.prompt) for request in requests], states, config.state_dtype)


def _make_batch(
    requests: Sequence[TokenisedRequest], rows: Sequence[_OpenAnswer], states: "_States", config: AskConfig
) -> pa.RecordBatch:
    """Return a batch of ``schemas.make_completions_schema`` with answers that have ended."""
    answers = [
        AnsweredRow(
            row_id=request.request.row_id,
            completion=row.text,
            num_prompt_tokens=len(request.prompt),
            num_output_tokens=row.num_content,
            truncated=row.truncated,
            mean_logprob=sum(row.logprobs[: row.num_content]) / row.num_content if row.num_content else None,
            token_logprobs=row.logprobs[: row.num_content],
            margins=OfTokens.of(row.margins[: row.num_content]),
            negentropies=OfTokens.of(row.negentropies[: row.num_content]),
        )
        for request, row in zip(requests, rows, strict=True)
    ]
    return completion_batch(
        answers,
        states=select_by_name(states.arrays(), config.states),
        state_dtype=config.state_dtype,
        num_token_logprobs=config.token_logprobs,
    )


def compute_distribution(logits_BV: torch.Tensor, decoding: DecodingConfig) -> torch.Tensor:
    """Return probabilities after temperature, top-k, top-p and min-p, applied one after the other, float32 [B, V].

    The warpers and their order are those of transformers. vLLM applies min-p before top-k and top-p, which keeps the
    same tokens unless top-p is below 1 too. In both, the caller has subtracted the presence penalty from the logits.
    """
    ids: Any = None  # the tokens so far, which none of these reads
    scores = TemperatureLogitsWarper(decoding.temperature)(ids, logits_BV)
    if decoding.top_k:
        scores = TopKLogitsWarper(decoding.top_k)(ids, scores)
    if decoding.top_p < 1:
        scores = TopPLogitsWarper(decoding.top_p)(ids, scores)
    if decoding.min_p:
        scores = MinPLogitsWarper(decoding.min_p)(ids, scores)
    probs: torch.Tensor = scores.softmax(dim=-1)
    return probs


def count_text_tokens(text: str, tokens: Sequence[int], decode: Callable[[list[int]], str]) -> int:
    """Return the least number of first ``tokens`` whose decoded text begins with ``text``.

    Texts are compared instead of lengths, since part of a character's bytes decodes to as many characters as all.
    """
    return next(k for k in range(len(tokens) + 1) if decode(list(tokens[:k])).startswith(text))
