"""The transformers teacher: completion, log-probabilities and hidden states from one pass over a batch of like length.

The state of a token is what the language-model head reads there: last layer, after the final norm (paper, section
"Neural Trust Functions"). The head computes logits of the newest token only, and a hook on it takes its input, so
states cost no second pass and no other layer is kept. The state at token k is known in the step that draws token k + 1:
a row that ends by a stop token has its last state in that very step, one that ends by the length cap takes one more.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from transformers import DynamicCache

from curation.config import DecodingConfig, TeacherConfig
from curation.errors import ModelError
from curation.hashing import hash64
from curation.models import load_model, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import Request
from curation.teachers.completions import completion_batch, error_batch


@dataclass(kw_only=True)
class _Row:
    """One request under way."""

    row_id: int
    prompt: list[int]
    generator: torch.Generator | None = None
    tokens: list[int] = field(default_factory=list)  # the answer so far, without a stop token
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    truncated: bool = False
    num_content: int | None = None  # set once the answer's end is known


class TransformersTeacher:
    """Any causal LM of ``AutoModelForCausalLM``, decoded greedily or sampled, with a key-value cache."""

    def __init__(self, config: TeacherConfig, model: ModelRef | None) -> None:
        if model is None:
            raise ModelError("the transformers backend needs a model; set teacher.model.path or teacher.model.init")
        self._config = config
        self._device = "cuda" if torch.cuda.is_available() and config.actors.num_gpus else "cpu"
        self._tokenizer = load_tokenizer(model)
        self._model = load_model(model, dtype=config.dtype, device=self._device)
        head: torch.nn.Linear | None = self._model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:
            raise ModelError(f"model {model.base!r} has no language-model head to read hidden states from")
        self.state_size = int(head.weight.shape[1])
        self._hidden: torch.Tensor | None = None
        head.register_forward_pre_hook(self._keep_hidden)
        self._stop_ids = _stop_ids(self._tokenizer.eos_token_id, self._model.generation_config.eos_token_id)
        self._max_positions = getattr(self._model.config, "max_position_embeddings", None)
        self._piece_texts: dict[int, str] = {}

    def _keep_hidden(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._hidden = inputs[0][:, -1]

    def label(self, requests: Iterable[Request], decoding: DecodingConfig, *, seed: int) -> Iterator[pa.RecordBatch]:
        """Label all requests, longest prompts first, in batches of ``batch_tokens`` (see ``Teacher.label``)."""
        requests = list(requests)
        if not requests:
            return
        prompts = self._tokenizer([request.prompt for request in requests], verbose=False)["input_ids"]
        rows = [
            _Row(row_id=request.row_id, prompt=prompt, generator=_generator(decoding, seed, request.row_id))
            for request, prompt in zip(requests, prompts, strict=True)
        ]
        limit = self._max_positions - decoding.max_tokens if self._max_positions else None
        refused = [row for row in rows if not row.prompt or (limit is not None and len(row.prompt) > limit)]
        if refused:
            yield error_batch(
                [row.row_id for row in refused],
                [
                    f"prompt_length: {len(row.prompt)} tokens; the model takes 1 to {limit} "
                    f"before {decoding.max_tokens} of answer"
                    for row in refused
                ],
                self._config.states,
                self._config.state_dtype,
                self.state_size,
            )
            gone = {row.row_id for row in refused}
            rows = [row for row in rows if row.row_id not in gone]
        rows.sort(key=lambda row: len(row.prompt), reverse=True)
        for batch in _batches(rows, self._config.batch_tokens, decoding.max_tokens):
            yield self._complete(batch, decoding)

    @torch.inference_mode()
    def _complete(self, rows: list[_Row], decoding: DecodingConfig) -> pa.RecordBatch:
        longest = len(rows[0].prompt)
        pad = self._tokenizer.pad_token_id
        padding = [longest - len(row.prompt) for row in rows]
        ids_BT = torch.tensor(
            [[pad] * pads + row.prompt for pads, row in zip(padding, rows, strict=True)], device=self._device
        )
        # Without padding no mask is passed: attention is then plainly causal, and faster.
        mask_BT = (
            torch.tensor([[0] * pads + [1] * (longest - pads) for pads in padding], device=self._device)
            if any(padding)
            else None
        )
        position_B = torch.tensor([len(row.prompt) for row in rows], device=self._device)
        position_ids = torch.arange(longest, device=self._device)[None] - (longest - position_B)[:, None]
        cache = DynamicCache(config=self._model.config)
        states = _States(
            len(rows), self.state_size, self._config.states, keep=2 + max(map(len, decoding.stop), default=0)
        )
        active = list(range(len(rows)))
        logits_BV = self._forward(ids_BT, mask_BT, position_ids.clamp(min=0), cache)
        states.prompt(self._hidden)
        while True:
            self._draw([rows[index] for index in active], logits_BV, decoding)
            ended = [place for place, index in enumerate(active) if self._ended(rows[index], states.num_steps)]
            states.finish(
                ended, [active[place] for place in ended], [rows[active[place]].num_content or 0 for place in ended]
            )
            if len(ended) == len(active):
                break
            if ended and 2 * len(ended) >= len(active):  # go on with the others alone once they are the smaller half
                gone = set(ended)
                kept = [place for place in range(len(active)) if place not in gone]
                kept_K = torch.tensor(kept, device=self._device)
                cache.batch_select_indices(kept_K)
                states.select(kept_K)
                mask_BT = None if mask_BT is None else mask_BT[kept_K]
                position_B = position_B[kept_K]
                active = [active[place] for place in kept]
            # A finished row that stays in the batch is fed its last token again; what it gives is not read.
            next_B = torch.tensor([rows[i].tokens[-1] if rows[i].tokens else pad for i in active], device=self._device)
            mask_BT = None if mask_BT is None else torch.cat([mask_BT, mask_BT.new_ones(len(active), 1)], dim=1)
            logits_BV = self._forward(next_B[:, None], mask_BT, position_B[:, None], cache)
            position_B = position_B + 1
            states.answer(self._hidden)
        return completion_batch(
            row_ids=[row.row_id for row in rows],
            completions=[row.text for row in rows],
            mean_logprobs=[_mean(row.logprobs[: row.num_content]) for row in rows],
            num_prompt_tokens=[len(row.prompt) for row in rows],
            num_output_tokens=[row.num_content for row in rows],
            truncated=[row.truncated for row in rows],
            states=states.arrays(),
            state_dtype=self._config.state_dtype,
        )

    def _forward(
        self, ids_BT: torch.Tensor, mask_BT: torch.Tensor | None, position_ids_BT: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Logits of the newest token, float32 [B, V]; leaves its state in ``_hidden``."""
        output = self._model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=position_ids_BT,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def _draw(self, rows: list[_Row], logits_BV: torch.Tensor, decoding: DecodingConfig) -> None:
        """Append the next token of each row that has not ended, and look whether it ends the answer."""
        if decoding.temperature == 0:
            chosen_B = logits_BV.argmax(dim=-1)
        else:
            probs_BV = _distribution(logits_BV, decoding).cpu()
            draws = [
                torch.multinomial(probs_V, 1, generator=row.generator)
                for probs_V, row in zip(probs_BV, rows, strict=True)
            ]
            chosen_B = torch.cat(draws).to(logits_BV.device)
        logprob_B = logits_BV.gather(1, chosen_B[:, None])[:, 0] - logits_BV.logsumexp(dim=-1)
        for row, token, logprob in zip(rows, chosen_B.tolist(), logprob_B.tolist(), strict=True):
            if row.num_content is not None:
                continue
            if token in self._stop_ids:
                row.num_content, row.text = len(row.tokens), self._decode(row.tokens)
            elif len(row.tokens) == decoding.max_tokens:  # the step beyond the cap: its token is dropped
                row.num_content, row.text, row.truncated = len(row.tokens), self._decode(row.tokens), True
            else:
                row.tokens.append(token)
                row.logprobs.append(logprob)
                self._cut_at_stop(row, decoding.stop)

    def _cut_at_stop(self, row: _Row, stop: tuple[str, ...]) -> None:
        if not any(end[-1] in self._piece(row.tokens[-1]) for end in stop):
            return
        text = self._decode(row.tokens)
        cuts = [place for end in stop if (place := text.find(end)) >= 0]
        if cuts:
            row.text = text[: min(cuts)]
            lengths = (len(self._decode(row.tokens[:num_tokens])) for num_tokens in range(len(row.tokens) + 1))
            row.num_content = next(k for k, length in enumerate(lengths) if length >= len(row.text))

    def _ended(self, row: _Row, num_steps: int) -> bool:
        """Whether the answer is over and the state of its last token has been seen."""
        return row.num_content is not None and row.num_content <= num_steps

    def _piece(self, token: int) -> str:
        if token not in self._piece_texts:
            self._piece_texts[token] = self._decode([token])
        return self._piece_texts[token]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


class _States:
    """The hidden states of a batch that were asked for, filled as rows end."""

    def __init__(self, num_rows: int, state_size: int, names: tuple[str, ...], *, keep: int) -> None:
        self.num_steps = 0
        """Answer tokens whose states have been seen."""
        self._kept = {name: torch.zeros(num_rows, state_size) for name in names}
        self._recent: deque[torch.Tensor] = deque(maxlen=keep)  # states of the newest answer tokens, [B, D] each
        self._done: set[int] = set()

    def prompt(self, hidden_BD: torch.Tensor | None) -> None:
        """Take the states at the last prompt tokens."""
        assert hidden_BD is not None, "the language-model head was not called"
        self._prompt_BD = self._first_BD = hidden_BD.float()
        self._sum_BD = torch.zeros_like(self._prompt_BD)

    def answer(self, hidden_BD: torch.Tensor | None) -> None:
        """Take the states at the answer tokens that were just fed."""
        assert hidden_BD is not None, "the language-model head was not called"
        state_BD = hidden_BD.float()
        if self.num_steps == 0:
            self._first_BD = state_BD
        self.num_steps += 1
        self._sum_BD = self._sum_BD + state_BD
        self._recent.append(state_BD)

    def finish(self, places: list[int], rows: list[int], num_content: list[int]) -> None:
        """Keep what was asked for of the rows (of the whole batch) that stand at ``places`` of the active ones."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for place, row, length in zip(places, rows, num_content, strict=True):
            if row not in self._done:
                groups.setdefault(length, []).append((place, row))
        for length, members in groups.items():
            place_K, row_K = torch.tensor(members).T
            self._done.update(row_K.tolist())
            for name, kept_ND in self._kept.items():
                kept_ND[row_K] = self._state(name, length)[place_K.to(self._prompt_BD.device)].cpu()

    def _state(self, name: str, length: int) -> torch.Tensor:
        """The states of a position, [B, D], for answers of ``length`` tokens, of which all have been seen."""
        if name == "prompt_last" or length == 0:
            return self._prompt_BD
        if name == "output_first":
            return self._first_BD
        beyond = self.num_steps - length  # answer tokens seen that belong to a stop string
        if name == "output_last":
            return self._recent[-1 - beyond]
        surplus = sum(list(self._recent)[len(self._recent) - beyond :], torch.zeros_like(self._sum_BD))
        return (self._sum_BD - surplus) / length

    def select(self, places_K: torch.Tensor) -> None:
        """Go on with some of the active rows only."""
        self._prompt_BD, self._first_BD = self._prompt_BD[places_K], self._first_BD[places_K]
        self._sum_BD = self._sum_BD[places_K]
        self._recent = deque((state_BD[places_K] for state_BD in self._recent), maxlen=self._recent.maxlen)

    def arrays(self) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]:
        """The states of all rows, float32 [N, D] by position."""
        return {name: kept_ND.numpy() for name, kept_ND in self._kept.items()}


def _batches(rows: list[_Row], batch_tokens: int, max_tokens: int) -> Iterator[list[_Row]]:
    """Consecutive rows whose padded prompts and answers fit ``batch_tokens``; at least one row each."""
    start = 0
    while start < len(rows):
        size = max(1, batch_tokens // (len(rows[start].prompt) + max_tokens))
        yield rows[start : start + size]
        start += size


def _distribution(logits_BV: torch.Tensor, decoding: DecodingConfig) -> torch.Tensor:
    """Probabilities after temperature, top-k and top-p, in transformers' own order of warpers."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    ids = torch.empty(0, dtype=torch.long)
    scores = TemperatureLogitsWarper(decoding.temperature)(ids, logits_BV)
    if decoding.top_k:
        scores = TopKLogitsWarper(decoding.top_k)(ids, scores)
    if decoding.top_p < 1:
        scores = TopPLogitsWarper(decoding.top_p)(ids, scores)
    probs: torch.Tensor = scores.softmax(dim=-1)
    return probs


def _generator(decoding: DecodingConfig, seed: int, row_id: int) -> torch.Generator | None:
    if decoding.temperature == 0:
        return None
    mixed = int(hash64(np.array([row_id], dtype=np.int64), seed)[0])
    return torch.Generator().manual_seed(mixed >> 1)


def _stop_ids(*sources: int | list[int] | None) -> frozenset[int]:
    ids: set[int] = set()
    for source in sources:
        ids.update([source] if isinstance(source, int) else source or [])
    return frozenset(ids)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
