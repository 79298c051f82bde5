"""The rules: ours, the default, which tests cuts in a fixed sequence by exact binomial tests, and the paper's.

The paper's rules take the most inclusive cut whose Hoeffding bound is at most alpha.

A rule's curves are noise of the calibration rows and its upper bound against the share of the pool that a cut keeps.
The paper draws both against the threshold (figure "Risk-controlled threshold calibration"). Raw scores have no fixed
range, so the cuts here are quantiles of the pool. For ``fixed_sequence`` and ``hoeffding_grid`` of the kind
``threshold`` these are the rule's own candidates; for the other rules they show the same bound at the same level in
coarser steps.
"""

import bisect
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy

from curation.arrays import Bools, Floats, Int64s
from curation.selection.order import Ordered

Rule = Literal["fixed_sequence", "hoeffding", "hoeffding_bonferroni", "hoeffding_grid", "hoeffding_split"]
Kind = Literal["threshold", "top_k"]
FIRST_SHARE = 0.05
"""Size of the strictest cut that the fixed sequence tests, as a share of the pool (``top_k``: of calibration rows)."""
STEP = 0.01
MOST_TIMES = 1000
"""Largest multiple of the given calibration rows that is tried when the sufficient number is estimated."""
NUM_COARSE = 100
"""Number of candidates of the paper's coarse grid."""
NUM_POINTS = 100
"""Number of cuts of a curve."""


class CandidateCuts(NamedTuple):
    """Cuts from the strictest on, with the numbers of calibration rows that pass each and of wrong ones among them."""

    threshold_G: Floats
    kept_G: Int64s
    wrong_G: Int64s


class RankedRows(NamedTuple):
    """The calibration rows that may be selected, best first; ``num_rows`` counts all calibration rows."""

    score_M: Floats
    wrong_M: Int64s
    """The number of wrong labels among the first 0, 1, 2 ... rows."""
    num_rows: int

    @staticmethod
    def sort(scores_M: Floats, correct_M: Bools) -> "RankedRows":
        """Sort calibration rows given in any order; rows with a score of -inf only count in ``num_rows``."""
        order = np.argsort(-scores_M)[: np.count_nonzero(scores_M > -np.inf)]
        wrong_M = np.concatenate([[0], np.cumsum(~correct_M[order])])
        return RankedRows(score_M=scores_M[order], wrong_M=wrong_M, num_rows=len(scores_M))

    def at(self, threshold_G: Floats) -> CandidateCuts:
        """Return the cuts that keep the rows with at least the given scores."""
        kept_G = np.searchsorted(-self.score_M, -threshold_G, side="right")
        return CandidateCuts(threshold_G, kept_G, self.wrong_M[kept_G])


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """The input of a rule (see :func:`curation.selection.risk.calibrate`)."""

    rows: RankedRows
    scores_M: Floats
    correct_M: Bools
    pool: Ordered
    """Scores of the pool rows or, with a floor, of the pool rows at or above it."""
    alpha: float
    delta: float
    kind: Kind
    seed: int
    floor: float | None = None
    """Lowest score of ``pool``, and of the rows from which calibration rows were drawn; None if there is no floor."""

    def quantiles(self, share_G: Floats) -> Floats:
        """Return the scores at or above which these shares of the pool lie, at most all rows that may be selected."""
        return self.pool.at_ranks(np.minimum(compute_ranks(share_G, self.pool.num_rows), self.pool.num_scored))


class RuleResult(NamedTuple):
    """The result of a rule."""

    candidates: CandidateCuts
    bound_G: Floats
    place: int | None
    """Index of the chosen candidate or, if none is certified, of the one to show; None without candidates."""
    certified: bool
    needed: int | None = None
    needed_basis: str | None = None


def compute_ranks(share_G: Floats, num_rows: int) -> Int64s:
    """Return the number of rows in each given share, rounded up, at least 1."""
    rank_G: Int64s = np.maximum(np.ceil(share_G * num_rows - 1e-9), 1).astype(np.int64)
    return rank_G


def sort_distinct(scores_M: Floats) -> Floats:
    """Return each score once, descending."""
    return np.unique(scores_M)[::-1]


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

    # How many calibration rows of this noise would pass the sequence's first test?
    rows_S = np.unique(np.geomspace(num_rows + 1, MOST_TIMES * num_rows, 200).astype(np.int64))
    start_S = _find_starts(problem, share_G, rows_S)
    kept_S, wrong_S = (counts_G[start_S] * rows_S / num_rows for counts_G in candidates[1:])
    bound_S = compute_exact_upper(np.floor(kept_S + 1e-9), np.ceil(wrong_S - 1e-9), problem.delta)
    enough = np.flatnonzero(bound_S <= problem.alpha)
    if len(enough) == 0:
        why = f"too noisy where the sequence starts, even with {MOST_TIMES:,} times as many rows"
        return RuleResult(candidates, bound_G, start, False, None, why)
    first = enough[0]
    noise = wrong_S[first] / kept_S[first]
    basis = f"observed noise {noise:.3f}" if noise else "zero-error minimum"
    basis += f" of the best {share_G[start_S[first]]:.0%}, where the sequence would start"
    return RuleResult(candidates, bound_G, start, False, int(rows_S[first]), basis)


def _make_shares() -> Floats:
    return np.append(np.arange(FIRST_SHARE, 1 - STEP / 2, STEP), 1.0)


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

    def suffices(num_rows: int) -> bool:
        return float((1 - alpha) ** (num_rows - 1) * (1 + (num_rows - 1) * alpha)) <= delta

    return bisect.bisect_left(range(2**62), True, lo=2, key=suffices)


def compute_exact_upper(kept_G: Int64s, wrong_G: Int64s, delta: float) -> Floats:
    """Return the exact upper bound on each cut's noise at confidence 1 - delta (Clopper, Pearson 1934); 1 without rows.

    It is at most alpha exactly where the one-sided binomial test rejects a noise above alpha:
    P(Bin(kept, alpha) <= wrong) <= delta.
    """
    right_G = kept_G - wrong_G
    exact_G = scipy.special.betaincinv(wrong_G + 1, np.maximum(right_G, 1), 1 - delta)
    bound_G: Floats = np.where(right_G > 0, exact_G, 1.0)
    return bound_G


def apply_rule(problem: Problem, rule: Rule) -> RuleResult:
    """Return the result of a rule."""
    if rule == "fixed_sequence":
        return apply_fixed_sequence(problem)
    if rule == "hoeffding_split":
        return apply_hoeffding_split(problem)
    thresholds_G, level = list_candidates(problem, rule)
    return _find_most_inclusive(problem, problem.rows.at(thresholds_G), level)


def list_candidates(problem: Problem, rule: Rule) -> tuple[Floats, float]:
    """Return the cuts that a rule of the paper tests on all calibration rows, and each one's part of delta.

    ``hoeffding`` tests each observed score at the full delta. ``hoeffding_bonferroni`` splits delta over these or, for
    ``top_k``, over the calibration rows; ``hoeffding_grid`` over the candidates of a coarse grid.
    """
    rows = problem.rows
    if rule == "hoeffding_grid":
        share_G = np.arange(1, NUM_COARSE + 1) / NUM_COARSE
        if problem.kind == "threshold":
            ends_G = problem.quantiles(share_G)
        else:  # the last rows of prefixes, except of those that end at an unscored row
            last_G = compute_ranks(share_G, rows.num_rows) - 1
            ends_G = rows.score_M[last_G[last_G < len(rows.score_M)]]
        thresholds_G = sort_distinct(ends_G)
        num_tests = len(thresholds_G)
    else:
        thresholds_G = sort_distinct(rows.score_M)
        num_tests = len(thresholds_G) if problem.kind == "threshold" else rows.num_rows
    return thresholds_G, problem.delta if rule == "hoeffding" else problem.delta / max(num_tests, 1)


def apply_hoeffding_split(problem: Problem) -> RuleResult:
    """Choose a cut on one half of the calibration rows, and test this cut alone on the other half."""
    choose, check = split_halves(problem)
    proposed = _propose_cut(problem, choose)
    if proposed.place is None or not proposed.certified:
        return proposed
    threshold_G = proposed.candidates.threshold_G[[proposed.place]]
    if problem.kind == "top_k":
        num_kept = int(proposed.candidates.kept_G[proposed.place])
        threshold_G = check.score_M[min(num_kept, len(check.score_M)) - 1 :][:1]
    return _find_most_inclusive(problem, check.at(threshold_G), problem.delta)


def _propose_cut(problem: Problem, choose: RankedRows) -> RuleResult:
    return _find_most_inclusive(problem, choose.at(sort_distinct(choose.score_M)), problem.delta)


def split_halves(problem: Problem) -> tuple[RankedRows, RankedRows]:
    """Return the calibration rows that choose a cut, and those that test it."""
    order_M = np.random.default_rng(problem.seed).permutation(problem.rows.num_rows)
    parts = np.array_split(order_M, [len(order_M) // 2])
    choose, check = (RankedRows.sort(problem.scores_M[part], problem.correct_M[part]) for part in parts)
    return choose, check


def _find_most_inclusive(problem: Problem, candidates: CandidateCuts, level: float) -> RuleResult:
    """Return the last candidate whose Hoeffding bound at delta = ``level`` is at most alpha."""
    bound_G = compute_hoeffding_upper(candidates.kept_G, candidates.wrong_G, level)
    passed = np.flatnonzero(bound_G <= problem.alpha)
    if len(passed):
        return RuleResult(candidates, bound_G, int(passed[-1]), certified=True)
    nearest = int(np.argmin(bound_G)) if len(bound_G) else None

    # How many rows of the same noise would have let the best candidate pass, at the same level?
    noise_G = np.where(candidates.kept_G > 0, candidates.wrong_G / np.maximum(candidates.kept_G, 1), np.nan)
    hopeful = np.flatnonzero(noise_G < problem.alpha - 1e-6)
    if len(hopeful) == 0:
        return RuleResult(candidates, bound_G, nearest, False, None, "no cut has an observed noise below alpha")
    enough_G = np.ceil(-math.log(level) / (2 * (problem.alpha - noise_G[hopeful]) ** 2))
    needed_G = np.ceil(enough_G * problem.rows.num_rows / candidates.kept_G[hopeful])
    best = int(np.argmin(needed_G))
    noise = noise_G[hopeful[best]]
    basis = f"observed noise {noise:.3f}" if noise else "zero-error minimum"
    basis += f" of the best {candidates.kept_G[hopeful[best]]:,} rows"
    return RuleResult(candidates, bound_G, nearest, False, int(needed_G[best]), basis)


def compute_hoeffding_upper(kept_G: Int64s, wrong_G: Int64s, delta: float) -> Floats:
    """Return Hoeffding's upper bound on each cut's noise (paper's U) at confidence 1 - delta; infinite without rows."""
    rows_G = np.maximum(kept_G, 1)
    bound_G: Floats = np.where(kept_G > 0, wrong_G / rows_G + np.sqrt(-math.log(delta) / (2 * rows_G)), np.inf)
    return bound_G


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Cuts [G] from the strictest to the most inclusive, each at a different score of the pool."""

    threshold_G: Floats
    """Lowest raw score of the rows that the cut keeps."""
    share_G: Floats
    """The share of the pool, unparsed rows included, that the cut keeps."""
    kept_G: Int64s
    """The number of calibration rows that the cut keeps."""
    wrong_G: Int64s
    bound_G: Floats
    """The rule's upper bound on the noise; infinite or 1 if no calibration row is kept."""
    tried_G: Bools
    """Whether the rule tests cuts of this size: the fixed sequence may start at larger ones."""
    start: float
    """Share of the pool (``top_k``: of the calibration rows) at which the rule starts; 0 if at the first cut."""
    level: float
    """The part of delta at which each bound holds."""
    num_rows: int
    """The number of calibration rows: all, or for ``hoeffding_split`` the half whose test decided."""


def compute_rule_curve(problem: Problem, rule: Rule) -> Curve:
    """Return the curves of a rule at ``NUM_POINTS`` quantiles of the pool, equal ones merged."""
    rows, level = problem.rows, problem.delta  # on which the rule decides, and the level of each test
    if rule in ("hoeffding_bonferroni", "hoeffding_grid"):
        _, level = list_candidates(problem, rule)
    elif rule == "hoeffding_split":
        choose, check = split_halves(problem)  # unless the other half proposes no cut, the testing half decides
        rows = check if _propose_cut(problem, choose).certified else choose
    wanted_S = np.arange(1, NUM_POINTS + 1) / NUM_POINTS
    quantile_S = problem.quantiles(wanted_S)
    threshold_G = sort_distinct(quantile_S)
    above_G = problem.pool.num_above(threshold_G, inclusive=True)
    _, kept_G, wrong_G = rows.at(threshold_G)
    start = 0.0
    reached_G = wanted_S[np.searchsorted(-quantile_S, -threshold_G, side="right") - 1]
    if rule == "fixed_sequence":
        share_G = _make_shares()
        start = float(share_G[_find_starts(problem, share_G, np.array([problem.rows.num_rows]))[0]])
        if problem.kind == "top_k":
            # The prefix of all calibration rows comes after those of rows that may be selected.
            reached_G = np.where(kept_G < len(rows.score_M), kept_G / rows.num_rows, 1.0)
    upper = compute_exact_upper if rule == "fixed_sequence" else compute_hoeffding_upper
    return Curve(
        threshold_G=threshold_G,
        share_G=above_G / problem.pool.num_rows,
        kept_G=kept_G,
        wrong_G=wrong_G,
        bound_G=upper(kept_G, wrong_G, level),
        tried_G=reached_G >= start - 1e-9,
        start=start,
        level=level,
        num_rows=rows.num_rows,
    )
