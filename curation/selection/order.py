"""Order of scores: keys that sort as they do, and order statistics of a pool's scores.

Keys are unsigned integers of a score's width, so that ranges of scores can be divided exactly. Order statistics are
the score at a rank and the number of rows that reach a score: ``Sorted`` holds the scores; ``Streamed`` reads them in
passes and holds counts alone, with the same results.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Floats, Int64s

Unsigned = npt.NDArray[np.unsignedinteger[Any]]
Batch = tuple[Int64s, Floats]
"""Row ids and raw scores of some rows, both [N]; NaN or -inf for a row that may not be selected."""
Mapped = Callable[[Callable[[Iterable[Batch]], Any]], Iterable[Any]]
"""Function that calls its argument with the batches of each part of the rows, and returns the results."""

CELL_BITS, REST_BITS = 18, 14
"""Numbers of leading bits of a float32 score's key, by which the first pass counts, and of remaining bits."""
CELLS_A_PASS = 128
"""Maximum number of cells of equal leading bits that one pass looks into, with 16 MiB of counts."""


def to_score_keys(score_N: Floats) -> Unsigned:
    """Return the keys of float32 (uint32) or float64 (uint64) scores, [N]; -0.0 has the key of 0.0, NaN is no score."""
    unsigned: Any = np.uint32 if score_N.dtype == np.float32 else np.uint64
    bits_N = (score_N + 0.0).view(unsigned)
    sign = unsigned(8 * score_N.dtype.itemsize - 1)
    flip_N = np.negative(bits_N >> sign) | (unsigned(1) << sign)  # all bits of a negative score, else the sign alone
    found: Unsigned = bits_N ^ flip_N
    return found


def from_score_keys(key_N: Unsigned) -> Floats:
    """Return the scores of keys, [N]: the inverse of :func:`to_score_keys`."""
    kind: Any = key_N.dtype.type
    top = kind(1) << kind(8 * key_N.dtype.itemsize - 1)
    bits_N = np.where(key_N & top, key_N ^ top, ~key_N)
    found: Floats = bits_N.view(np.float32 if kind is np.uint32 else np.float64)
    return found


def score_of(key: int, bits: int) -> Any:
    """Return the score of one key, as a numpy scalar of ``bits`` bits."""
    return from_score_keys(np.array([key], dtype=np.uint32 if bits == 32 else np.uint64))[0]


def get_lowest_key(bits: int) -> int:
    """Return the key of the lowest finite score."""
    kind: Any = np.float32 if bits == 32 else np.float64
    return int(to_score_keys(np.array([np.finfo(kind).min], dtype=kind))[0])


def get_highest_key(bits: int) -> int:
    """Return the key of +inf."""
    return int(to_score_keys(np.array([np.inf], dtype=np.float32 if bits == 32 else np.float64))[0])


def without_minus_zero(first: int, last: int, bits: int) -> tuple[int, int]:
    """Return a range of keys whose ends are not the key of -0.0: no score has it, and its score equals that of 0.0."""
    minus_zero = (1 << bits - 1) - 1
    return first + (first == minus_zero), last - (last == minus_zero)


class Sorted:
    """Order statistics of scores in memory."""

    def __init__(self, score_N: Floats) -> None:
        self.num_rows = len(score_N)
        """Number of all rows, including those that may not be selected."""
        self._sorted_M = np.sort(score_N[score_N > -np.inf])  # false for NaN, too
        self.num_scored = len(self._sorted_M)
        """Number of rows that may be selected."""

    def at_ranks(self, rank_G: Int64s) -> Floats:
        """Return the scores at the given ranks [G]; the best row has rank 1, the last one ``num_scored``."""
        found: Floats = self._sorted_M[self.num_scored - rank_G]
        return found

    def num_above(self, score_G: npt.ArrayLike, *, inclusive: bool) -> Int64s:
        """Return how many rows score above each given score, or at least as much if ``inclusive``, int64 [G]."""
        return self.num_scored - np.searchsorted(self._sorted_M, score_G, side="left" if inclusive else "right")


class Streamed:
    """Order statistics (as ``Sorted``) of float32 scores that are read in passes: one at first, and more at each call.

    A pass holds 2 MiB of counts or, for up to ``CELLS_A_PASS`` ranks, 16 MiB.
    """

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped
        parts = [*mapped(_count_cells)]
        self.num_rows = sum(num_rows for num_rows, _ in parts)
        counts_C = np.sum([counts_C for _, counts_C in parts], axis=0)
        self.num_scored = int(counts_C.sum())
        self._reached_C = np.cumsum(counts_C[::-1])
        """Cumulative number of rows by cell, from the highest scores down."""

    def at_ranks(self, rank_G: Int64s) -> Floats:
        """Return the scores at the given ranks [G], as ``Sorted.at_ranks``."""
        place_G = np.searchsorted(self._reached_C, rank_G)
        found_G = np.empty(len(rank_G))
        places = np.unique(place_G)
        for start in range(0, len(places), CELLS_A_PASS):
            chosen = places[start : start + CELLS_A_PASS]
            cells = (len(self._reached_C) - 1 - chosen)[::-1]
            counts_CR = np.sum([*self._mapped(partial(_count_within, cells))], axis=0)
            for place, cell, counts_R in zip(chosen, cells[::-1], counts_CR[::-1], strict=True):
                of_G = np.flatnonzero(place_G == place)
                before = self._reached_C[place] - counts_R.sum()
                rest_G = len(counts_R) - 1 - np.searchsorted(np.cumsum(counts_R[::-1]), rank_G[of_G] - before)
                found_G[of_G] = from_score_keys(((cell << REST_BITS) + rest_G).astype(np.uint32))
        return found_G

    def num_above(self, score_G: npt.ArrayLike, *, inclusive: bool) -> Int64s:
        """Return how many rows score above each given score [G], as ``Sorted.num_above``."""
        wanted_G, place_G = np.unique(np.asarray(score_G, dtype=np.float64), return_inverse=True)
        above = partial(_count_above, wanted_G, "right" if inclusive else "left")
        found: Int64s = np.sum([*self._mapped(above)], axis=0)[place_G]
        return found


Ordered = Sorted | Streamed
"""Order statistics of the scores of a pool."""


def _iter_keys(batches: Iterable[Batch]) -> Iterable[tuple[int, Int64s]]:
    """Yield the number of rows of each batch, and the keys of its rows that have a score."""
    for _, score_B in batches:
        single_B = score_B.astype(np.float32, copy=False)
        yield len(single_B), to_score_keys(single_B[single_B > -np.inf]).astype(np.int64)


def _count_cells(batches: Iterable[Batch]) -> tuple[int, Int64s]:
    counts_C, num_rows = np.zeros(1 << CELL_BITS, dtype=np.int64), 0
    for num, key_M in _iter_keys(batches):
        counts_C += np.bincount(key_M >> REST_BITS, minlength=len(counts_C))
        num_rows += num
    return num_rows, counts_C


def _count_within(cells: Int64s, batches: Iterable[Batch]) -> Int64s:
    """Return the number of rows by ascending cell of ``cells`` and the remaining bits of their keys, int64 [C, R]."""
    counts_CR = np.zeros((len(cells), 1 << REST_BITS), dtype=np.int64)
    for _, key_M in _iter_keys(batches):
        place_M = np.minimum(np.searchsorted(cells, key_M >> REST_BITS), len(cells) - 1)
        in_M = np.flatnonzero(cells[place_M] == key_M >> REST_BITS)
        number_M = (place_M[in_M] << REST_BITS) + (key_M[in_M] & (1 << REST_BITS) - 1)
        counts_CR += np.bincount(number_M, minlength=counts_CR.size).reshape(counts_CR.shape)
    return counts_CR


def _count_above(wanted_G: Floats, side: Any, batches: Iterable[Batch]) -> Int64s:
    counts_G = np.zeros(len(wanted_G) + 1, dtype=np.int64)
    for _, score_B in batches:
        scored_M = score_B[score_B > -np.inf].astype(np.float64)
        counts_G += np.bincount(np.searchsorted(wanted_G, scored_M, side=side), minlength=len(counts_G))
    above_G: Int64s = np.cumsum(counts_G[::-1])[::-1][1:]
    return above_G
