"""Log-probabilities of the tokens of unfinished vLLM requests, by slot: four summaries of three numbers.

The numbers are a token's log-probability, and margin and negative entropy of the distribution that it was drawn from.
The summaries are the sum, the first values, the least and the last. The length of an answer is known only at its end,
since a stop string is cut off with its tokens. So a ring buffer holds the newest numbers, and the least ones up to each
of them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from curation.teachers.completions import OfTokens
from curation.teachers.trie import send_arrays

Ints = npt.NDArray[np.int64]


class Summary(NamedTuple):
    """Log-probabilities, margins and entropies of an answer."""

    logprob: float  # sum of the log-probabilities of its tokens
    logprobs: list[float]
    """Log-probabilities of its first tokens, followed by the least and the last one if the answer is longer."""
    margins: OfTokens | None  # ``None`` for an empty answer
    negentropies: OfTokens | None


class Positions:
    """Indices of K positions of a step, ascending within a slot, sent to the device in one copy."""

    def __init__(self, entry_K5: Any, ring: int, num_first: int, ahead: Sequence[int], device: torch.device) -> None:
        """Take K entries: token of the step, slot, position, number of prompt tokens, and the next token or -1.

        ``ahead`` has offsets from the answer's first position; positions at each offset are listed separately.
        """
        entry_5K: Ints = np.asarray(entry_K5, dtype=np.int64).T
        _, slot_K, position_K, num_prompt_K, _ = entry_5K
        _, last_K = np.unique(slot_K[::-1], return_index=True)
        newest_K = np.sort(len(slot_K) - 1 - last_K)
        newest = np.full(int(slot_K.max()) + 1, -1)
        newest[slot_K[newest_K]] = position_K[newest_K]
        ring_K = np.flatnonzero(newest[slot_K] - position_K < ring)
        chosen = [np.flatnonzero(position_K - num_prompt_K + 1 < num_first), ring_K, newest_K]
        chosen += [np.flatnonzero(position_K - num_prompt_K == more) for more in ahead]
        self.index_5K, *found = send_arrays([entry_5K, *chosen], device)
        self.first_W, self.late_W, self.newest_W, *self.ahead = found


class Logprobs:
    """Running summaries of the log-probabilities of the answers in a tap's slots."""

    def __init__(self, ring: int, num_first: int, device: torch.device) -> None:
        """Keep the first ``num_first`` log-probabilities of each answer, at least one."""
        self._ring, self.num_first = ring, max(1, num_first)
        self._sum_S3 = torch.zeros((0, 3), device=device)
        self._first_SK3 = torch.zeros((0, self.num_first, 3), device=device)
        self._least_S3 = torch.zeros((0, 3), device=device)
        self._recent_SR3 = torch.zeros((0, ring, 3), device=device)
        self._least_SR3 = torch.zeros((0, ring, 3), device=device)

    def grow(self, num_slots: int) -> None:
        """Extend all arrays to ``num_slots`` slots."""
        self._sum_S3, self._least_S3 = grow_slots(self._sum_S3, num_slots), grow_slots(self._least_S3, num_slots)
        self._first_SK3 = grow_slots(self._first_SK3, num_slots)
        self._recent_SR3, self._least_SR3 = (
            grow_slots(self._recent_SR3, num_slots),
            grow_slots(self._least_SR3, num_slots),
        )

    def clear(self, slot_F: torch.Tensor) -> None:
        """Clear these slots for new answers."""
        self._sum_S3.index_fill_(0, slot_F, 0.0)
        self._least_S3.index_fill_(0, slot_F, math.inf)

    def add(self, positions: Positions, number_K3: torch.Tensor) -> None:
        """Add the numbers at K positions.

        The numbers at a position are those of the token after it, or 0 if no token follows.
        """
        _, slot_K, position_K, num_prompt_K, next_K = positions.index_5K
        self._sum_S3.index_add_(0, slot_K, number_K3)
        first_W, late_W = positions.first_W, positions.late_W
        if len(first_W):
            self._first_SK3[slot_K[first_W], (position_K - num_prompt_K + 1)[first_W]] = number_K3[first_W]
        follows_K3 = (next_K >= 0)[:, None].expand_as(number_K3)
        self._least_S3.scatter_reduce_(
            0, slot_K[:, None].expand_as(number_K3), number_K3.where(follows_K3, math.inf), "amin"
        )
        # Of a row that has many positions in this step (a scored one), as many as the ring has columns.
        slot_K, position_K, number_K3 = slot_K[late_W], position_K[late_W], number_K3[late_W]
        self._recent_SR3[slot_K, position_K % self._ring] = number_K3
        self._least_SR3[slot_K, position_K % self._ring] = self._least_S3[slot_K]

    def collect(
        self, slot_N: torch.Tensor, position_NR: torch.Tensor, last_N: torch.Tensor, lengths: Sequence[int]
    ) -> list[Summary]:
        """Return summaries of N answers.

        ``position_NR`` has the positions that the ring holds, ``last_N`` those of the answers' last tokens.
        """
        beyond_NR1 = (position_NR >= last_N[:, None])[..., None]
        sum_N3 = self._sum_S3[slot_N] - self._recent_SR3[slot_N].where(beyond_NR1, 0.0).sum(dim=1)
        before_N = (last_N - 1) % self._ring
        ends_N6 = torch.cat([self._least_SR3[slot_N, before_N], self._recent_SR3[slot_N, before_N]], dim=1)
        found = zip(sum_N3.tolist(), self._first_SK3[slot_N].tolist(), ends_N6.tolist(), lengths, strict=True)
        return [_make_summary(*of_answer) for of_answer in found]


def _make_summary(sums: list[float], first_K3: list[list[float]], ends: list[float], length: int) -> Summary:
    if not length:
        return Summary(sums[0], [], None, None)
    least, last = ends[:3], ends[3:]
    logprobs = [first[0] for first in first_K3[:length]]
    if length > len(logprobs):
        logprobs += least[0], last[0]
    margins, negentropies = (OfTokens(sums[of] / length, least[of], first_K3[0][of], last[of]) for of in (1, 2))
    return Summary(sums[0], logprobs, margins, negentropies)


def grow_slots(old: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Return a copy of ``old`` extended to ``num_slots`` slots, with zeros in the new ones."""
    new = old.new_zeros((num_slots, *old.shape[1:]))
    new[: len(old)] = old
    return new
