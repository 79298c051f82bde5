"""A rule's curves: noise of the calibration rows and its upper bound against the share of the pool that a cut keeps.

The paper draws both against the threshold (figure "Risk-controlled threshold calibration"). Raw scores have no fixed
range, so the cuts here are quantiles of the pool. For ``fixed_sequence`` and ``hoeffding_grid`` of the kind
``threshold`` these are the rule's own candidates; for the other rules they show the same bound at the same level in
coarser steps.
"""

from dataclasses import dataclass

import numpy as np

from curation.arrays import Bools, Floats, Int64s
from curation.selection.risk.ours import compute_exact_upper, start_share
from curation.selection.risk.paper import (
    compute_bonferroni_level,
    compute_hoeffding_upper,
    find_deciding_half,
    make_coarse_grid,
)
from curation.selection.risk.problem import Problem, RankedRows, Rule, sort_distinct

NUM_POINTS = 100


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
    rows, level = _find_tested(problem, rule)
    wanted_S = np.arange(1, NUM_POINTS + 1) / NUM_POINTS
    quantile_S = problem.quantiles(wanted_S)
    threshold_G = sort_distinct(quantile_S)
    above_G = problem.pool.num_above(threshold_G, inclusive=True)
    _, kept_G, wrong_G = rows.at(threshold_G)
    start = 0.0
    reached_G = wanted_S[np.searchsorted(-quantile_S, -threshold_G, side="right") - 1]
    if rule == "fixed_sequence":
        start = start_share(problem)
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


def _find_tested(problem: Problem, rule: Rule) -> tuple[RankedRows, float]:
    """Return the calibration rows on which the rule decides, and the level of each test."""
    if rule == "hoeffding_bonferroni":
        return problem.rows, compute_bonferroni_level(problem)
    if rule == "hoeffding_grid":
        return problem.rows, make_coarse_grid(problem)[1]
    if rule == "hoeffding_split":
        return find_deciding_half(problem), problem.delta
    return problem.rows, problem.delta
