"""The draw of rows that people review, from a selection and from just below it.

The **region** of a review is the selection and, if its arm ranks, as many rows again from below the cut: all rows that
score at least the **floor**. Strata are quantiles of the score, separate for selected rows and for those below. The
draw has two parts, both without replacement:

- the **uniform part**: a simple random sample of the region. Of the rows at or above any score it is a simple random
  sample, too, which is all that a certified cut requires of its calibration rows (:mod:`curation.selection.risk`);
- the **extra part**: a simple random sample of each stratum's other rows, so that each has at least ``FEWEST`` rows
  and the total comes near Neyman's allocation, number of rows times sqrt(p (1 - p)) (Neyman, Journal of the Royal
  Statistical Society 97, 1934). The prior p is the mean trust of the stratum; a wrong prior costs width, not coverage.

Given how many rows of each stratum the two parts hold, the rows drawn are a simple random sample of the stratum. So
inclusion probabilities are (drawn rows) / (rows) of the stratum, and stratified estimates are unbiased. An arm that
draws has no score: its region is the selection, one stratum, and the whole draw is uniform.

Rows are drawn by a seeded hash of their ids, so the draw does not depend on the order of the rows. The salts of
the hashes keep the command's former name, ``audit``, so that a seed always draws the same rows.
"""

from dataclasses import dataclass

import numpy as np

from curation.arrays import Bools, Float64s, Floats, Int64s, Uint64s
from curation.errors import ReviewError
from curation.hashing import derive, hash64
from curation.selection.quotas import allocate

REACH = 2
"""Number of rows of the region, as a multiple of the selection's."""
UNIFORM_SHARE = 0.75
"""The share of the draw that is uniform over the region."""
MOST_STRATA = 4
"""Maximum number of strata among the selected rows, and among those below."""
FEWEST = 2
"""Minimum number of rows drawn from a stratum, if the stratum has as many."""
FEWEST_DRAWN = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRows:
    """The rows that an arm may select, in any order; ``raw_N`` is finite if the arm ranks."""

    row_ids_N: Int64s
    raw_N: Floats
    trust_N: Floats
    selected_N: Bools


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """A group of rows of similar score, either all selected or all not."""

    selected: bool
    num_rows: int
    num_drawn: int
    least: float | None
    """The lowest and the highest raw score; None if the arm does not rank."""
    most: float | None
    prior: float
    """Mean trust, clipped to 0.05 to 0.95; 0.5 if it is unknown."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """The drawn rows [M], in the order in which people judge them, which is random."""

    place_M: Int64s
    """Positions of the drawn rows in the ``ScoredRows``."""
    stratum_M: Int64s
    """Indices of the rows' strata in ``strata``."""
    uniform_M: Bools
    """Whether the row belongs to the uniform part."""
    strata: tuple[Stratum, ...]
    """Strata of the selected rows, then of those below; higher scores first."""
    floor: float | None
    """The lowest raw score of the region; None if the arm does not rank."""


def draw(rows: ScoredRows, *, num: int, seed: int, ranked: bool) -> Drawn:
    """Draw ``num`` rows, at least ``FEWEST_DRAWN``, or the whole region if it is smaller."""
    if num < FEWEST_DRAWN:
        raise ReviewError(f"--num: {num} rows are too few to estimate anything; give at least {FEWEST_DRAWN}")
    region_R, floor = _find_region(rows, ranked)
    if not len(region_R):
        raise ReviewError("review: nothing is selected and no row has a score, so there is nothing to draw from")
    num = min(num, len(region_R))
    stratum_R = _assign_strata(rows, region_R, num, seed) if ranked else np.zeros(len(region_R), dtype=np.int64)
    num_strata = int(stratum_R.max()) + 1
    size_S = np.bincount(stratum_R, minlength=num_strata)
    trust_R = rows.trust_N[region_R]
    known_R = np.isfinite(trust_R)
    count_S = np.bincount(stratum_R[known_R], minlength=num_strata)
    total_S = np.bincount(stratum_R[known_R], weights=trust_R[known_R], minlength=num_strata)
    mean_S = np.where(count_S > 0, total_S / np.maximum(count_S, 1), 0.5)
    prior_S = np.clip(mean_S, 0.05, 0.95)  # for 0 and 1 Neyman's allocation draws no row
    ids_R = rows.row_ids_N[region_R]
    num_extra = max(num - round(UNIFORM_SHARE * num), FEWEST * num_strata) if ranked and num < len(region_R) else 0
    uniform_R = _find_smallest(hash64(ids_R, derive(seed, "audit uniform")), max(num - num_extra, 0))
    extra_S = _allocate_extra(size_S, prior_S, np.bincount(stratum_R[uniform_R], minlength=num_strata), num)
    drawn_R = uniform_R.copy()
    hash_R = hash64(ids_R, derive(seed, "audit extra"))
    for stratum, wanted in enumerate(extra_S):
        left = np.flatnonzero((stratum_R == stratum) & ~uniform_R)
        drawn_R[left[_find_smallest(hash_R[left], int(wanted))]] = True
    drawn_S = np.bincount(stratum_R[drawn_R], minlength=num_strata)
    drawn = np.flatnonzero(drawn_R)
    drawn = drawn[np.argsort(hash64(ids_R[drawn], derive(seed, "audit order")))]
    strata = []
    for index in range(num_strata):
        place_R = region_R[stratum_R == index]
        raw_R = rows.raw_N[place_R]
        least, most = (float(raw_R.min()), float(raw_R.max())) if np.isfinite(raw_R).all() else (None, None)
        made = Stratum(
            selected=bool(rows.selected_N[place_R[0]]),
            num_rows=len(place_R),
            num_drawn=int(drawn_S[index]),
            least=least,
            most=most,
            prior=float(prior_S[index]),
        )
        strata.append(made)
    return Drawn(
        place_M=region_R[drawn],
        stratum_M=stratum_R[drawn],
        uniform_M=uniform_R[drawn],
        strata=tuple(strata),
        floor=floor,
    )


def _find_region(rows: ScoredRows, ranked: bool) -> tuple[Int64s, float | None]:
    if not ranked:
        return np.flatnonzero(rows.selected_N), None
    num_rows, num_selected = len(rows.raw_N), int(rows.selected_N.sum())
    if not num_rows:
        return np.zeros(0, dtype=np.int64), None
    rank = min(REACH * num_selected, num_rows) or num_rows  # nothing selected: anything may be certified
    floor = np.partition(rows.raw_N, num_rows - rank)[num_rows - rank]
    return np.flatnonzero(rows.raw_N >= floor), float(floor)


def _assign_strata(rows: ScoredRows, region_R: Int64s, num: int, seed: int) -> Int64s:
    """Return each row's stratum in the region: quantiles of the selected rows' score, then of those below."""
    bins = int(np.clip((num - round(UNIFORM_SHARE * num)) // (2 * FEWEST), 1, MOST_STRATA))
    raw_R, selected_R = rows.raw_N[region_R], rows.selected_N[region_R]
    order = np.lexsort((hash64(rows.row_ids_N[region_R], derive(seed, "audit ties")), -raw_R))
    stratum_R = np.zeros(len(region_R), dtype=np.int64)
    first = 0
    for side in (order[selected_R[order]], order[~selected_R[order]]):
        parts = [part for part in np.array_split(side, bins) if len(part)]
        for index, part in enumerate(parts):
            stratum_R[part] = first + index
        first += len(parts)
    return stratum_R


def _allocate_extra(size_S: Int64s, prior_S: Float64s, uniform_S: Int64s, num: int) -> Int64s:
    num_extra = num - int(uniform_S.sum())
    least_S = np.minimum(np.clip(FEWEST - uniform_S, 0, None), size_S - uniform_S)
    weight_S = size_S * np.sqrt(prior_S * (1 - prior_S))
    missing_S = np.clip(num * weight_S / weight_S.sum() - uniform_S - least_S, 0, None)
    extra_S: Int64s = least_S + allocate(missing_S, size_S - uniform_S - least_S, num_extra - int(least_S.sum()))
    return extra_S


def _find_smallest(hash_N: Uint64s, count: int) -> Bools:
    """Return which rows have the ``count`` smallest hashes, bool [N]."""
    found_N = np.zeros(len(hash_N), dtype=np.bool_)
    found_N[np.argsort(hash_N)[:count]] = True
    return found_N
