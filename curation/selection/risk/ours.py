"""Our rule, the default, which tests cuts in a fixed sequence, each by an exact binomial test."""

import bisect

import numpy as np
import scipy

from curation.arrays import Floats, Int64s
from curation.selection.risk.problem import CandidateCuts, Problem, RuleResult, compute_ranks

FIRST_SHARE = 0.05
"""Size of the strictest cut that the fixed sequence tests, as a share of the pool (``top_k``: of calibration rows)."""
STEP = 0.01
MOST_TIMES = 1000
"""Largest multiple of the given calibration rows that is tried when the sufficient number is estimated."""


def apply_fixed_sequence(problem: Problem) -> RuleResult:
    """Test the candidates from the strictest on, each at the full delta; take the last one before the first failure."""
    rows, num_rows = problem.rows, problem.rows.num_rows
    share_G = _make_shares()
    if problem.kind == "threshold":
        candidates = rows.at(problem.quantiles(share_G))
    else:
        padded_M = np.append(rows.score_M, np.full(num_rows + 1 - len(rows.score_M), -np.inf))
        boundary_G = padded_M[compute_ranks(share_G, num_rows)]
        kept_G = np.searchsorted(-rows.score_M, -boundary_G, side="left")
        # the smallest pool score above the boundary, not the next float: that one would not survive a cast to float32
        above_G = problem.pool.num_above(boundary_G, inclusive=False)
        threshold_G = np.where(above_G > 0, problem.pool.at_ranks(np.maximum(above_G, 1)), np.inf)
        candidates = CandidateCuts(threshold_G, kept_G, rows.wrong_M[kept_G])
    bound_G = compute_exact_upper(candidates.kept_G, candidates.wrong_G, problem.delta)
    start = int(_find_starts(problem, share_G, np.array([num_rows]))[0])
    if problem.kind == "top_k":
        start = max(start, int(np.argmax(candidates.kept_G > 0)))
    failed = start + np.flatnonzero(bound_G[start:] > problem.alpha)
    end = int(failed[0]) if len(failed) else len(bound_G)
    if end > start:
        return RuleResult(candidates, bound_G, end - 1, certified=True)
    return RuleResult(candidates, bound_G, start, False, *_estimate_needed(problem, candidates, share_G))


def _make_shares() -> Floats:
    return np.append(np.arange(FIRST_SHARE, 1 - STEP / 2, STEP), 1.0)


def start_share(problem: Problem) -> float:
    """Return the share of the pool (``top_k``: of the calibration rows) at which the sequence starts."""
    share_G = _make_shares()
    return float(share_G[_find_starts(problem, share_G, np.array([problem.rows.num_rows]))[0]])


def _find_starts(problem: Problem, share_G: Floats, num_rows_S: Int64s) -> Int64s:
    """Return the index of the share at which the sequence starts for each number of calibration rows, int64 [S].

    The start is at ``FIRST_SHARE``, or at the cut that is expected to hold enough rows to certify it in spite of one
    error, by their number, alpha and delta alone. A stricter cut would often be too small even without an error.
    """
    share_S = np.maximum(FIRST_SHARE, compute_one_error_rows(problem.alpha, problem.delta) / num_rows_S)
    return np.searchsorted(share_G[:-1], share_S)


def compute_one_error_rows(alpha: float, delta: float) -> int:
    """Return the smallest number of rows that certifies a noise of at most alpha in spite of one error among them.

    That is: P(Bin(rows, alpha) <= 1) <= delta.
    """

    def chance(num_rows: int) -> float:
        return float((1 - alpha) ** (num_rows - 1) * (1 + (num_rows - 1) * alpha))

    return bisect.bisect_left(range(2**62), True, lo=2, key=lambda num_rows: chance(num_rows) <= delta)


def _estimate_needed(problem: Problem, candidates: CandidateCuts, share_G: Floats) -> tuple[int | None, str]:
    """Return how many calibration rows of this noise would pass the sequence's first test, or None; and the basis."""
    num_rows = problem.rows.num_rows
    rows_S = np.unique(np.geomspace(num_rows + 1, MOST_TIMES * num_rows, 200).astype(np.int64))
    start_S = _find_starts(problem, share_G, rows_S)
    kept_S, wrong_S = (counts_G[start_S] * rows_S / num_rows for counts_G in candidates[1:])
    bound_S = compute_exact_upper(np.floor(kept_S + 1e-9), np.ceil(wrong_S - 1e-9), problem.delta)
    enough = np.flatnonzero(bound_S <= problem.alpha)
    if len(enough) == 0:
        return None, f"too noisy where the sequence starts, even with {MOST_TIMES:,} times as many rows"
    first = enough[0]
    noise = wrong_S[first] / kept_S[first]
    basis = f"observed noise {noise:.3f}" if noise else "zero-error minimum"
    return int(rows_S[first]), f"{basis} of the best {share_G[start_S[first]]:.0%}, where the sequence would start"


def compute_exact_upper(kept_G: Int64s, wrong_G: Int64s, delta: float) -> Floats:
    """Return the exact upper bound on each cut's noise at confidence 1 - delta (Clopper, Pearson 1934); 1 without rows.

    It is at most alpha exactly where the one-sided binomial test rejects a noise above alpha:
    P(Bin(kept, alpha) <= wrong) <= delta.
    """
    right_G = kept_G - wrong_G
    bound_G: Floats = np.where(
        right_G > 0, scipy.special.betaincinv(wrong_G + 1, np.maximum(right_G, 1), 1 - delta), 1.0
    )
    return bound_G
