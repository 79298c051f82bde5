"""The transformers teacher: any causal LM, in batches of similar length, on one key-value cache.

Completions, log-probabilities and hidden states come from one pass: ``forward`` feeds the model, ``options`` scores
options and reads answers that came with the rows, and answers are decoded here, greedily or sampled.

The state at token k is known in the step that draws token k + 1. So a row that ends by a stop token has its last state
in that step, and a row that ends at the length cap or with its option needs one step more. Log-probabilities, margins
and entropies are the model's own, before penalty, temperature and limits.

An answer constrained to options continues only with tokens that lead to an option. It ends where no option continues;
where one option ends and another continues, an end token may be drawn too. ``max_tokens`` and ``stop`` do not apply.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_layers, find_positions
from curation.json_types import Json
from curation.models import check_tokens, load_model
from curation.refs import ModelRef
from curation.teachers import Gate, Request
from curation.teachers.completions import error_batch, make_answered_batch, make_drawn_row
from curation.teachers.forward import Forward
from curation.teachers.logit_numbers import compute_float_numbers
from curation.teachers.options import get_states, read_answers, score_options
from curation.teachers.prompts import ModelTeacher, TokenisedRequest, ask_gate, cut_at_stop, iter_padded_batches
from curation.teachers.trie import Walk, bar_others

HALF = "\ufffd"  # replacement character, which a tokenizer writes for bytes that are not a complete character


@dataclass(kw_only=True)
class _OpenAnswer:
    """An answer that is being decoded."""

    request: TokenisedRequest
    generator: torch.Generator | None
    walk: Walk | None  # of an answer that is held to options
    tokens: list[int] = field(default_factory=list)  # the answer so far, without a stop token
    numbers: list[Sequence[float]] = field(default_factory=list)
    """Log-probability of each token, and margin and negative entropy of its distribution."""
    text: str = ""
    truncated: bool = False
    num_content: int | None = None  # set once the answer's end is known


class _AnswerStates:
    """States of B answers by position, from those at their tokens, of which only the newest are held.

    The end at a stop string is known only later, but cuts off none but the newest tokens.
    """

    def __init__(self, rows: Sequence[_OpenAnswer], prompt_BD: torch.Tensor, stop: tuple[str, ...]) -> None:
        self._rows, self._num_taken, self._newest = rows, 0, deque[torch.Tensor]()
        self._most = 2 + max((len(end.encode()) for end in stop), default=0)  # tokens: a byte each, at least
        self._first_BD = self._last_BD = self._prompt_BD = prompt_BD.float()
        self._sum_BD = torch.zeros_like(self._prompt_BD)

    def add(self, hidden_BD: torch.Tensor) -> None:
        """Add the states at the tokens that were just fed, one of each row."""
        self._newest.append(hidden_BD)
        if len(self._newest) > self._most:
            self._take()

    def _take(self) -> None:
        ends, state_BD = [row.num_content for row in self._rows], self._newest.popleft().float()
        own_B1 = torch.tensor([end is None or self._num_taken < end for end in ends], device=state_BD.device)[:, None]
        self._last_BD = state_BD.where(own_B1, self._last_BD)
        self._sum_BD += state_BD.where(own_B1, 0.0)
        self._first_BD = self._first_BD if self._num_taken else self._last_BD
        self._num_taken += 1

    def compute(self) -> dict[str, torch.Tensor]:
        """Return the states by position, float32 [B, D], once all ends are known; an empty answer has its prompt's."""
        while self._newest:
            self._take()
        length_B1 = torch.tensor([[row.num_content or 0] for row in self._rows], device=self._sum_BD.device)
        mean_BD = (self._sum_BD / length_B1.clamp(min=1)).where(length_B1 > 0, self._prompt_BD)
        return {"output_first": self._first_BD, "output_last": self._last_BD, "output_mean": mean_BD}


class TransformersTeacher(ModelTeacher):
    """Any causal LM of ``AutoModelForCausalLM``: answers decoded greedily or sampled, options chosen by likelihood."""

    def __init__(self, config: AskConfig, model: ModelRef | None) -> None:
        super().__init__(config, model)
        device = "cuda" if torch.cuda.is_available() and config.actors.num_gpus else "cpu"
        self._model = load_model(self._ref, dtype=config.dtype, device=device)
        check_tokens(self._ref, self._tokenizer, self._model)
        self._forward = Forward(self._model, pad=self._tokenizer.pad_token_id)
        self.state_size = self._forward.state_size
        ends = self._tokenizer.eos_token_id, self._model.generation_config.eos_token_id
        self._stop_ids = frozenset(one for ids in ends for one in ([ids] if isinstance(ids, int) else ids or []))
        self._piece_texts: dict[int, str] = {}

    @staticmethod
    def engine_key(config: AskConfig) -> Json:
        """Return the type of the weights, and whether they are on a GPU."""
        return {"dtype": config.dtype, "gpu": bool(config.actors.num_gpus)}

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded answers, then read ones, then scored options, longest first, in batches of ``batch_tokens``.

        A row that a gate passes continues from the keys and values of its prompt.
        """
        config, most = self._config if states else self._config.model_copy(update=AskConfig.BARE), decoding.max_tokens
        rows, errors = self._tokenise(list(requests), self._forward.max_positions, most)
        if errors:
            yield error_batch(errors, config, self.state_size)
        to_read = [row for row in rows if row.answer is not None]
        to_decode = [row for row in rows if row.answer is None and row.request.is_drawn]
        to_score = [row for row in rows if row.answer is None and not row.request.is_drawn]

        batches = partial(iter_padded_batches, batch_tokens=config.batch_tokens)
        for batch in batches(to_decode, lambda row: len(row.prompt) + row.room(most)):
            yield from self._decode_batch(batch, config, decoding, seed, gate)
        for batch in batches(to_read, lambda row: len(row.prompt) + row.room(most)):
            yield read_answers(self._forward, batch, config)
        for batch in batches(to_score, lambda row: len(row.prompt) + 1 + len(row.trie.inner)):
            yield score_options(self._forward, batch, config, normalise=decoding.normalise_options)

    @torch.inference_mode()
    def _decode_batch(
        self,
        requests: Sequence[TokenisedRequest],
        config: AskConfig,
        decoding: DecodingConfig,
        seed: int,
        gate: Gate | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield completions of requests that fit one batch: the rows that ``gate`` stopped, if any, then the others."""
        prompts = [request.prompt for request in requests]
        prefix, (logits_B1V, hidden_B1D) = self._forward.start(prompts, find_layers(config.states))
        if gate is not None:
            passes_B = ask_gate(gate, requests, hidden_B1D[:, 0].float().cpu().numpy(), config)
            if not passes_B.all():
                asked = zip(requests, passes_B, strict=True)
                stopped = {one.request.row_id: len(one.prompt) for one, passes in asked if not passes}
                yield error_batch({}, config, self.state_size, stopped=stopped)
                kept = np.flatnonzero(passes_B).tolist()
                if not kept:
                    return
                kept_K = self._forward.tensor(kept)
                requests, prefix = [requests[place] for place in kept], prefix.select(kept_K)
                logits_B1V, hidden_B1D = logits_B1V[kept_K], hidden_B1D[kept_K]
        rows = [
            _OpenAnswer(
                request=one,
                generator=torch.Generator().manual_seed(one.request.make_seed(seed)) if decoding.temperature else None,
                walk=None if one.options is None else Walk(one.trie),
            )
            for one in requests
        ]
        active, keeps = list(range(len(rows))), set(find_positions(config.states)) - {"prompt_last"}
        prompt_BD, num_fed, answer_states = hidden_B1D[:, 0], 0, _AnswerStates(rows, hidden_B1D[:, 0], decoding.stop)
        seen_BV = torch.zeros_like(logits_B1V[:, 0], dtype=torch.bool) if decoding.presence_penalty else None
        while True:
            self._draw([rows[index] for index in active], logits_B1V[:, 0], seen_BV, decoding)
            lengths = [rows[index].num_content for index in active]  # of answers whose end is known
            kept = [place for place, length in enumerate(lengths) if length is None or length > num_fed]
            if not kept:
                break
            if 2 * len(kept) <= len(active):  # go on with these rows alone once they are the smaller half
                kept_K = self._forward.tensor(kept)
                prefix = prefix.select(kept_K)
                seen_BV = None if seen_BV is None else seen_BV[kept_K]
                active = [active[place] for place in kept]
            # A finished row that stays in the batch is fed its last token again; the outputs are not read.
            newest = [rows[index].tokens[-1:] or [self._forward.pad] for index in active]
            logits_B1V, hidden_B1D = self._forward.extend(prefix, self._forward.tensor(newest))
            num_fed += 1
            if keeps:  # of all rows
                whole_BD = torch.zeros_like(prompt_BD).index_copy(0, self._forward.tensor(active), hidden_B1D[:, 0])
                answer_states.add(whole_BD)
        states = get_states(config, prompt_BD, answer_states.compute())
        answers = []
        for row in rows:
            of, numbers = row.request, row.numbers[: row.num_content]
            answers.append(
                make_drawn_row(of.request.row_id, row.text, len(of.prompt), numbers, truncated=row.truncated)
            )
        yield make_answered_batch(answers, states, config)

    def _draw(
        self, rows: list[_OpenAnswer], logits_BV: torch.Tensor, seen_BV: torch.Tensor | None, decoding: DecodingConfig
    ) -> None:
        """Append the next token of each row that has not ended, also to ``seen_BV``, and look for the answer's end."""
        allowed_BV = logits_BV if seen_BV is None else logits_BV - decoding.presence_penalty * seen_BV
        open_rows = [(place, row) for place, row in enumerate(rows) if row.num_content is None]
        if held := {place: row.walk.allowed(self._stop_ids) for place, row in open_rows if row.walk is not None}:
            allowed_BV = allowed_BV.clone()
            bar_others(allowed_BV, held)
        if decoding.temperature == 0:
            chosen_B = allowed_BV.argmax(dim=-1)
        else:
            probs_BV = compute_distribution(allowed_BV, decoding).cpu()
            pairs = zip(probs_BV, rows, strict=True)
            draws = [torch.multinomial(probs_V, 1, generator=row.generator) for probs_V, row in pairs]
            chosen_B = torch.cat(draws).to(logits_BV.device)
        if seen_BV is not None:
            seen_BV.scatter_(1, chosen_B[:, None], True)
        numbers_B3 = compute_float_numbers(logits_BV, chosen_B)[:, 1:]
        for row, token, numbers in zip(rows, chosen_B.tolist(), numbers_B3.tolist(), strict=True):
            if row.num_content is not None:
                continue
            is_end = token in self._stop_ids if row.walk is None else not row.walk.go(token)
            # In the step beyond the cap its token is dropped.
            row.truncated = row.walk is None and not is_end and len(row.tokens) == decoding.max_tokens
            if not is_end and not row.truncated:
                row.tokens.append(token)
                row.numbers.append(numbers)
            if row.walk is not None:
                if is_end or row.walk.is_over:
                    row.num_content = len(row.tokens)
                    row.text = row.walk.option_of(row.request.request.options or ())
            elif is_end or row.truncated:
                row.num_content, row.text = len(row.tokens), self.decode(row.tokens)
            else:
                self._cut_at_stop(row, decoding.stop)

    def _cut_at_stop(self, row: _OpenAnswer, stop: tuple[str, ...]) -> None:
        token = row.tokens[-1]
        if token not in self._piece_texts:  # as it adds within an answer: some tokenizers omit a space at the beginning
            self._piece_texts[token] = self.decode([token, token])[len(self.decode([token])) :]
        piece = self._piece_texts[token]
        if HALF not in piece and not any(end[-1] in piece for end in stop):
            return
        text = self.decode(row.tokens)
        if (cut := cut_at_stop(text, row.tokens, stop, self.decode)) is not None:
            row.text, row.num_content = cut


def compute_distribution(logits_BV: torch.Tensor, decoding: DecodingConfig) -> torch.Tensor:
    """Return probabilities after temperature, top-k, top-p and min-p, applied one after the other, float32 [B, V].

    The warpers and their order are those of transformers. vLLM applies min-p before top-k and top-p, which keeps the
    same tokens unless top-p is below 1 too. In both, the caller has subtracted the presence penalty from the logits.
    """
    ids: Any = None  # the tokens so far, which none of these reads
    scores = transformers.TemperatureLogitsWarper(decoding.temperature)(ids, logits_BV)
    if decoding.top_k:
        scores = transformers.TopKLogitsWarper(decoding.top_k)(ids, scores)
    if decoding.top_p < 1:
        scores = transformers.TopPLogitsWarper(decoding.top_p)(ids, scores)
    if decoding.min_p:
        scores = transformers.MinPLogitsWarper(decoding.min_p)(ids, scores)
    probs: torch.Tensor = scores.softmax(dim=-1)
    return probs
