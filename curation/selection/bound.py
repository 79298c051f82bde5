"""The exact bound of a top-n, found in passes over scores that are never held: the last row's score and tie hash.

Rows are ordered by score, larger first, and equal scores by a seeded hash of the row id, smaller first. The first pass
samples every ``STRIDE``-th score and derives a window of scores that holds the n-th one almost surely. The second pass
counts the rows ahead of the window and the rows in each bin of it, and collects the window's rows if they are few. If
the counts prove that the n-th row is in the window, the collected rows give it at once, or its bin becomes the next
window (radix selection). Otherwise, the window is widened to all scores. Distinct scores take two or three passes,
scores that all tie take four. Whatever the number of rows, a pass holds 2 MB of counts and, if it collects rows, 16
bytes for each of at most 4,194,304 rows (twice that while they are joined).

Passes over parts of the rows (fragments, files) can run anywhere and in any order: :func:`tally` is the work of one
part, :func:`merge_counts` adds the results, :func:`find_exact_bound` goes on from them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from curation.arrays import Bools, Floats, Int64s, Uint64s
from curation.hashing import hash64
from curation.selection.order import (
    Unsigned,
    get_highest_key,
    get_lowest_key,
    score_of,
    to_score_keys,
    without_minus_zero,
)
from curation.selection.top_n import check_budget

Batch = tuple[Int64s, Floats]
"""Row ids and raw scores of some rows, both [N]."""

STRIDE = 256
SAMPLE_BITS = 18
"""Number of leading bits of their keys by which the sampled scores are counted."""
MARGIN = 6.0
"""Reach of the window to either side, in standard deviations of the n-th row's rank in the sample."""
BIN_BITS = 16
LAST_HASH = (1 << 64) - 1
COLLECTED_ROWS = 1 << 22
"""Maximum number of rows that are collected from a window."""
SLICE_ROWS = 1 << 17
"""Number of rows processed at a time, so that their scores stay in a core's cache."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The last selected row: rows with a larger score pass, and rows of equal score whose hash is at most ``tie``."""

    score: float
    tie: int
    """The largest ``hash64(row_id, seed)``, unsigned, that passes at the score."""
    seed: int
    num_selected: int

    def passes(self, row_ids_N: Int64s, raw_score_N: Floats) -> Bools:
        """Return which rows are selected, bool [N]; NaN and -inf never are."""
        passes_N: Bools = raw_score_N > self.score
        tied = np.flatnonzero(raw_score_N == self.score)
        if len(tied):
            passes_N[tied] = hash64(row_ids_N[tied], self.seed) <= np.uint64(self.tie)
        return passes_N


@dataclass(frozen=True, kw_only=True)
class CountingPass:
    """A request to count a sample of all scores, or the rows in a window and ahead of it."""

    n: int
    seed: int
    first: int = 0
    """Last value in the window, as ``first`` is its first: keys of scores or, if ``tied_at`` is set, hashes."""
    last: int = 0
    key_bits: int = 0
    """Width of the scores in bits, 32 or 64; 0 requests the sample."""
    tied_at: int | None = None
    """Key of the score whose tied rows are ordered by their hashes; None if the window is one of scores."""

    @property
    def shift(self) -> int:
        """Number of low bits that may differ between the values of one bin of the window."""
        return max(0, (self.last - self.first).bit_length() - BIN_BITS)


@dataclass(frozen=True, kw_only=True, eq=False)
class PassCounts:
    """Counts of a pass over some rows."""

    num_rows: int
    """Number of all rows that were read."""
    key_bits: int
    """Width of the scores in bits; 0 without rows."""
    num_ahead: int
    """Number of rows ahead of the window."""
    counts_B: Int64s
    """Number of rows in each bin of the window, or of sampled rows by the first bits of their keys; ascending."""
    keys_M: Uint64s | None
    """Keys (or hashes) of all rows in the window, with their row ids; None if the window has too many rows."""
    row_ids_M: Int64s


def find_exact_bound(counted: Callable[[CountingPass], PassCounts], n: int, seed: int) -> Bound:
    """Return the bound that selects the same n rows as :class:`curation.selection.top_n.TopN`.

    The result does not depend on the order of the rows, or on how they are divided into batches. All scores have one
    type: float64 takes up to three more passes, and float16 is compared as float32.

    Args:
        counted: function that makes a pass over all rows: :func:`tally`, or :func:`merge_counts` of tallies of parts.
        n: number of rows to select.
        seed: seed of the hash that orders rows of equal score.

    Raises:
        BudgetError: n is not positive, or larger than the number of rows with a score.
        ValueError: batches of float32 and of float64 are mixed.
    """
    check_budget(n, num_eligible=n, num_rows=n)
    step: CountingPass | Bound = CountingPass(n=n, seed=seed)
    while isinstance(step, CountingPass):
        step = _narrow(step, counted(step))
    return step


def tally(asked: CountingPass, batches: Iterable[Batch]) -> PassCounts:
    """Make a counting pass over some of the rows."""
    counts_B = np.zeros(1 << (BIN_BITS if asked.key_bits else SAMPLE_BITS), dtype=np.int64)
    collected: list[tuple[Unsigned, Int64s]] | None = []
    num_rows = num_ahead = key_bits = num_collected = 0
    sampled: list[Floats] = []
    for row_ids_N, given_N in batches:
        score_N = given_N.astype(np.float32) if given_N.dtype == np.float16 else given_N
        key_bits = _require_one_width(key_bits, 8 * score_N.dtype.itemsize if len(score_N) else 0)
        if not asked.key_bits:
            sampled.append(score_N[-num_rows % STRIDE :: STRIDE].copy())
            if len(sampled) == 1 << 10:
                counts_B += _count_sampled(sampled)
                sampled = []
        num_rows += len(score_N)
        for start in range(0, len(score_N) if asked.key_bits else 0, SLICE_ROWS):
            row_ids_S, score_S = row_ids_N[start : start + SLICE_ROWS], score_N[start : start + SLICE_ROWS]
            ahead, key_M, place_M = _find_in_window(asked, row_ids_S, score_S)
            num_ahead += ahead
            if not len(key_M):
                continue
            bin_M = ((key_M - key_M.dtype.type(asked.first)) >> key_M.dtype.type(asked.shift)).astype(np.int64)
            counts_B += np.bincount(bin_M, minlength=len(counts_B))
            num_collected += len(key_M)
            if collected is not None:
                collected.append((key_M, row_ids_S[place_M]))
                if num_collected > COLLECTED_ROWS:
                    collected = None
    if sampled:
        counts_B += _count_sampled(sampled)
    return _make_counts(num_rows, key_bits, num_ahead, counts_B, collected)


def merge_counts(tallies: Iterable[PassCounts]) -> PassCounts:
    """Return the counts of all parts together, whatever the order of the parts.

    Raises:
        ValueError: parts of float32 and of float64 are mixed.
    """
    counts_B = np.zeros(0, dtype=np.int64)
    collected: list[tuple[Unsigned, Int64s]] | None = []
    num_rows = num_ahead = key_bits = num_collected = 0
    for part in tallies:
        key_bits = _require_one_width(key_bits, part.key_bits)
        num_rows, num_ahead = num_rows + part.num_rows, num_ahead + part.num_ahead
        counts_B = counts_B + part.counts_B if len(counts_B) else part.counts_B
        num_collected += len(part.row_ids_M)
        if part.keys_M is None or num_collected > COLLECTED_ROWS:
            collected = None
        elif collected is not None:
            collected.append((part.keys_M, part.row_ids_M))
    return _make_counts(num_rows, key_bits, num_ahead, counts_B, collected)


def _narrow(asked: CountingPass, found: PassCounts) -> CountingPass | Bound:
    """Return the next pass to make, or the bound if the counts of all rows determine it.

    Raises:
        BudgetError: fewer rows than n have a score.
    """
    if not asked.key_bits:
        if not found.key_bits:
            check_budget(asked.n, 0, found.num_rows)
        return _find_window(asked, found)
    num_reached = found.num_ahead + int(found.counts_B.sum())
    if not found.num_ahead < asked.n <= num_reached:
        all_scores = replace(
            asked, first=get_lowest_key(asked.key_bits), last=get_highest_key(asked.key_bits), tied_at=None
        )
        if asked == all_scores:
            check_budget(asked.n, num_reached, found.num_rows)
        return all_scores
    wanted = asked.n - found.num_ahead
    if found.keys_M is not None:
        return _find_bound(asked, found.keys_M, found.row_ids_M, wanted)
    ranked_B = found.counts_B if asked.tied_at is not None else found.counts_B[::-1]  # small hashes, large scores first
    place = int(np.searchsorted(np.cumsum(ranked_B), wanted))
    number = place if asked.tied_at is not None else len(ranked_B) - 1 - place
    first = asked.first + (number << asked.shift)
    last = min(asked.last, first + (1 << asked.shift) - 1)
    if asked.tied_at is None:
        first, last = without_minus_zero(first, last, asked.key_bits)
    if first < last:
        return replace(asked, first=first, last=last)
    if asked.tied_at is None:
        return replace(asked, first=0, last=LAST_HASH, tied_at=first)
    return _make_bound(asked, asked.tied_at, first)


def _make_counts(
    num_rows: int, key_bits: int, num_ahead: int, counts_B: Int64s, collected: list[tuple[Unsigned, Int64s]] | None
) -> PassCounts:
    parts = collected or []
    return PassCounts(
        num_rows=num_rows,
        key_bits=key_bits,
        num_ahead=num_ahead,
        counts_B=counts_B,
        keys_M=None
        if collected is None
        else np.concatenate([np.zeros(0, dtype=np.uint64), *(key_M.astype(np.uint64) for key_M, _ in parts)]),
        row_ids_M=np.concatenate([np.zeros(0, dtype=np.int64), *(row_ids_M for _, row_ids_M in parts)]),
    )


def _count_sampled(parts: list[Floats]) -> Int64s:
    """Return the number of sampled scores above -inf by the first bits of their keys, int64 [2 ** SAMPLE_BITS]."""
    score_M = np.concatenate(parts)
    key_M = to_score_keys(score_M[score_M > -np.inf])
    bin_M = (key_M >> key_M.dtype.type(8 * key_M.dtype.itemsize - SAMPLE_BITS)).astype(np.int64)
    return np.bincount(bin_M, minlength=1 << SAMPLE_BITS)


def _find_window(asked: CountingPass, found: PassCounts) -> CountingPass:
    """Return a pass over the window of scores that holds the n-th one almost surely."""
    bits, rank = found.key_bits, asked.n / STRIDE
    margin = MARGIN * (math.sqrt(rank) + 1)
    reached_B = np.cumsum(found.counts_B[::-1])
    upper, lower = len(reached_B) - 1 - np.searchsorted(reached_B, [rank - margin, rank + margin])
    size = 1 << bits - SAMPLE_BITS
    first = max(int(lower) * size, get_lowest_key(bits)) if lower >= 0 else get_lowest_key(bits)
    last = min((int(upper) + 1) * size - 1, get_highest_key(bits)) if rank > margin else get_highest_key(bits)
    first, last = without_minus_zero(first, max(first, last), bits)
    return replace(asked, first=first, last=last, key_bits=bits)


def _find_in_window(asked: CountingPass, row_ids_S: Int64s, score_S: Floats) -> tuple[int, Unsigned, Int64s]:
    """Return the number of rows ahead of the window, and the keys (or hashes) and positions of the rows in it."""
    if asked.tied_at is not None:
        score = score_of(asked.tied_at, asked.key_bits)
        tied_M = np.flatnonzero(score_S == score)
        hash_M = hash64(row_ids_S[tied_M], asked.seed)
        in_M = (hash_M >= np.uint64(asked.first)) & (hash_M <= np.uint64(asked.last))
        ahead = np.count_nonzero(score_S > score) + np.count_nonzero(hash_M < np.uint64(asked.first))
        return int(ahead), hash_M[in_M], tied_M[in_M]
    low, high = score_of(asked.first, asked.key_bits), score_of(asked.last, asked.key_bits)
    place_M = np.flatnonzero((score_S >= low) & (score_S <= high))  # false for NaN
    return int(np.count_nonzero(score_S > high)), to_score_keys(score_S[place_M]), place_M


def _find_bound(asked: CountingPass, keys_M: Uint64s, row_ids_M: Int64s, wanted: int) -> Bound:
    """Return the bound at the ``wanted``-th row of a window, given all rows of the window."""
    if asked.tied_at is not None:
        return _make_bound(asked, asked.tied_at, int(np.partition(keys_M, wanted - 1)[wanted - 1]))
    key = np.partition(keys_M, len(keys_M) - wanted)[len(keys_M) - wanted]
    last = wanted - int(np.count_nonzero(keys_M > key)) - 1
    hashes_M = hash64(row_ids_M[keys_M == key], asked.seed)
    return _make_bound(asked, int(key), int(np.partition(hashes_M, last)[last]))


def _make_bound(asked: CountingPass, key: int, tie: int) -> Bound:
    return Bound(score=float(score_of(key, asked.key_bits)), tie=tie, seed=asked.seed, num_selected=asked.n)


def _require_one_width(bits: int, other: int) -> int:
    if bits and other and bits != other:
        raise ValueError(f"scores of {bits} bits and of {other} bits in one search: convert them to one type")
    return bits or other
