"""The exact bound of a top-n over scores that are read in passes and never held: which score, and which tie, is last.

Rows are ordered by score, larger first, and at one score by a seeded hash of the row id, smaller first. Both are
numbers of fixed width, read digit by digit from the left (radix selection). One pass counts the rows by the next digit;
the counts say which digit the n-th row has, and the next pass looks at these rows alone. As soon as they are few, a
pass collects them and the search ends: two or three passes for float32 scores, whatever their number. A pass needs half
a megabyte, and 16 MB where it collects.

Passes over parts of the rows (fragments, files) can run anywhere and in any order: :func:`tally` is the work of one
part, :func:`merged` adds the results, :func:`narrowed` decides how to go on.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.hashing import Int64s, hash64
from curation.selection.top_n import check

Floats = npt.NDArray[np.floating[Any]]
Unsigned = npt.NDArray[np.unsignedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Batch = tuple[Int64s, Floats]
"""Row ids and raw scores of some rows, both [N]."""
Scan = Callable[[], Iterable[Batch]]
"""Reads all rows anew at each call, in any order and partition."""

DIGIT_BITS = 16
HASH_BITS = 64
COLLECTED_ROWS = 1 << 20
"""Up to so many rows that a digit leaves are collected instead of counted by the next digit."""
SLICE_ROWS = 1 << 17
"""The number of rows that are worked on at a time; their scores and keys stay in a core's cache."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The last selected row: rows with a larger score pass, and at its score those with at most its hash."""

    score: float
    tie: int
    """The largest ``hash64(row_id, seed)``, unsigned, that passes at the score."""
    seed: int
    num_selected: int

    def passes(self, row_ids_N: Int64s, raw_score_N: Floats) -> Bools:
        """Which rows are selected, bool [N]; NaN and -inf never are."""
        passes_N: Bools = raw_score_N > self.score
        tied = np.flatnonzero(raw_score_N == self.score)
        if len(tied):
            passes_N[tied] = hash64(row_ids_N[tied], self.seed) <= np.uint64(self.tie)
        return passes_N


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a pass counts: the next digit of the rows whose key, and then hash, begin with ``prefix``."""

    n: int
    seed: int
    wanted: int
    """How many of these rows are selected, at least 1."""
    prefix: int = 0
    num_bits: int = 0
    """The number of bits of the prefix."""
    collects: bool = False
    """Keys and hashes of the rows are collected, not counted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tally:
    """What a pass over some rows found."""

    num_rows: int
    """All rows that were read."""
    key_bits: int
    """32 or 64: the width of the scores; 0 without rows."""
    counts_B: Int64s
    """Rows by the next digit. The first pass leaves out rows that n others are ahead of."""
    keys_M: Unsigned
    hashes_M: Unsigned


def exact_bound(scan: Scan, n: int, seed: int, *, threads: int = 1) -> Bound:
    """The bound that selects the same n rows as :class:`curation.selection.top_n.TopN`.

    The result does not depend on the order of the rows, or on how they are divided into batches. All scores have one
    type: float64 is compared as such, in up to two passes more, float16 as float32. ``threads`` share a pass.

    Raises:
        BudgetError: n is not positive, or larger than the number of rows with a score.
        ValueError: batches of float32 and of float64 are mixed.
    """
    step: Question | Bound = question(n, seed)
    while isinstance(step, Question):
        step = narrowed(step, _in_threads(step, scan(), threads))
    return step


def question(n: int, seed: int) -> Question:
    """What the first pass counts.

    Raises:
        BudgetError: n is not positive.
    """
    check(n, num_eligible=n, num_rows=n)
    return Question(n=n, seed=seed, wanted=n)


def tally(asked: Question, batches: Iterable[Batch]) -> Tally:
    """Answer a question for some of the rows."""
    counts_B = np.zeros(1 << DIGIT_BITS, dtype=np.int64)
    keys, hashes = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.uint64)]
    num_rows, key_bits, floor, num_counted = 0, 0, 0, 0
    for row_ids_N, given_N in batches:
        score_N = given_N.astype(np.float32) if given_N.dtype == np.float16 else given_N
        key_bits = _one_width(key_bits, 8 * score_N.dtype.itemsize if len(score_N) else 0)
        num_rows += len(score_N)
        for start in range(0, len(score_N), SLICE_ROWS):
            score_S = score_N[start : start + SLICE_ROWS]
            if not asked.num_bits:
                digit_M = _first_digits(score_S, floor)
            else:
                key_M, hash_M = _in_window(asked, row_ids_N[start : start + SLICE_ROWS], score_S)
                if asked.collects:
                    keys.append(key_M.astype(np.uint64))
                    hashes.append(hash_M)
                    continue
                digit_M = _next_digits(asked, key_M, hash_M, key_bits)
            if not len(digit_M):
                continue
            counts_B += np.bincount(digit_M.astype(np.int64), minlength=1 << DIGIT_BITS)
            num_counted += len(digit_M)
            if not asked.num_bits and num_counted >= asked.wanted + max(asked.wanted // 8, SLICE_ROWS):
                floor = _floor(counts_B, asked.wanted)
                num_counted = int(counts_B[floor:].sum())
    return Tally(
        num_rows=num_rows,
        key_bits=key_bits,
        counts_B=counts_B,
        keys_M=np.concatenate(keys),
        hashes_M=np.concatenate(hashes),
    )


def merged(tallies: Iterable[Tally]) -> Tally:
    """The answer for the rows of all parts, in any order of the parts.

    Raises:
        ValueError: parts of float32 and of float64 are mixed.
    """
    counts_B = np.zeros(1 << DIGIT_BITS, dtype=np.int64)
    keys, hashes = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.uint64)]
    num_rows, key_bits = 0, 0
    for part in tallies:
        num_rows, key_bits = num_rows + part.num_rows, _one_width(key_bits, part.key_bits)
        counts_B += part.counts_B
        keys.append(part.keys_M)
        hashes.append(part.hashes_M)
    return Tally(
        num_rows=num_rows,
        key_bits=key_bits,
        counts_B=counts_B,
        keys_M=np.concatenate(keys),
        hashes_M=np.concatenate(hashes),
    )


def narrowed(asked: Question, found: Tally) -> Question | Bound:
    """The next question, or the bound, by the answer for all rows.

    Raises:
        BudgetError: fewer rows than n have a score.
    """
    if asked.collects:
        return _of_collected(asked, found)
    if not asked.num_bits:
        check(asked.n, int(found.counts_B.sum()), found.num_rows)
    of_hash = asked.num_bits >= found.key_bits
    ranked_B = found.counts_B if of_hash else found.counts_B[::-1]  # large scores first, small hashes first
    passed_B = np.cumsum(ranked_B)
    place = int(np.searchsorted(passed_B, asked.wanted))
    left = int(ranked_B[place])
    prefix = asked.prefix << DIGIT_BITS | (place if of_hash else len(ranked_B) - 1 - place)
    num_bits = asked.num_bits + DIGIT_BITS
    if num_bits == found.key_bits + HASH_BITS:
        tie, key = prefix & (1 << HASH_BITS) - 1, prefix >> HASH_BITS
        return Bound(score=float(_value(key, found.key_bits)), tie=tie, seed=asked.seed, num_selected=asked.n)
    return Question(
        n=asked.n,
        seed=asked.seed,
        wanted=asked.wanted - (int(passed_B[place]) - left),
        prefix=prefix,
        num_bits=num_bits,
        collects=left <= COLLECTED_ROWS,
    )


def keys(score_N: Floats) -> Unsigned:
    """Unsigned integers of the scores' width that are ordered as the scores are, [N]; -0.0 equals 0.0."""
    unsigned: Any = np.uint32 if score_N.dtype == np.float32 else np.uint64
    bits_N = (score_N + 0.0).view(unsigned)
    sign = unsigned(8 * score_N.dtype.itemsize - 1)
    flip_N = np.negative(bits_N >> sign) | (unsigned(1) << sign)  # all bits of a negative score, else the sign alone
    found: Unsigned = bits_N ^ flip_N
    return found


def _of_collected(asked: Question, found: Tally) -> Bound:
    """The bound among the rows that the digits left, as ``TopN`` finds it."""
    keys_M, hashes_M = found.keys_M, found.hashes_M
    key = np.partition(keys_M, len(keys_M) - asked.wanted)[len(keys_M) - asked.wanted]
    tied_M = np.sort(hashes_M[keys_M == key])
    last = asked.wanted - int(np.count_nonzero(keys_M > key)) - 1
    return Bound(
        score=float(_value(int(key), found.key_bits)), tie=int(tied_M[last]), seed=asked.seed, num_selected=asked.n
    )


def _first_digits(score_S: Floats, floor: int) -> Unsigned:
    """The first digits of the scores that have at least the digit ``floor``."""
    bits = 8 * score_S.dtype.itemsize
    keep_S = score_S >= _value(max(floor << bits - DIGIT_BITS, _lowest(bits)), bits)  # false for NaN
    if not keep_S.all():
        score_S = score_S[keep_S]
    found: Unsigned = keys(score_S) >> (bits - DIGIT_BITS)
    return found


def _in_window(asked: Question, row_ids_S: Int64s, score_S: Floats) -> tuple[Unsigned, Unsigned]:
    """The keys of the rows that the prefix leaves, and their hashes where these are needed."""
    bits = 8 * score_S.dtype.itemsize
    rest = max(0, bits - asked.num_bits)
    of_hash = asked.num_bits - (bits - rest)
    first = asked.prefix >> of_hash << rest
    last = first | (1 << rest) - 1
    low, high = _value(max(first, _lowest(bits)), bits), _value(min(last, _highest(bits)), bits)
    place_M = np.flatnonzero((score_S >= low) & (score_S <= high))
    key_M = keys(score_S[place_M])
    if len(inexact := np.flatnonzero((key_M < first) | (key_M > last))):  # zeros, if the window ends at -0.0
        place_M, key_M = np.delete(place_M, inexact), np.delete(key_M, inexact)
    hash_M: Unsigned = np.zeros(0, dtype=np.uint64)
    if of_hash or asked.num_bits >= bits or asked.collects:
        hash_M = hash64(row_ids_S[place_M], asked.seed)
    if of_hash:
        in_M = hash_M >> np.uint64(HASH_BITS - of_hash) == np.uint64(asked.prefix & (1 << of_hash) - 1)
        key_M, hash_M = key_M[in_M], hash_M[in_M]
    return key_M, hash_M


def _next_digits(asked: Question, key_M: Unsigned, hash_M: Unsigned, key_bits: int) -> Unsigned:
    of_M, num_used = (key_M, asked.num_bits) if asked.num_bits < key_bits else (hash_M, asked.num_bits - key_bits)
    shift = 8 * of_M.dtype.itemsize - num_used - DIGIT_BITS
    found: Unsigned = of_M >> shift & ((1 << DIGIT_BITS) - 1)
    return found


def _floor(counts_B: Int64s, n: int) -> int:
    """The largest digit that at least n of the counted rows reach: rows below it are not among the n."""
    return len(counts_B) - 1 - int(np.searchsorted(np.cumsum(counts_B[::-1]), n))


def _value(key: int, bits: int) -> Any:
    """The score of a key, as a numpy scalar of its width."""
    top = 1 << bits - 1
    pattern = key ^ top if key & top else key ^ (1 << bits) - 1
    return np.uint32(pattern).view(np.float32) if bits == 32 else np.uint64(pattern).view(np.float64)


def _lowest(bits: int) -> int:
    """The key of the lowest finite score."""
    kind: Any = np.float32 if bits == 32 else np.float64
    return int(keys(np.array([np.finfo(kind).min], dtype=kind))[0])


def _highest(bits: int) -> int:
    """The key of +inf."""
    return int(keys(np.array([np.inf], dtype=np.float32 if bits == 32 else np.float64))[0])


def _one_width(bits: int, other: int) -> int:
    if bits and other and bits != other:
        raise ValueError(f"scores of {bits} bits and of {other} bits in one search: convert them to one type")
    return bits or other


def _in_threads(asked: Question, batches: Iterable[Batch], threads: int) -> Tally:
    """One pass; each thread takes the batch that is next."""
    if threads == 1:
        return tally(asked, batches)
    lock, source = Lock(), iter(batches)

    def taken() -> Iterator[Batch]:
        while True:
            with lock:
                batch = next(source, None)
            if batch is None:
                return
            yield batch

    with ThreadPoolExecutor(threads) as pool:
        return merged(pool.map(lambda _: tally(asked, taken()), range(threads)))
