"""Order of scores: keys that sort as they do, and order statistics of a pool's scores.

Keys are unsigned integers of a score's width, so that ranges of scores can be divided exactly. Order statistics are
the score at a rank and the number of rows that reach a score.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Floats, Int64s

Unsigned = npt.NDArray[np.unsignedinteger[Any]]


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
