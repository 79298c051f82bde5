"""Risk-controlled selection: the most inclusive cut whose noise is certified to stay at or under alpha.

A rule uses a calibration split (labelled rows drawn as the pool's rows are) to choose a cut of the raw score. Noise R
is the expected share of wrong weak labels among rows that pass the cut. The paper's four rules (section and App.
"Risk-Controlled Data Selection") compare Hoeffding's upper bound on R with alpha: ``hoeffding`` at each observed score
without a correction, ``hoeffding_bonferroni`` with delta split over all of them, ``hoeffding_grid`` over a hundred
candidates, ``hoeffding_split`` on one half after choosing on the other.

The default, ``fixed_sequence``, is ours: learn then test (Angelopoulos, Bates, Candes, Jordan, Lei, "Learn then Test",
2021) with a fixed sequence and exact binomial tests. It tests candidates from the strictest to the most inclusive, each
at the full delta, and takes the last one before the first failure. It can only take a wrong cut if the first candidate
with R > alpha passes. Which candidate that is does not depend on the calibration rows. So each single test only has to
be valid by itself, and more candidates cost no power.

**Why candidates are quantiles of the pool.** Let the threshold be fixed before the calibration rows are drawn. Then,
given their number, the rows at or above it are independent draws of a coin with bias R: the binomial test (as a bound:
Clopper and Pearson 1934) is exact in finite samples, with ties and for any shape of R. A threshold at the k-th best
calibration row is itself random: that row is not a draw from the rows it delimits, and the first bad candidate then
depends on the rows that test it.

**What holds for** ``top_k``. The rule tests the k best calibration rows. The row after them is the boundary: rows that
score strictly more are selected, so neither the boundary nor a row that ties with it counts as evidence. Given the
boundary, the rows above it are independent draws from above it, so each single prefix test is exact. The level also
holds over the search if scores do not tie and if R, as the cut is lowered, exceeds alpha from some point on for good.
The first bad prefix then consists of the rows above that point, of noise alpha, and of rows below it, which are
noisier. If scores tie (the search skips prefixes that contain only the best score) or R crosses alpha several times,
the conditioning on earlier prefixes leaves a small gap. In that case use ``threshold``, which needs neither condition.

Departures from the paper: the coarse grid consists of quantiles (raw scores have no fixed range), of the pool for
``threshold`` and of the calibration rows for ``top_k``. A prefix never separates equal scores.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from curation.errors import ConfigError, UserError
from curation.hashing import derive
from curation.json_types import Json
from curation.selection.budget import Count, Pool
from curation.selection.class_shares import ClassScores
from curation.selection.order import Ordered, Sorted, Streamed
from curation.selection.risk.rules import (
    Curve,
    Kind,
    Problem,
    RankedRows,
    Rule,
    apply_rule,
    compute_rule_curve,
)


@dataclass(frozen=True, kw_only=True)
class RiskCut:
    """The cut that a rule chose, and the evidence for it.

    ``num_kept``, ``noise`` (observed) and ``bound`` (an upper confidence bound on R) describe the calibration rows that
    certified the cut. If no cut is certified, they describe the cut at which the fixed sequence stopped, or the one
    that came nearest.
    """

    threshold: float | None
    """Lowest raw score of the selected pool rows; None if no cut is certified, so that nothing is selected."""
    num_calibration: int
    num_kept: int
    noise: float | None
    bound: float | None
    guarantee: str
    """The guarantee in words: what holds, with which probability, under which assumption."""
    needed: int | None = None
    """Estimated number of calibration rows that would have sufficed; None if a cut is certified or more would not help.

    It is the smallest number with which the rule would have certified a cut at the noise observed among the given rows.
    The true number may be larger.
    """
    needed_basis: str | None = None
    """The basis of ``needed``: the observed noise or, if it is zero, the smallest number of right rows."""


def calibrate(
    scores_M: npt.ArrayLike,
    correct_M: npt.ArrayLike,
    pool_scores_N: npt.ArrayLike | Streamed,
    *,
    alpha: float,
    delta: float,
    rule: Rule = "fixed_sequence",
    kind: Kind = "threshold",
    seed: int = 0,
    floor: float | None = None,
) -> RiskCut:
    """Return the cut of the pool whose noise is at most ``alpha``, with confidence 1 - ``delta``.

    Args:
        scores_M: raw scores of the calibration rows, larger is better; -inf for a row that may not be selected (its
            label could not be read). Such a row counts as a calibration row and lies below every cut.
        correct_M: whether the weak label is right, bool.
        pool_scores_N: raw scores of all pool rows; -inf or NaN for a row that may not be selected. Or, to hold no score
            in memory, their order statistics, with a ``floor`` only of the rows that score at least as much.
        alpha: the highest allowed noise, in (0, 1).
        delta: the highest allowed probability of failure over draws of the calibration rows, in (0, 1).
        rule: see the module's docstring.
        kind: ``threshold``, or ``top_k``: prefixes of the calibration rows sorted by score.
        seed: for the halves of ``hoeffding_split``, which are drawn by position.
        floor: lowest score of the rows from which calibration rows were drawn; None if they were drawn as all pool rows
            are. Rows below a floor are no part of the problem: shares are of the pool rows that score at least the
            floor, and no cut is below it.

    Raises:
        ConfigError: alpha or delta is outside (0, 1), or rule or kind is unknown.
        UserError: the calibration rows are missing, have NaN scores, scores below the floor, correctness that is not
            boolean, or differing lengths; or no pool row may be selected.
    """
    settings: Json = {"alpha": alpha, "delta": delta, "rule": rule, "kind": kind, "seed": seed, "floor": floor}
    problem = _make_problem(scores_M, correct_M, pool_scores_N, **settings)
    found = apply_rule(problem, rule)
    candidates, place = found.candidates, found.place
    threshold = None if place is None else float(candidates.threshold_G[place])
    certified = found.certified and threshold is not None and threshold < math.inf
    nothing = "no pool row lies above the certified cut" if found.certified else "no cut is certified"
    num_kept = 0 if place is None else int(candidates.kept_G[place])
    bound = math.inf if place is None else float(found.bound_G[place])
    return RiskCut(
        threshold=threshold if certified else None,
        num_calibration=problem.rows.num_rows,
        num_kept=num_kept,
        noise=float(candidates.wrong_G[place]) / num_kept if num_kept else None,
        bound=bound if bound < math.inf else None,
        guarantee=_describe_guarantee(problem, rule) if certified else f"none: {nothing}, nothing is selected",
        needed=found.needed,
        needed_basis=found.needed_basis,
    )


def compute_risk_curve(
    scores_M: npt.ArrayLike,
    correct_M: npt.ArrayLike,
    pool_scores_N: npt.ArrayLike | Streamed,
    *,
    rule: Rule = "fixed_sequence",
    **settings: Any,
) -> Curve:
    """Return noise and the rule's bound on it at cuts through the whole pool, to chart what :func:`calibrate` tests.

    Arguments and errors are those of :func:`calibrate`.
    """
    return compute_rule_curve(_make_problem(scores_M, correct_M, pool_scores_N, rule=rule, **settings), rule)


def _make_problem(
    scores_M: npt.ArrayLike,
    correct_M: npt.ArrayLike,
    pool_scores_N: npt.ArrayLike | Streamed,
    *,
    alpha: float,
    delta: float,
    rule: Rule,
    kind: Kind = "threshold",
    seed: int = 0,
    floor: float | None = None,
) -> Problem:
    """Return the input of a rule, checked as :func:`calibrate` says."""
    for name, value in (("alpha", alpha), ("delta", delta)):
        if not 0 < value < 1:
            raise ConfigError(f"{name}: {value} is not a share between 0 and 1, both excluded; the paper's is 0.1")
    for name, choice, known in (("rule", rule, get_args(Rule)), ("kind", kind, get_args(Kind))):
        if choice not in known:
            raise ConfigError(f"{name}: {choice!r} is not one of {', '.join(known)}")
    scores, correct = np.asarray(scores_M), np.asarray(correct_M)
    if scores.ndim != 1 or scores.shape != correct.shape:
        raise UserError(f"calibration rows: scores {scores.shape} and correctness {correct.shape} are not two columns")
    if len(scores) == 0:
        raise UserError("calibration rows: there are none; give the risk-controlled rule a calibration split")
    if correct.dtype != np.bool_:
        raise UserError(f"calibration rows: correctness is {correct.dtype}, not bool; grade the labels first")
    scores = scores.astype(np.float64)
    if num_nan := int(np.isnan(scores).sum()):
        raise UserError(f"calibration rows: {num_nan:,} scores are NaN; give -inf for a row that is never selected")
    if floor is not None and (scores < floor).any():
        raise UserError(
            f"calibration rows: {int((scores < floor).sum()):,} score less than their floor {floor:g}; give only "
            "rows that were drawn above it"
        )
    if isinstance(pool_scores_N, Streamed):
        pool: Ordered = pool_scores_N
    else:
        pool_N = np.asarray(pool_scores_N)
        if pool_N.ndim != 1:
            raise UserError(
                f"risk control: no row of the pool has a score (shape {pool_N.shape}); check the score stage"
            )
        pool = Sorted(pool_N if floor is None else pool_N[pool_N >= floor])
    if not pool.num_scored:
        raise UserError(f"risk control: no row of the pool has a score (of {pool.num_rows:,}); check the score stage")
    return Problem(
        rows=RankedRows.sort(scores, correct),
        scores_M=scores,
        correct_M=correct,
        pool=pool,
        alpha=alpha,
        delta=delta,
        kind=kind,
        seed=seed,
        floor=floor,
    )


def _describe_guarantee(problem: Problem, rule: Rule) -> str:
    grid = "pool quantiles" if problem.kind == "threshold" else "prefixes taken as fixed beforehand"
    scope = {
        "fixed_sequence": "over the whole search (fixed-sequence test, exact binomial)",
        "hoeffding": "for each cut by itself, not over the search (Hoeffding, uncorrected)",
        "hoeffding_bonferroni": "over all observed scores taken as fixed beforehand (Hoeffding, union bound)",
        "hoeffding_grid": f"over a coarse grid of {grid} (Hoeffding, union bound)",
        "hoeffding_split": "for the cut chosen on the other half of the calibration rows (Hoeffding)",
    }[rule]
    above = "" if problem.floor is None else f" that score at least {problem.floor:g}"
    assumption = f"calibration rows are exchangeable with the pool's{above}"
    if rule == "fixed_sequence" and problem.kind == "top_k":
        assumption += ", scores do not tie, and noise that exceeds alpha stays above it as the cut is lowered"
    return (
        f"expected noise of what is selected at most {problem.alpha:g} with probability at least "
        f"{1 - problem.delta:g}, {scope}; assumes that {assumption}"
    )


@dataclass(frozen=True, kw_only=True)
class Certified:
    """The rows that pass a calibrated threshold of the reference arm (``selection.budget.risk``)."""

    alpha: float
    delta: float
    rule: Rule
    kind: Kind
    per: Literal["all", "label"] = "all"

    def count(self, pool: Pool) -> Count:
        """Return how many rows pass their threshold or, by label, that of their class; 0 if none can be certified."""
        assert pool.calibration is not None and pool.scores is not None, "declared in BUDGETS"
        settings = {name: value for name, value in asdict(self).items() if name != "per"}
        arguments = {**settings, "seed": pool.seed, "floor": pool.floor}
        raw_M = pool.calibration.raw_M
        scores_M = np.where(np.isnan(raw_M), -np.inf, raw_M)  # without a score never selected, here as in the pool
        if self.per == "label":
            from curation.selection.risk.by_class import calibrate_classes  # it reads this module

            assert pool.classes is not None, "the caller refuses a domain without classes"
            rows = ClassScores(score_N=scores_M, class_N=pool.calibration.places(pool.classes))
            sample = pool.scores.sample_of(pool.classes, derive(pool.seed, "candidates"))
            cuts = calibrate_classes(rows, pool.calibration.correct_M, sample, pool.classes, **arguments)
            num_C = pool.scores.num_above_by_class(pool.classes, cuts.threshold_C)
            n = int(num_C.sum())
            risk = {**settings, "per": "label", **cuts.to_json(num_C)}
            return Count(n, risk=risk, is_cut=True, shares=cuts.shares(num_C) if n else None)
        ordered = pool.scores.ordered(pool.floor)
        cut = calibrate(scores_M, pool.calibration.correct_M, ordered, **arguments)
        n = 0 if cut.threshold is None else int(ordered.num_above([cut.threshold], inclusive=True)[0])
        return Count(n, threshold=cut.threshold, risk={**settings, **asdict(cut)}, is_cut=True)
