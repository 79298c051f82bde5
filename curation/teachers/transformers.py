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
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_layers, find_positions
from curation.errors import ModelError
from curation.json_types import Json
from curation.models import as_user_turns, check_layers, check_tokens, decode_tokens, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import BaseTeacher, Gate, Request
from curation.teachers.completions import (
    Array,
    error_batch,
    make_answered_batch,
    make_drawn_row,
    make_dropped_batch,
)
from curation.teachers.forward import Forward, iter_padded_batches
from curation.teachers.logit_numbers import compute_float_numbers
from curation.teachers.options import read_answers, score_options
from curation.teachers.prompts import OptionTokens, TokenisedRequest, ask_gate, count_text_tokens, tokenise
from curation.teachers.trie import Walk, bar_others

HALF = "\ufffd"  # replacement character, which a tokenizer writes for bytes that are not a complete character


@dataclass(kw_only=True)
class _OpenAnswer:
    """An answer that is being decoded."""

    generator: torch.Generator | None
    walk: Walk | None = None  # of an answer that is held to options
    options: Sequence[str] = ()
    tokens: list[int] = field(default_factory=list)  # the answer so far, without a stop token
    numbers: list[Sequence[float]] = field(default_factory=list)
    """Log-probability of each token, and margin and negative entropy of its distribution."""
    text: str = ""
    truncated: bool = False
    num_content: int | None = None  # set once the answer's end is known

    def go_on(self, token: int, numbers: Sequence[float]) -> None:
        """Add a token."""
        self.tokens.append(token)
        self.numbers.append(numbers)


class TransformersTeacher(BaseTeacher):
    """Any causal LM of ``AutoModelForCausalLM``: answers decoded greedily or sampled, options chosen by likelihood."""

    def __init__(self, config: AskConfig, model: ModelRef | None) -> None:
        if model is None:
            raise ModelError("the transformers backend needs a model; set teacher.model.path or teacher.model.init")
        self._ref = model
        self._tokenizer = load_tokenizer(model)
        device = "cuda" if torch.cuda.is_available() and config.actors.num_gpus else "cpu"
        self._model = load_model(model, dtype=config.dtype, device=device)
        check_tokens(model, self._tokenizer, self._model)
        self._ask(config)
        self._forward = Forward(self._model, pad=self._tokenizer.pad_token_id)
        self.state_size = self._forward.state_size
        ends = self._tokenizer.eos_token_id, self._model.generation_config.eos_token_id
        self._stop_ids = frozenset(one for ids in ends for one in ([ids] if isinstance(ids, int) else ids or []))
        self._known = OptionTokens()
        self._piece_texts: dict[int, str] = {}

    @staticmethod
    def engine_key(config: AskConfig) -> Json:
        """Return the type of the weights, and whether they are on a GPU."""
        return {"dtype": config.dtype, "gpu": bool(config.actors.num_gpus)}

    def _ask(self, config: AskConfig) -> None:
        self._config, self._stateless = config, config.model_copy(update=AskConfig.BARE)
        if config.chat_template:
            as_user_turns(self._tokenizer, [])  # refuse at once
        check_layers(self._ref, self._model.config.get_text_config().num_hidden_layers, config.states)

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
        config, most = self._config if states else self._stateless, decoding.max_tokens
        how = {"chat_template": config.chat_template, "reads_given": config.reads_given}
        rows = tokenise(self._tokenizer, list(requests), known=self._known, **how)
        problems = [row.problem(self._forward.max_positions, most) for row in rows]
        found = zip(rows, problems, strict=True)
        if errors := {row.request.row_id: problem for row, problem in found if problem is not None}:
            yield error_batch(errors, config, self.state_size)
        rows = [row for row, problem in zip(rows, problems, strict=True) if problem is None]
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
                stopped = [requests[place] for place in np.flatnonzero(~passes_B).tolist()]
                num_tokens = {request.request.row_id: len(request.prompt) for request in stopped}
                yield make_dropped_batch(num_tokens, config, self._forward.state_size)
                kept = np.flatnonzero(passes_B).tolist()
                if not kept:
                    return
                kept_K = self._forward.tensor(kept)
                requests, prefix = [requests[place] for place in kept], prefix.select(kept_K)
                logits_B1V, hidden_B1D = logits_B1V[kept_K], hidden_B1D[kept_K]
        rows = [
            _OpenAnswer(
                generator=torch.Generator().manual_seed(one.request.make_seed(seed)) if decoding.temperature else None,
                walk=None if one.options is None else Walk(one.trie),
                options=one.request.options or (),
            )
            for one in requests
        ]
        active = list(range(len(rows)))
        keep = 2 + max((len(end.encode()) for end in decoding.stop), default=0)  # tokens: a byte each, at least
        states = _States(hidden_B1D[:, 0], find_positions(config.states), keep=keep)
        seen_BV = torch.zeros_like(logits_B1V[:, 0], dtype=torch.bool) if decoding.presence_penalty else None
        while True:
            self._draw([rows[index] for index in active], logits_B1V[:, 0], seen_BV, decoding)
            lengths = [rows[index].num_content for index in active]  # of answers whose end is known
            ended = [place for place, n in enumerate(lengths) if n is not None and n <= states.num_steps]
            states.finish(ended, [active[place] for place in ended], [lengths[place] or 0 for place in ended])
            if len(ended) == len(active):
                break
            if ended and 2 * len(ended) >= len(active):  # go on with the others alone once they are the smaller half
                kept = sorted(set(range(len(active))) - set(ended))
                kept_K = self._forward.tensor(kept)
                prefix = prefix.select(kept_K)
                states.select(kept_K)
                seen_BV = None if seen_BV is None else seen_BV[kept_K]
                active = [active[place] for place in kept]
            # A finished row that stays in the batch is fed its last token again; what it gives is not read.
            newest = [rows[index].tokens[-1:] or [self._forward.pad] for index in active]
            next_B1 = self._forward.tensor(newest)
            logits_B1V, hidden_B1D = self._forward.extend(prefix, next_B1)
            states.answer(hidden_B1D[:, 0])
        answers = []
        for one, row in zip(requests, rows, strict=True):
            numbers, num_prompt = row.numbers[: row.num_content], len(one.prompt)
            answers.append(make_drawn_row(one.request.row_id, row.text, num_prompt, numbers, truncated=row.truncated))
        yield make_answered_batch(answers, states.arrays(), config)

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
        numbers_B3 = compute_float_numbers(logits_BV, chosen_B)
        for row, token, numbers in zip(rows, chosen_B.tolist(), numbers_B3.tolist(), strict=True):
            if row.num_content is not None:
                continue
            if row.walk is not None:
                goes_on = row.walk.go(token)
                if goes_on:
                    row.go_on(token, numbers)
                if row.walk.is_over or not goes_on:
                    row.num_content, row.text = len(row.tokens), row.walk.option_of(row.options)
            elif token in self._stop_ids:
                row.num_content, row.text = len(row.tokens), self._decode(row.tokens)
            elif len(row.tokens) == decoding.max_tokens:  # the step beyond the cap: its token is dropped
                row.num_content, row.text, row.truncated = len(row.tokens), self._decode(row.tokens), True
            else:
                row.go_on(token, numbers)
                self._cut_at_stop(row, decoding.stop)

    def _cut_at_stop(self, row: _OpenAnswer, stop: tuple[str, ...]) -> None:
        token = row.tokens[-1]
        if token not in self._piece_texts:  # as it adds within an answer: some tokenizers omit a space at the beginning
            self._piece_texts[token] = self._decode([token, token])[len(self._decode([token])) :]
        piece = self._piece_texts[token]
        if HALF not in piece and not any(end[-1] in piece for end in stop):
            return
        text = self._decode(row.tokens)
        cuts = [place for end in stop if (place := text.find(end)) >= 0]
        if cuts:
            row.text = text[: min(cuts)]
            row.num_content = count_text_tokens(row.text, row.tokens, self._decode)

    def _decode(self, tokens: list[int]) -> str:
        return decode_tokens(self._tokenizer, tokens)


class _States:
    """Hidden states of a batch at the requested positions, filled in as rows end."""

    def __init__(self, prompt_BD: torch.Tensor, positions: tuple[str, ...], *, keep: int) -> None:
        """Begin with the states at the last prompt tokens; all states have their layers concatenated."""
        self.num_steps = 0  # number of answer tokens whose states are known
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
