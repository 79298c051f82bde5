"""Log-probabilities and hidden states out of vLLM's own steps, by a hook on the model runner of each worker.

vLLM keeps neither. The hook sits where a step draws its tokens: there are the states that the head read, the logits
before penalty, temperature and limits, and the tokens drawn. Per request it keeps the states that were asked for, the
newest ``ring`` positions, the first log-probabilities, and running sums on the device; ``collect`` takes the rows of
many finished requests off the device at once, and frees them. Margin and entropy, which read all logits once more, are
computed for the requests alone that ask for them (``SURENESS``). Layers other than the last come from the interface
that vLLM's models have for Eagle3's drafts, beside the step's own states; all states have their layers side by side
(``curation.config.states.layers_of``).

Positions are absolute in a request's tokens, of which the first P are the prompt. The last token that is drawn is never
fed, so that its state does not exist: an answer that ends by a stop token needs none, one that ends by the length cap
is asked for one token more. Positions of a request that was preempted, and is fed again, are counted once. A request
whose positions do not follow each other (begun behind its first one in the prefix cache, drawn anew) is marked as lost,
and its owner asks again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from curation.config.states import LAST, layers_of, others_of, positions_of
from curation.teachers.device_copy import sent
from curation.teachers.logit_numbers import numbers_of
from curation.teachers.vllm_held import HeldWalks
from curation.teachers.vllm_logprobs import Logprobs, Positions, Summary, grown
from curation.teachers.vllm_versions import gives_layers, missing_attributes

MAX_LOGITS = 2**27
"""Logits taken at once (0.5 GiB in float32)."""

SCORE_FROM = "score_from"
"""Key of a request's ``extra_args``: the prompt from this position on is an answer to score."""

LETTERS = "letters"
"""Key of a request's ``extra_args``: tokens whose log-probabilities after the prompt are wanted."""

SURENESS = "sureness"
"""Key of a request's ``extra_args``: margin and negative entropy at its answer's tokens are wanted."""


class Collected(NamedTuple):
    """The tap's data of N requests."""

    fates: list[str]
    """``whole``; ``short``: the state of the answer's last token was not computed, its part of ``output_mean`` lacks;
    ``lost``: nothing can be read."""
    summaries: list[Summary]
    """Summaries of the answers' log-probabilities; margins and entropies are 0 where they were not asked for."""
    states: dict[str, npt.NDArray[Any]]
    """hidden_ND by position."""
    letters: list[list[float]]
    """Log-probabilities of the tokens that were asked for after the prompt; empty for requests that asked for none."""


class TapExtension:
    """Methods that the engine's ``collective_rpc`` calls; vLLM mixes the class into its worker."""

    model_runner: Any
    rank: int

    def tap_install(self, names: Sequence[str], ring: int, num_logprobs: int) -> list[str]:
        """Hook the runner to keep these states and so many log-probabilities; what it lacks (then it is not hooked)."""
        missing = missing_attributes(self.model_runner)
        if not missing:
            self.tap = Tap(self.model_runner, names, ring, num_logprobs)
        return missing

    def tap_lacks_layers(self) -> str | None:
        """The name of the runner's model if it cannot give the states of other layers than the last."""
        model = type(self.model_runner.get_model())
        return None if gives_layers(model) else model.__name__

    def tap_collect(self, requests: Sequence[tuple[str, int]], dtype: str) -> Collected | None:
        """``Tap.collect`` of the first worker; the others, which hold the same, free their rows."""
        if self.rank == 0:
            return self.tap.collect(requests, dtype)
        self.tap.free([request_id for request_id, _ in requests])
        return None

    def tap_free(self, request_ids: Sequence[str]) -> None:
        """Forget requests that were aborted."""
        self.tap.free(request_ids)

    def tap_rows(self) -> int:
        """Requests that are held."""
        return len(self.tap.rows)


@dataclass(kw_only=True, slots=True, eq=False)
class _TappedRequest:
    """One request under way; its numbers stand in the tap's arrays by slot."""

    slot: int
    asks: list[int]
    """Tokens whose log-probabilities after the prompt are wanted."""
    letters: torch.Tensor | None = None


_BY_SLOT = np.dtype(
    [("num_prompt", np.int64), ("next", np.int64), ("scored", bool), ("unbroken", bool), ("sure", bool), ("asks", bool)]
)
"""Facts of a slot that the host knows; ``next`` is the position whose state comes next, first that of the last token of
the prompt; ``sure``: margin and negative entropy are wanted."""


class Tap:
    """Keeps what running requests need; memory grows with the requests held, and is used again."""

    def __init__(self, runner: Any, names: Sequence[str], ring: int, num_logprobs: int) -> None:
        self.rows: dict[str, _TappedRequest] = {}
        self._runner, self._ring, self._num_logprobs = runner, ring, num_logprobs
        self._positions, self._layers = positions_of(names), layers_of(names)
        if others := others_of(names):
            runner.get_model().set_aux_hidden_state_layers(others)
            runner.use_aux_hidden_state_outputs = True
        self._held = HeldWalks()
        self._free: list[int] = []
        self._num_slots = 0
        self._slots = np.zeros(0, _BY_SLOT)
        self._step: Any = None
        draw: Callable[..., Any] = runner._sample
        finish_step: Callable[..., Any] = runner.sample_tokens

        def sample_tokens(grammar_output: Any) -> Any:
            self._step = runner.execute_model_state
            # A prompt that is fed in part draws a token too, which is dropped. It must not use up the row's own random
            # numbers; vLLM winds those back by a way that CPU generators lack.
            generators = runner.input_batch.generators
            aside = {place: generators.pop(place) for place in self._drawing_none() if place in generators}
            output = finish_step(grammar_output)
            generators.update(aside)
            return output

        def sample(logits: Any, spec_decode_metadata: Any) -> Any:
            held = self._held.walks(runner, without=set(self._drawing_none()))
            # The sampler works in place on float32 logits, and on a copy of others; what is held is barred in place.
            raw = logits.clone() if held or logits.dtype == torch.float32 else logits
            self._held.bar(held, logits)
            output = draw(logits, spec_decode_metadata)
            self._held.go(held, output.sampled_token_ids)
            step, self._step = self._step, None
            if step is not None:
                self._take(step, raw, output.sampled_token_ids)
            return output

        runner.sample_tokens, runner._sample = sample_tokens, sample

    def _drawing_none(self) -> list[int]:
        num_rows = len(self._runner.input_batch.req_ids)
        places: list[int] = np.flatnonzero(self._runner.discard_request_mask.np[:num_rows]).tolist()
        return places

    @torch.inference_mode()
    def _take(self, step: Any, logits_BV: torch.Tensor, token_B1: torch.Tensor) -> None:
        """Keep what a step computed, before the runner goes on to the next; nothing waits for the device."""
        batch = self._runner.input_batch
        ids = list(batch.req_ids)
        fresh = []
        for place, request_id in enumerate(ids):
            if request_id not in self.rows:
                self.rows[request_id] = self._new_row(request_id, int(batch.num_prompt_tokens[place]))
                fresh.append(self.rows[request_id].slot)
        self._make_room(step.sample_hidden_states, fresh)
        slot_B = np.fromiter((self.rows[request_id].slot for request_id in ids), np.int64, len(ids))
        begin_B = batch.num_computed_tokens_cpu[: len(ids)].astype(np.int64)
        num_scheduled = step.scheduler_output.num_scheduled_tokens
        end_B = begin_B + np.fromiter((num_scheduled[request_id] for request_id in ids), np.int64, len(ids))
        offset_B = self._runner.query_start_loc.np[: len(ids)] - begin_B
        draws_B = ~self._slots["scored"][slot_B]
        scored = [self._to_score(*spot) for spot in zip(*_at(~draws_B, slot_B, begin_B, end_B, offset_B), strict=True)]
        draws_B[self._drawing_none()] = False
        if draws_B.any():
            slot_K, end_K, offset_K, place_K = _at(draws_B, slot_B, end_B, offset_B)
            self._slots["unbroken"][slot_K] &= end_K - 1 == self._slots["next"][slot_K]
            self._slots["next"][slot_K] = end_K
            entry_K5 = np.stack(
                [offset_K + end_K - 1, slot_K, end_K - 1, self._slots["num_prompt"][slot_K], place_K], axis=1
            )
            self._take_drawn(step, logits_BV, token_B1[:, 0].long(), entry_K5, ids)
        if any(len(part) for part in scored):
            entry_K5 = np.concatenate(scored)
            positions = self._placed(entry_K5, logits_BV.device)
            index_5K = positions.index_5K
            hidden_KD = step.hidden_states[index_5K[0]]
            number_K3 = self._score(hidden_KD, index_5K[4], self._slots["sure"][entry_K5[:, 1]])
            self._keep(positions, self._side_by_side(step, hidden_KD, index_5K[0]), number_K3)

    def _to_score(self, slot: int, begin: int, end: int, offset: int, place: int) -> npt.NDArray[np.int64]:
        """The entries of a row whose prompt holds the answer, of which a step feeds ``begin`` to ``end``."""
        batch, state = self._runner.input_batch, self._slots[slot]
        state["unbroken"] &= begin <= state["next"]
        length = int(batch.num_prompt_tokens[place])
        position_K = np.arange(max(state["next"], begin), max(state["next"], begin, min(end, length)))
        state["next"] = max(state["next"], end)
        token_K = np.full(len(position_K), -1)
        following = batch.token_ids_cpu[place, position_K[position_K + 1 < length] + 1]
        token_K[: len(following)] = following
        same = np.ones_like(position_K)
        return np.stack([offset + position_K, slot * same, position_K, state["num_prompt"] * same, token_K], axis=1)

    def _take_drawn(
        self,
        step: Any,
        logits_BV: torch.Tensor,
        token_B: torch.Tensor,
        entry_K5: npt.NDArray[np.int64],
        ids: Sequence[str],
    ) -> None:
        """Keep the numbers and states of rows whose tokens a step drew."""
        positions = self._placed(entry_K5, logits_BV.device)
        _, slot_K, position_K, num_prompt_K, place_K = entry_K5.T
        sure_K = self._slots["sure"][slot_K]
        whole_B, number_B3 = numbers_of(logits_BV, token_B, sure=bool(sure_K.any()))
        asking = self._slots["asks"][slot_K] & (position_K == num_prompt_K - 1)
        if asking.any():
            asked = [(self.rows[ids[place]], place) for place in place_K[asking]]
            places = np.repeat(place_K[asking], [len(row.asks) for row, _ in asked])
            place_L, token_L = sent([places, [token for row, _ in asked for token in row.asks]], logits_BV.device)
            letter_L = logits_BV[place_L, token_L].float() - whole_B[place_L]
            pieces = torch.split(letter_L, [len(row.asks) for row, _ in asked])
            for (row, _), letters in zip(asked, pieces, strict=True):
                row.letters = letters
        hidden_KD, number_K3 = step.sample_hidden_states, number_B3
        if len(entry_K5) < len(hidden_KD):
            hidden_KD, number_K3 = hidden_KD[positions.index_5K[4]], number_B3[positions.index_5K[4]]
        number_K3 = _only(number_K3, sure_K)
        self._keep(positions, self._side_by_side(step, hidden_KD, positions.index_5K[0]), number_K3)

    def _placed(self, entry_K5: npt.NDArray[np.int64], device: torch.device) -> Positions:
        ahead = [int(at == "output_first") - 1 for at in self._kept]
        return Positions(entry_K5, self._ring, self._logprobs.num_first, ahead, device)

    def _side_by_side(self, step: Any, last_KD: torch.Tensor, token_K: torch.Tensor) -> torch.Tensor:
        """The layers to keep at K tokens of a step, whose last layer is ``last_KD``."""
        if self._layers == (LAST,):
            return last_KD
        others = [layer_TD[token_K] for layer_TD in step.aux_hidden_states]  # vLLM, too, gives them ascending
        return torch.cat([last_KD, *others] if LAST in self._layers else others, dim=-1)

    def _score(self, hidden_KD: torch.Tensor, token_K: torch.Tensor, sure_K: npt.NDArray[np.bool_]) -> torch.Tensor:
        """The numbers of the tokens that follow, [K, 3]; 0 where none (-1) does. All workers take part.

        Margin and negative entropy are those of the places where ``sure_K`` is set, and 0 in others.
        """
        number_K3 = torch.zeros((len(token_K), 3), device=hidden_KD.device)
        piece = max(1, MAX_LOGITS // self._runner.model_config.get_vocab_size())
        for start in range(0, len(token_K), piece):
            part = slice(start, start + piece)
            logits_KV = self._runner.model.compute_logits(hidden_KD[part])
            if logits_KV is None:
                continue
            _, found_K3 = numbers_of(logits_KV, token_K[part].clamp(min=0), sure=bool(sure_K[part].any()))
            number_K3[part] = found_K3.where((token_K[part] >= 0)[:, None], 0.0)
        return _only(number_K3, sure_K)

    def _keep(self, positions: Positions, hidden_KD: torch.Tensor, number_K3: torch.Tensor) -> None:
        """Add K positions to their rows."""
        _, slot_K, position_K, num_prompt_K, _ = positions.index_5K
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

    def _new_row(self, request_id: str, num_tokens: int) -> _TappedRequest:
        extra = self._runner.requests[request_id].sampling_params.extra_args or {}
        num_prompt = extra.get(SCORE_FROM, num_tokens)
        if not self._free:
            more = max(64, self._num_slots)
            self._free = list(range(self._num_slots, self._num_slots + more))
            self._num_slots += more
            self._slots = np.concatenate([self._slots, np.zeros(more, _BY_SLOT)])
        slot, asks = self._free.pop(), extra.get(LETTERS, [])
        self._slots[slot] = (num_prompt, num_prompt - 1, SCORE_FROM in extra, True, SURENESS in extra, bool(asks))
        return _TappedRequest(slot=slot, asks=asks)

    def _make_room(self, like_BD: torch.Tensor, fresh: list[int]) -> None:
        """Make the arrays as long as there are slots, and those of fresh slots that sum up zero."""
        if not hasattr(self, "_recent_SRD"):
            size = like_BD.shape[-1] * len(self._layers)
            self._recent_SRD = like_BD.new_empty((0, self._ring, size))
            self._logprobs = Logprobs(self._ring, self._num_logprobs, like_BD.device)
            self._hidden_sum_SD = like_BD.new_empty((0, size), dtype=torch.float32)
            positions = [position for position in self._positions if position in ("prompt_last", "output_first")]
            self._kept = {position: like_BD.new_empty((0, size)) for position in positions}
        if len(self._recent_SRD) < self._num_slots:
            self._recent_SRD = grown(self._recent_SRD, self._num_slots)
            self._logprobs.grow(self._num_slots)
            if "output_mean" in self._positions:
                self._hidden_sum_SD = grown(self._hidden_sum_SD, self._num_slots)
            self._kept = {at: grown(kept_SD, self._num_slots) for at, kept_SD in self._kept.items()}
        if fresh:
            [fresh_F] = sent([fresh], like_BD.device)
            self._logprobs.clear(fresh_F)
            if "output_mean" in self._positions:
                self._hidden_sum_SD.index_fill_(0, fresh_F, 0.0)

    @torch.inference_mode()
    def collect(self, requests: Sequence[tuple[str, int]], dtype: str) -> Collected:
        """The data of finished requests, given each with its answer's number of tokens; frees them."""
        rows = [self.rows[request_id] for request_id, _ in requests]
        lengths = [length for _, length in requests]
        states_of = [self._slots[row.slot] for row in rows]
        lasts = [int(of["num_prompt"]) + length - 1 for of, length in zip(states_of, lengths, strict=True)]
        fates = [self._fate(of, last) for of, last in zip(states_of, lasts, strict=True)]
        newest = [int(of["next"]) - 1 for of in states_of]
        [index_4N] = sent([[[row.slot for row in rows], newest, lasts, lengths]], self._recent_SRD.device)
        slot_N, newest_N, last_N, length_N = index_4N
        # What the columns of the ring hold: the newest position, and so many before it.
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
        array_PND = torch.stack(states).to(getattr(torch, dtype)).cpu().numpy() if states else np.empty(0)
        asked = [row.letters for row in rows if row.letters is not None]
        letters = iter(torch.cat([index_4N.new_empty(0, dtype=torch.float32), *asked]).tolist())
        self.free([request_id for request_id, _ in requests])
        return Collected(
            fates=fates,
            summaries=summaries,
            states=dict(zip(self._positions, array_PND, strict=True)),
            letters=[[next(letters) for _ in row.asks if row.letters is not None] for row in rows],
        )

    def _fate(self, state: Any, last: int) -> str:
        ahead = int(state["next"])
        oldest = ahead - self._ring + 1  # the position before the last one's is read, too
        if not state["unbroken"] or not oldest <= last <= ahead:
            return "lost"
        return "short" if last == ahead and set(self._positions) - {"prompt_last"} else "whole"

    def free(self, request_ids: Sequence[str]) -> None:
        """Forget requests; unknown ones (aborted before their first step) are none."""
        for request_id in request_ids:
            self._held.forget(request_id)
            row = self.rows.pop(request_id, None)
            if row is not None:
                self._free.append(row.slot)


def _at(chosen_B: npt.NDArray[np.bool_], *arrays: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The arrays at the chosen places, and the places."""
    places = np.flatnonzero(chosen_B)
    return [*(array[places] for array in arrays), places]


def _only(number_K3: torch.Tensor, sure_K: npt.NDArray[np.bool_]) -> torch.Tensor:
    """The numbers with margin and negative entropy 0 where they are not wanted."""
    if sure_K.all():
        return number_K3
    [sure_tensor_K] = sent([sure_K], number_K3.device)
    wanted_K3 = torch.cat([torch.ones_like(number_K3[:, :1]), sure_tensor_K[:, None].expand(-1, 2)], dim=1)
    return number_K3.where(wanted_K3 > 0, 0.0)
