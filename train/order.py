"""The order in which a training reads its rows: which rows make up each optimizer step, and which worker computes them.

The rows of a step follow from the lengths, the seed and the epoch alone. The number of workers and the size of a
micro-batch only divide a step, so they change neither the order nor, up to rounding, the gradients.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from curation.arrays import Int64s

GROUPED_BATCHES = 50
"""Rows are sorted by length within as many global batches, as ``transformers`` does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Order:
    """The batches of each epoch, as indices into the rows."""

    lengths_N: npt.NDArray[np.int32]
    """Tokens of each row."""
    global_batch_size: int
    seed: int

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch; the last one may have fewer rows."""
        return -(-len(self.lengths_N) // self.global_batch_size)

    def step(self, epoch: int, number: int) -> Int64s:
        """The rows of a step, the longest first."""
        return self._epoch(epoch)[number * self.global_batch_size : (number + 1) * self.global_batch_size]

    @lru_cache(maxsize=1)  # noqa: B019 - an order lives as long as its training
    def _epoch(self, epoch: int) -> Int64s:
        """All rows of an epoch, step after step.

        Rows that do not fill a step are drawn at random and come last. The others are grouped: rows of similar length
        share a step, and the steps are shuffled.
        """
        rng = np.random.default_rng([self.seed, epoch])
        shuffled_N = rng.permutation(len(self.lengths_N))
        num_grouped = len(shuffled_N) - len(shuffled_N) % self.global_batch_size
        for first in range(0, num_grouped, GROUPED_BATCHES * self.global_batch_size):
            group = shuffled_N[first : min(first + GROUPED_BATCHES * self.global_batch_size, num_grouped)]
            group[:] = self._longest_first(group)
        steps = shuffled_N[:num_grouped].reshape(-1, self.global_batch_size)
        shuffled_N[:num_grouped] = steps[rng.permutation(len(steps))].ravel()
        shuffled_N[num_grouped:] = self._longest_first(shuffled_N[num_grouped:])
        return shuffled_N

    def _longest_first(self, rows: Int64s) -> Int64s:
        ordered: Int64s = rows[np.argsort(-self.lengths_N[rows], kind="stable")]
        return ordered


@dataclass(frozen=True, kw_only=True)
class Division:
    """How workers divide the steps of an :class:`Order`: each computes equally many micro-batches of a step."""

    order: Order
    micro_batch_size: int
    rank: int
    num_workers: int

    @property
    def num_per_step(self) -> int:
        """Micro-batches of each worker in a full step."""
        return self.order.global_batch_size // (self.micro_batch_size * self.num_workers)

    @property
    def num_per_epoch(self) -> int:
        """Micro-batches of each worker in an epoch."""
        num_full, rest = divmod(len(self.order.lengths_N), self.order.global_batch_size)
        return num_full * self.num_per_step + -(-rest // (self.micro_batch_size * self.num_workers))

    def micro_batch(self, epoch: int, number: int) -> Int64s:
        """The rows of this worker's micro-batch ``number`` of an epoch; in the last step they may be fewer, or none.

        Rows of similar length go to the workers at the same time.
        """
        step, turn = divmod(number, self.num_per_step)
        num_turns = min(self.num_per_step, self.num_per_epoch - step * self.num_per_step)
        parts = np.array_split(self.order.step(epoch, step), num_turns * self.num_workers)
        return parts[turn * self.num_workers + self.rank]
