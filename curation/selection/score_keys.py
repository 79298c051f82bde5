"""Float scores as unsigned integers of the same width and order, so that ranges of scores can be divided exactly."""

from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Floats

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
