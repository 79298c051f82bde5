"""The paper's rules: the most inclusive cut whose Hoeffding bound is at most alpha."""

import math

import numpy as np

from curation.arrays import Floats, Int64s
from curation.selection.risk.problem import CandidateCuts, Problem, RankedRows, RuleResult, sort_distinct

NUM_COARSE = 100
"""Number of candidates of the paper's coarse grid."""


def apply_hoeffding(problem: Problem) -> RuleResult:
    """Test every observed score as a candidate, at the full delta."""
    return _find_most_inclusive(problem, problem.rows.at(sort_distinct(problem.rows.score_M)), problem.delta)


def apply_hoeffding_bonferroni(problem: Problem) -> RuleResult:
    """Test every observed score as a candidate; delta is split over all of them."""
    return _find_most_inclusive(
        problem, problem.rows.at(sort_distinct(problem.rows.score_M)), compute_bonferroni_level(problem)
    )


def compute_bonferroni_level(problem: Problem) -> float:
    """Return each candidate's part of delta; there is one per distinct score, or per calibration row (``top_k``)."""
    num_candidates = len(sort_distinct(problem.rows.score_M)) if problem.kind == "threshold" else problem.rows.num_rows
    return problem.delta / max(num_candidates, 1)


def apply_hoeffding_grid(problem: Problem) -> RuleResult:
    """Test the candidates of a coarse grid; delta is split over them."""
    thresholds_G, level = make_coarse_grid(problem)
    return _find_most_inclusive(problem, problem.rows.at(thresholds_G), level)


def make_coarse_grid(problem: Problem) -> tuple[Floats, float]:
    """Return the candidates of the coarse grid, and each one's part of delta."""
    share_G = np.arange(1, NUM_COARSE + 1) / NUM_COARSE
    ends_G = problem.quantiles(share_G) if problem.kind == "threshold" else problem.rows.prefix_ends(share_G)
    thresholds_G = sort_distinct(ends_G)
    return thresholds_G, problem.delta / max(len(thresholds_G), 1)


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


def find_deciding_half(problem: Problem) -> RankedRows:
    """Return the calibration rows whose bound decides: the testing half, unless the other half proposes no cut."""
    choose, check = split_halves(problem)
    return check if _propose_cut(problem, choose).certified else choose


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
    return RuleResult(candidates, bound_G, nearest, False, *_estimate_needed(problem, candidates, level))


def _estimate_needed(problem: Problem, candidates: CandidateCuts, level: float) -> tuple[int | None, str]:
    """Return how many rows of the same noise would have let the best candidate pass, at the same level."""
    noise_G = candidates.noise_G()
    hopeful = np.flatnonzero(noise_G < problem.alpha - 1e-6)
    if len(hopeful) == 0:
        return None, "no cut has an observed noise below alpha"
    enough_G = np.ceil(-math.log(level) / (2 * (problem.alpha - noise_G[hopeful]) ** 2))
    needed_G = np.ceil(enough_G * problem.rows.num_rows / candidates.kept_G[hopeful])
    best = int(np.argmin(needed_G))
    noise = noise_G[hopeful[best]]
    basis = f"observed noise {noise:.3f}" if noise else "zero-error minimum"
    return int(needed_G[best]), f"{basis} of the best {candidates.kept_G[hopeful[best]]:,} rows"


def compute_hoeffding_upper(kept_G: Int64s, wrong_G: Int64s, delta: float) -> Floats:
    """Return Hoeffding's upper bound on each cut's noise (paper's U) at confidence 1 - delta; infinite without rows."""
    rows_G = np.maximum(kept_G, 1)
    bound_G: Floats = np.where(kept_G > 0, wrong_G / rows_G + np.sqrt(-math.log(delta) / (2 * rows_G)), np.inf)
    return bound_G
