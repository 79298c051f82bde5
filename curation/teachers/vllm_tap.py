"""The tap, which takes log-probabilities and hidden states from vLLM's steps by hooks on each worker's sampler.

vLLM keeps neither. The scheduler's output says which tokens of each request a step feeds; the sampler has the logits
before penalty, temperature and limits, and the tokens that it draws; the worker gives the step's states
(``curation.teachers.vllm_worker``). Per request the tap keeps the requested states, the newest ``ring`` positions, the
first log-probabilities, and running sums on the device; ``collect`` copies the rows of many finished requests from the
device at once, and frees them. Margin and entropy, which read all logits once more, are computed only for requests that
ask for them (``SURENESS``). Layers other than the last come from the interface that vLLM's models have for Eagle3's
drafts, beside the step's own states; states have their layers concatenated (``curation.config.states.find_layers``).

Positions are absolute in a request's tokens, of which the first P are the prompt. The last drawn token is never fed, so
that it has no state: an answer that ends by a stop token needs none, and an answer that ends by the length cap is asked
for one token more. Positions of a request that was preempted and is fed again are counted once. A request whose
positions are not consecutive (because it began past its first one in the prefix cache, or was drawn anew) is marked as
lost, and its owner asks again.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from curation.config.states import LAST, find_layers, find_positions
from curation.teachers.logit_numbers import compute_token_numbers
from curation.teachers.trie import HeldWalks, send_arrays
from curation.teachers.vllm_logprobs import Logprobs, Positions, Summary, grow_slots

MAX_LOGITS = 2**27  # maximum number of logits computed at once (0.5 GiB in float32)

SCORE_FROM = "score_from"
"""Key of a request's ``extra_args`` for the position from which the prompt is an answer to score."""

LETTERS = "letters"
"""Key of a request's ``extra_args`` for the tokens whose log-probabilities after the prompt are requested."""

SURENESS = "sureness"
"""Key of a request's ``extra_args`` that requests margin and negative entropy at its answer's tokens."""


class Collected(NamedTuple):
    """The tap's data of N requests."""

    fates: list[str]
    """Completeness of each request: ``whole``; ``short`` if the state of the answer's last token was not computed, and
    is missing in ``output_mean`` too; ``lost`` if nothing can be read."""
    summaries: list[Summary]
    """Summaries of the answers' log-probabilities; margins and entropies are 0 unless requested."""
    states: dict[str, npt.NDArray[Any]]  # hidden_ND by position
    letters: list[list[float]]
    """Log-probabilities of the tokens requested by ``LETTERS``; empty for requests without them."""


@dataclass(kw_only=True, slots=True, eq=False)
class _TappedRequest:
    """An unfinished request; its numbers are in the tap's arrays at its slot."""

    slot: int
    asks: list[int]  # tokens whose log-probabilities after the prompt are requested
    prompt: npt.NDArray[np.int64] | None  # tokens of the prompt if it contains an answer to score, else None
    letters: torch.Tensor | None = None


_COUNTS = ("num_prompt", "length", "num_fed", "num_tokens", "next")
_FLAGS = ("scored", "unbroken", "sure", "asks")
_BY_SLOT = np.dtype([(name, np.int64) for name in _COUNTS] + [(name, np.bool_) for name in _FLAGS])
"""State of a slot on the host. ``num_prompt``: number of tokens before the answer; ``length``: number of tokens fed
before one is drawn; ``num_fed``, ``num_tokens``: numbers of tokens fed before the step, and known; ``next``: position
whose state comes next, first that of the prompt's last token; ``sure``: whether margin and negative entropy are
requested."""


class _Step(NamedTuple):
    """A step of B requests with T tokens."""

    ids: list[str]
    slot_B: npt.NDArray[np.int64]  # slot of each request, or -1 if the tap has freed it
    begin_B: npt.NDArray[np.int64]
    end_B: npt.NDArray[np.int64]
    offset_B: npt.NDArray[np.int64]
    """Difference between the index of a request's token in the step and the token's position."""
    is_partial_B: npt.NDArray[np.bool_]
    """Whether the step feeds only some of the request's known tokens, so that vLLM drops the drawn one."""
    hidden_TD: torch.Tensor
    others: Sequence[torch.Tensor] | None  # states of other layers, [T, D] each, in ascending order of layers


class Tap:
    """A recorder of log-probabilities and states of running requests; memory grows with these, and is reused."""

    def __init__(
        self, sampler: torch.nn.Module, head: Callable[..., Any], names: Sequence[str], ring: int, num_logprobs: int
    ) -> None:
        """Hook ``sampler``; ``head`` computes logits from states, or returns None on workers that hold no logits."""
        self.rows: dict[str, _TappedRequest] = {}
        self._head, self._ring, self._num_logprobs = head, ring, num_logprobs
        self._positions, self._layers = find_positions(names), find_layers(names)
        self._held = HeldWalks()
        self._free: list[int] = []
        self._fresh: list[int] = []
        self._num_slots = 0
        self._slots = np.zeros(0, _BY_SLOT)
        self._num_scheduled: Mapping[str, int] = {}
        self._step: _Step | None = None
        sampler.register_forward_pre_hook(self._prepare_draw, with_kwargs=True)
        sampler.register_forward_hook(self._finish_draw, with_kwargs=True)

    def follow(self, scheduled: Any) -> None:
        """Record which tokens the next step feeds, from its ``SchedulerOutput``."""
        self._num_scheduled = scheduled.num_scheduled_tokens
        for new in scheduled.scheduled_new_reqs:
            row = self.rows[new.req_id] = self._add_row(new.prompt_token_ids, new.sampling_params)
            self._slots["num_fed"][row.slot] = new.num_computed_tokens
            self._held.begin(new.req_id, new.sampling_params)
        old = scheduled.scheduled_cached_reqs
        counts = zip(old.req_ids, old.num_computed_tokens, old.num_output_tokens, strict=True)
        if found := [(self.rows[name].slot, fed, drawn) for name, fed, drawn in counts if name in self.rows]:
            slot_C, num_fed_C, num_drawn_C = np.array(found, dtype=np.int64).T
            self._slots["num_fed"][slot_C] = num_fed_C
            self._slots["num_tokens"][slot_C] = self._slots["length"][slot_C] + num_drawn_C

    @contextlib.contextmanager
    def drawing(
        self, ids: Sequence[str], hidden_TD: torch.Tensor, others: Sequence[torch.Tensor] | None
    ) -> Iterator[None]:
        """Record what the sampler draws in the context for the last step; ``ids`` are its requests in order."""
        slot_B = np.array([self.rows[name].slot if name in self.rows else -1 for name in ids])
        num_scheduled_B = np.array([self._num_scheduled[name] for name in ids])
        begin_B = self._slots["num_fed"][slot_B]
        end_B = begin_B + num_scheduled_B
        self._step = _Step(
            ids=list(ids),
            slot_B=slot_B,
            begin_B=begin_B,
            end_B=end_B,
            offset_B=np.cumsum(num_scheduled_B) - end_B,
            is_partial_B=(slot_B >= 0) & (end_B < self._slots["num_tokens"][slot_B]),
            hidden_TD=hidden_TD,
            others=others,
        )
        self._generators: dict[int, torch.Generator] = {}
        self._idle_generators: dict[int, torch.Generator] = {}
        try:
            yield
        finally:
            self._generators.update(self._idle_generators)
            self._step = None

    def _prepare_draw(self, _: object, __: object, given: Mapping[str, Any]) -> None:
        step, logits_BV = self._step, given["logits"]
        if step is None:
            return  # vLLM tries its sampler before it serves
        # A prompt that is fed in part draws a token too, which is dropped. It must not use up the row's own random
        # numbers; vLLM winds those back by a way that CPU generators lack.
        idle = np.flatnonzero(step.is_partial_B).tolist()
        self._generators = given["sampling_metadata"].generators
        self._idle_generators = {place: self._generators.pop(place) for place in idle if place in self._generators}
        self._walks = self._held.walks(step.ids, without=set(idle))
        # The sampler changes float32 logits in place, and a copy of others; tokens of walks are barred in place.
        self._logits_BV = logits_BV.clone() if self._walks or logits_BV.dtype == torch.float32 else logits_BV
        self._held.bar(self._walks, logits_BV)

    def _finish_draw(self, _: object, __: object, ___: object, output: Any) -> None:
        if self._step is not None:
            self._held.go(self._walks, output.sampled_token_ids)
            self._take(self._step, self._logits_BV, output.sampled_token_ids[:, 0].long())
            del self._logits_BV

    @torch.inference_mode()
    def _take(self, step: _Step, logits_BV: torch.Tensor, token_B: torch.Tensor) -> None:
        """Keep a step's results before the runner starts the next step, without waiting for the device."""
        self._make_room(step.hidden_TD)
        tapped_B = step.slot_B >= 0
        scores_B = tapped_B & self._slots["scored"][step.slot_B]
        spots = zip(*_select_at(scores_B, step.slot_B, step.begin_B, step.end_B, step.offset_B), strict=True)
        scored = [self._to_score(self.rows[step.ids[place]], *spot) for *spot, place in spots]
        draws_B = tapped_B & ~scores_B & ~step.is_partial_B
        if draws_B.any():
            slot_K, end_K, offset_K, place_K = _select_at(draws_B, step.slot_B, step.end_B, step.offset_B)
            self._slots["unbroken"][slot_K] &= end_K - 1 == self._slots["next"][slot_K]
            self._slots["next"][slot_K] = end_K
            entry_K5 = np.stack(
                [offset_K + end_K - 1, slot_K, end_K - 1, self._slots["num_prompt"][slot_K], place_K], axis=1
            )
            self._take_drawn(step, logits_BV, token_B, entry_K5)
        if any(len(part) for part in scored):
            entry_K5 = np.concatenate(scored)
            positions = Positions(entry_K5, self._ring, self._logprobs.num_first, self._ahead, logits_BV.device)
            index_5K = positions.index_5K
            sure_K = self._slots["sure"][entry_K5[:, 1]]
            number_K3 = self._score(step.hidden_TD[index_5K[0]], index_5K[4], sure_K, logits_BV.shape[1])
            self._keep(step, positions, number_K3)

    def _to_score(self, row: _TappedRequest, slot: int, begin: int, end: int, offset: int) -> npt.NDArray[np.int64]:
        """Return the entries of a row whose prompt has an answer to score, for the positions ``begin`` to ``end``."""
        state, prompt_P = self._slots[slot], row.prompt
        assert prompt_P is not None
        state["unbroken"] &= begin <= state["next"]
        position_K = np.arange(max(state["next"], begin), max(state["next"], begin, min(end, len(prompt_P))))
        state["next"] = max(state["next"], end)
        token_K = np.full(len(position_K), -1)
        following = prompt_P[position_K[position_K + 1 < len(prompt_P)] + 1]
        token_K[: len(following)] = following
        same = np.ones_like(position_K)
        return np.stack([offset + position_K, slot * same, position_K, state["num_prompt"] * same, token_K], axis=1)

    def _take_drawn(
        self, step: _Step, logits_BV: torch.Tensor, token_B: torch.Tensor, entry_K5: npt.NDArray[np.int64]
    ) -> None:
        """Keep the numbers and states of rows whose tokens a step drew."""
        positions = Positions(entry_K5, self._ring, self._logprobs.num_first, self._ahead, logits_BV.device)
        _, slot_K, position_K, num_prompt_K, place_K = entry_K5.T
        sure_K = self._slots["sure"][slot_K]
        whole_B, number_B3 = compute_token_numbers(logits_BV, token_B, sure=bool(sure_K.any()))
        asking = self._slots["asks"][slot_K] & (position_K == num_prompt_K - 1)
        if asking.any():
            asked = [(self.rows[step.ids[place]], place) for place in place_K[asking]]
            places = np.repeat(place_K[asking], [len(row.asks) for row, _ in asked])
            place_L, token_L = send_arrays(
                [places, [token for row, _ in asked for token in row.asks]], logits_BV.device
            )
            letter_L = logits_BV[place_L, token_L].float() - whole_B[place_L]
            pieces = torch.split(letter_L, [len(row.asks) for row, _ in asked])
            for (row, _), letters in zip(asked, pieces, strict=True):
                row.letters = letters
        number_K3 = number_B3 if len(entry_K5) == len(number_B3) else number_B3[positions.index_5K[4]]
        self._keep(step, positions, _zero_unwanted(number_K3, sure_K))

    def _score(
        self, hidden_KD: torch.Tensor, token_K: torch.Tensor, sure_K: npt.NDArray[np.bool_], num_words: int
    ) -> torch.Tensor:
        """Return the numbers of the tokens that follow the states, [K, 3], or 0 where ``token_K`` is -1.

        Margin and negative entropy are 0 unless ``sure_K`` is set. All workers have to call this method.
        """
        number_K3 = torch.zeros((len(token_K), 3), device=hidden_KD.device)
        piece = max(1, MAX_LOGITS // num_words)
        for start in range(0, len(token_K), piece):
            part = slice(start, start + piece)
            logits_KV = self._head(hidden_KD[part])
            if logits_KV is None:
                continue
            _, found_K3 = compute_token_numbers(logits_KV, token_K[part].clamp(min=0), sure=bool(sure_K[part].any()))
            number_K3[part] = found_K3.where((token_K[part] >= 0)[:, None], 0.0)
        return _zero_unwanted(number_K3, sure_K)

    def _keep(self, step: _Step, positions: Positions, number_K3: torch.Tensor) -> None:
        """Add K positions of a step to their rows, with the states of the layers to keep concatenated."""
        token_K, slot_K, position_K, num_prompt_K, _ = positions.index_5K
        others = [layer_TD[token_K] for layer_TD in step.others or ()] if self._layers != (LAST,) else []
        layers = [step.hidden_TD[token_K], *others] if LAST in self._layers else others
        hidden_KD = torch.cat(layers, dim=-1) if len(layers) > 1 else layers[0]
        self._logprobs.add(positions, number_K3)
        if "output_mean" in self._positions:
            answer_KD = hidden_KD.float() * (position_K >= num_prompt_K)[:, None]
            self._hidden_sum_SD.index_add_(0, slot_K, answer_KD)
        for kept_SD, wanted_W in zip(self._kept.values(), positions.ahead, strict=True):
            if len(wanted_W):
                kept_SD[slot_K[wanted_W]] = hidden_KD[wanted_W]
        # Of a row that has many positions in this step (a scored one) the ring takes the newest.
        if len(positions.newest_W) < len(slot_K):
            slot_K, position_K = slot_K[positions.newest_W], position_K[positions.newest_W]
            hidden_KD = hidden_KD[positions.newest_W]
        self._recent_SRD[slot_K, position_K % self._ring] = hidden_KD

    def _add_row(self, prompt: Sequence[int], params: Any) -> _TappedRequest:
        extra, length = params.extra_args or {}, len(prompt)
        num_prompt = extra.get(SCORE_FROM, length)
        if not self._free:
            more = max(64, self._num_slots)
            self._free = list(range(self._num_slots, self._num_slots + more))
            self._num_slots += more
            self._slots = np.concatenate([self._slots, np.zeros(more, _BY_SLOT)])
        slot, asks, scored = self._free.pop(), extra.get(LETTERS, []), SCORE_FROM in extra
        counts = (num_prompt, length, 0, length, num_prompt - 1)
        self._slots[slot] = (*counts, scored, True, SURENESS in extra, bool(asks))
        self._fresh.append(slot)
        return _TappedRequest(slot=slot, asks=asks, prompt=np.array(prompt) if scored else None)

    def _make_room(self, like_BD: torch.Tensor) -> None:
        """Extend the arrays to the number of slots, and reset the sums of new slots to zero."""
        if not hasattr(self, "_recent_SRD"):
            size = like_BD.shape[-1] * len(self._layers)
            self._recent_SRD = like_BD.new_empty((0, self._ring, size))
            self._logprobs = Logprobs(self._ring, self._num_logprobs, like_BD.device)
            self._hidden_sum_SD = like_BD.new_empty((0, size), dtype=torch.float32)
            positions = [position for position in self._positions if position in ("prompt_last", "output_first")]
            self._kept = {position: like_BD.new_empty((0, size)) for position in positions}
            self._ahead = [int(position == "output_first") - 1 for position in positions]
        if len(self._recent_SRD) < self._num_slots:
            self._recent_SRD = grow_slots(self._recent_SRD, self._num_slots)
            self._logprobs.grow(self._num_slots)
            if "output_mean" in self._positions:
                self._hidden_sum_SD = grow_slots(self._hidden_sum_SD, self._num_slots)
            self._kept = {at: grow_slots(kept_SD, self._num_slots) for at, kept_SD in self._kept.items()}
        if self._fresh:
            [fresh_F] = send_arrays([self._fresh], like_BD.device)
            self._logprobs.clear(fresh_F)
            if "output_mean" in self._positions:
                self._hidden_sum_SD.index_fill_(0, fresh_F, 0.0)
            self._fresh.clear()

    @torch.inference_mode()
    def collect(self, requests: Sequence[tuple[str, int]]) -> Collected:
        """Return the data of finished requests, given id and number of answer tokens, and free them.

        States are float32; they are rounded to the stored type and clipped when they are batched.
        """
        rows = [self.rows[request_id] for request_id, _ in requests]
        lengths = [length for _, length in requests]
        states_of = [self._slots[row.slot] for row in rows]
        lasts = [int(of["num_prompt"]) + length - 1 for of, length in zip(states_of, lengths, strict=True)]
        fates = [self._find_fate(of, last) for of, last in zip(states_of, lasts, strict=True)]
        newest = [int(of["next"]) - 1 for of in states_of]
        [index_4N] = send_arrays([[[row.slot for row in rows], newest, lasts, lengths]], self._recent_SRD.device)
        slot_N, newest_N, last_N, length_N = index_4N
        # Positions in the columns of the ring: the newest one and those before it.
        column_R = torch.arange(self._ring, device=slot_N.device)
        position_NR = newest_N[:, None] - (newest_N[:, None] - column_R) % self._ring
        summaries = self._logprobs.collect(slot_N, position_NR, last_N, lengths)
        last_ND = self._recent_SRD[slot_N, last_N % self._ring].float()
        states = []
        for at in self._positions:
            if at == "output_last":
                states.append(last_ND)
                continue
            if at == "output_mean":
                beyond_NR1 = (position_NR > last_N[:, None])[..., None]
                surplus_ND = self._recent_SRD[slot_N].float().where(beyond_NR1, 0.0).sum(dim=1)
                state_ND = (self._hidden_sum_SD[slot_N] - surplus_ND) / length_N.clamp(min=1)[:, None]
            else:
                state_ND = self._kept[at][slot_N].float()
            if at != "prompt_last":  # an empty answer has the prompt's state
                state_ND = state_ND.where((length_N > 0)[:, None], last_ND)
            states.append(state_ND)
        array_PND = torch.stack(states).cpu().numpy() if states else np.empty(0)
        asked = [row.letters for row in rows if row.letters is not None]
        letters = iter(torch.cat([index_4N.new_empty(0, dtype=torch.float32), *asked]).tolist())
        self.free([request_id for request_id, _ in requests])
        return Collected(
            fates=fates,
            summaries=summaries,
            states=dict(zip(self._positions, array_PND, strict=True)),
            letters=[[next(letters) for _ in row.asks if row.letters is not None] for row in rows],
        )

    def _find_fate(self, state: Any, last: int) -> str:
        ahead = int(state["next"])
        oldest = ahead - self._ring + 1  # the position before the last one's is read, too
        if not state["unbroken"] or not oldest <= last <= ahead:
            return "lost"
        return "short" if last == ahead and set(self._positions) - {"prompt_last"} else "whole"

    def free(self, request_ids: Sequence[str]) -> None:
        """Forget requests, ignoring unknown ones, which were aborted before their first step."""
        for request_id in request_ids:
            self._held.forget(request_id)
            row = self.rows.pop(request_id, None)
            if row is not None:
                self._free.append(row.slot)


def _select_at(chosen_B: npt.NDArray[np.bool_], *arrays: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the arrays' elements where ``chosen_B`` is set, and the indices."""
    places = np.flatnonzero(chosen_B)
    return [*(array[places] for array in arrays), places]


def _zero_unwanted(number_K3: torch.Tensor, sure_K: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Return the numbers with margin and negative entropy set to 0 where ``sure_K`` is not set."""
    if sure_K.all():
        return number_K3
    [sure_tensor_K] = send_arrays([sure_K], number_K3.device)
    wanted_K3 = torch.cat([torch.ones_like(number_K3[:, :1]), sure_tensor_K[:, None].expand(-1, 2)], dim=1)
    return number_K3.where(wanted_K3 > 0, 0.0)
