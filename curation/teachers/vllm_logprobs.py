"""Log-probabilities of requests under way in vLLM, by slot: their sum, the first ones, the least and the last.

How long an answer is, is known only at its end: a stop string is cut off with the tokens that it takes. So a ring holds
the newest log-probabilities, and the least one up to each of them.
"""

from collections.abc import Sequence

import torch


class Logprobs:
    """Of the answers in the slots of a tap."""

    def __init__(self, ring: int, num_first: int, device: torch.device) -> None:
        """``num_first``: how many first ones are kept; 0: only what the sum needs."""
        self._ring, self._num_first = ring, num_first
        self._sum_S = torch.zeros(0, device=device)
        self._recent_SR = torch.zeros((0, ring), device=device)
        self._first_SK = torch.zeros((0, num_first), device=device)
        self._least_S = torch.zeros(0, device=device)
        self._least_SR = torch.zeros((0, ring), device=device)

    def grow(self, num_slots: int) -> None:
        """Make room for so many slots."""
        self._sum_S, self._recent_SR = grown(self._sum_S, num_slots), grown(self._recent_SR, num_slots)
        if self._num_first:
            self._first_SK, self._least_S = grown(self._first_SK, num_slots), grown(self._least_S, num_slots)
            self._least_SR = grown(self._least_SR, num_slots)

    def clear(self, slot_F: torch.Tensor) -> None:
        """Begin new answers."""
        self._sum_S[slot_F] = 0.0
        if self._num_first:
            self._least_S[slot_F] = 0.0  # no log-probability is above it

    def add(self, entries: Sequence[tuple[int, ...]], index_5K: torch.Tensor, logprob_K: torch.Tensor) -> None:
        """Add those at K positions, of ``entries`` (as ``index_5K``: token, slot, position, prompt, ...).

        The state at a position gives the log-probability of the token after it.
        """
        _, slot_K, position_K, num_prompt_K, _ = index_5K
        self._sum_S.index_add_(0, slot_K, logprob_K)
        first = [k for k, (_, _, position, prompt, _) in enumerate(entries) if position + 1 - prompt < self._num_first]
        if first:
            first_W = torch.tensor(first, device=slot_K.device)
            self._first_SK[slot_K[first_W], (position_K - num_prompt_K + 1)[first_W]] = logprob_K[first_W]
        if self._num_first:
            self._least_S.scatter_reduce_(0, slot_K, logprob_K, "amin")
        # Of a row that has many positions in this step (a scored one), as many as the ring has columns.
        newest = {slot: position for _, slot, position, *_ in entries}
        if len(newest) < len(entries):
            late = [k for k, (_, slot, position, *_) in enumerate(entries) if newest[slot] - position < self._ring]
            late_W = torch.tensor(late, device=slot_K.device)
            slot_K, position_K, logprob_K = slot_K[late_W], position_K[late_W], logprob_K[late_W]
        self._recent_SR[slot_K, position_K % self._ring] = logprob_K
        if self._num_first:
            self._least_SR[slot_K, position_K % self._ring] = self._least_S[slot_K]

    def collect(
        self, slot_N: torch.Tensor, position_NR: torch.Tensor, last_N: torch.Tensor, lengths: Sequence[int]
    ) -> tuple[list[float], list[list[float]]]:
        """Of N answers the sum; and the first ones, of a longer answer followed by the least and the last one.

        ``position_NR`` are the positions that the ring holds, ``last_N`` those of the answers' last tokens.
        """
        surplus_NR = self._recent_SR[slot_N].where(position_NR >= last_N[:, None], 0.0)
        sums: list[float] = (self._sum_S[slot_N] - surplus_NR.sum(dim=1)).tolist()
        if not self._num_first:
            return sums, [[] for _ in lengths]
        before_N = (last_N - 1) % self._ring
        ends_N2 = torch.stack([self._least_SR[slot_N, before_N], self._recent_SR[slot_N, before_N]], dim=1)
        found = zip(self._first_SK[slot_N].tolist(), ends_N2.tolist(), lengths, strict=True)
        return sums, [first[:length] if length <= len(first) else first + ends for first, ends, length in found]


def grown(old: torch.Tensor, num_slots: int) -> torch.Tensor:
    """The same with more slots, the new ones zero."""
    new = old.new_zeros((num_slots, *old.shape[1:]))
    new[: len(old)] = old
    return new
