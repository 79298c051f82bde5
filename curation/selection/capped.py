"""Exact selection of the n best rows with a cap on the rows of each label, in one pass and in memory for 2n rows.

The rule walks the ranking from the top (larger scores first, equal ones by a seeded hash of the row id). It takes a row
unless ``cap`` rows of its label are taken already, until n rows are taken. Where each label has a cap of its own and
these add up to n, they are quotas: each label's best rows are taken. So a row is taken if fewer than ``cap`` rows
of its label are ahead of it, and fewer than n rows that meet this condition.

Rows may be read in any order and partition, and each part is reduced on its own. That is exact: a row that the walk
over its part does not take is not taken from all rows either, because further rows only add to those ahead of it. So
the walk over the kept rows takes the same rows as the walk over all. A part holds at most ``max(2n, n + HELD_ROWS)``
rows of 32 bytes and one batch, however many rows and labels there are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Floats, Int64s, Uint64s
from curation.hashing import hash64
from curation.selection.order import from_score_keys, to_score_keys

Labels = npt.NDArray[np.uint64]
"""Integers that stand for the rows' labels, [N]: equal for rows that count together, and below 2^63 unless made by
:func:`make_own_labels`."""
Labelled = tuple[Int64s, Floats, Callable[[Int64s], Labels]]
"""Row ids and scores [B] (NaN or -inf: never taken), and a function that returns the labels at positions in them."""

Cap = int | Int64s
"""Maximum number of rows of a label: one number for all or, if labels are numbers from 0 on, one for each label."""

HELD_ROWS = 1 << 18
_OWN = np.uint64(1 << 63)
_ROW = np.dtype([("key", np.uint64), ("tie", np.uint64), ("label", np.uint64), ("row_id", np.int64)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Capped:
    """The rows selected from a set of rows under a cap, best first."""

    rows_n: npt.NDArray[np.void]
    num_scored: int
    """Number of rows that could be taken without a cap."""
    num_rows: int
    """Number of all rows that were read."""

    def __len__(self) -> int:
        return len(self.rows_n)

    @property
    def row_ids_n(self) -> Int64s:
        """Ids of the selected rows, int64 [n]."""
        return self.rows_n["row_id"].copy()

    @property
    def score_n(self) -> Floats:
        """Scores of the selected rows, float64 [n]."""
        return from_score_keys(~self.rows_n["key"])


def make_own_labels(row_ids_N: Int64s) -> Labels:
    """Return a label of its own for each unlabelled row, larger than any other label, so that no cap applies to it."""
    return row_ids_N.astype(np.uint64) | _OWN


def walk_batches(batches: Iterable[Labelled], n: int, cap: Cap, seed: int) -> Capped:
    """Return the rows that the walk takes; ``seed`` seeds the hash that orders ties."""
    best, held = np.empty(0, dtype=_ROW), [np.empty(0, dtype=_ROW)]
    if not n:
        return Capped(rows_n=best, num_scored=0, num_rows=0)
    num_rows = num_scored = num_held = 0
    last_S: Uint64s | None = None
    for row_ids_B, score_B, label_of in batches:
        place_M = np.flatnonzero(score_B > -np.inf)  # false for NaN, too
        num_rows, num_scored = num_rows + len(row_ids_B), num_scored + len(place_M)
        key_M = ~to_score_keys(score_B[place_M].astype(np.float64))
        if len(best) == n:
            near_M = key_M <= best["key"][-1]
            place_M, key_M = place_M[near_M], key_M[near_M]
        if not len(place_M):
            continue
        label_M = label_of(place_M)
        if last_S is not None:
            near_M = key_M <= last_S[label_M.astype(np.int64)]
            place_M, key_M, label_M = place_M[near_M], key_M[near_M], label_M[near_M]
        rows_M: Any = np.empty(len(place_M), dtype=_ROW)
        rows_M["key"], rows_M["row_id"], rows_M["label"] = key_M, row_ids_B[place_M], label_M
        rows_M["tie"] = hash64(rows_M["row_id"], seed)
        held.append(rows_M)
        num_held += len(rows_M)
        if num_held >= max(n, HELD_ROWS):
            best, held, num_held = _walk([best, *held], n, cap), [], 0
            last_S = None if isinstance(cap, int) else _find_last_keys(best, cap)
    return Capped(rows_n=_walk([best, *held], n, cap), num_scored=num_scored, num_rows=num_rows)


def walk_parts(parts: Iterable[Capped], n: int, cap: Cap) -> Capped:
    """Return the rows that the walk takes from all parts, whatever the order of the parts."""
    rows_n, num_scored, num_rows = np.empty(0, dtype=_ROW), 0, 0
    for part in parts:
        rows_n = _walk([rows_n, part.rows_n], n, cap)
        num_scored, num_rows = num_scored + part.num_scored, num_rows + part.num_rows
    return Capped(rows_n=rows_n, num_scored=num_scored, num_rows=num_rows)


def count_before(label_N: npt.NDArray[Any]) -> Int64s:
    """Return how many rows with the same label come before each row, int64 [N]."""
    order_N = np.argsort(label_N, kind="stable")
    sorted_N = label_N[order_N]
    first_N = np.flatnonzero(np.concatenate([np.ones(min(1, len(sorted_N)), np.bool_), sorted_N[1:] != sorted_N[:-1]]))
    before_N = np.empty(len(label_N), dtype=np.int64)
    before_N[order_N] = np.arange(len(label_N)) - np.repeat(first_N, np.diff(first_N, append=len(label_N)))
    return before_N


def _find_last_keys(best: npt.NDArray[np.void], cap: Int64s) -> Uint64s:
    """Return the largest key with which a row of each label may still be taken, uint64 [S]; no bound below its cap."""
    label_M = best["label"].astype(np.int64)
    last_S = np.full(len(cap), np.iinfo(np.uint64).max)
    np.maximum.at(taken_S := np.zeros(len(cap), dtype=np.uint64), label_M, best["key"])
    is_full_S = np.bincount(label_M, minlength=len(cap)) >= cap
    last_S[is_full_S] = taken_S[is_full_S]
    return last_S


def _walk(parts: list[npt.NDArray[np.void]], n: int, cap: Cap) -> npt.NDArray[np.void]:
    rows_M = np.concatenate(parts)
    rows_M = rows_M[np.lexsort((rows_M["tie"], rows_M["key"]))]
    most: Any = cap if isinstance(cap, int) else cap[rows_M["label"].astype(np.int64)]
    taken: npt.NDArray[np.void] = rows_M[count_before(rows_M["label"]) < most][:n]
    return taken
