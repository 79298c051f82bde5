"""Risk-controlled selection: the most inclusive cut whose noise is certified to stay at or under alpha.

From a calibration split (labelled rows drawn as the pool's rows are) a rule chooses a cut of the raw score; noise R is
the share of wrong weak labels that rows past the cut have in expectation. The paper's four rules (section and App.
"Risk-Controlled Data Selection") compare Hoeffding's upper bound on R with alpha: ``hoeffding`` at each observed score
without a correction, ``hoeffding_bonferroni`` with delta split over all of them, ``hoeffding_grid`` over a hundred
candidates, ``hoeffding_split`` on one half after choosing on the other.

The default, ``fixed_sequence``, is ours: learn then test (Angelopoulos, Bates, Candes, Jordan, Lei, "Learn then Test",
2021) with a fixed sequence and exact binomial tests. Candidates are tried from the strictest on, each at the full
delta, and the last one before the first failure is taken. A wrong cut can only be taken if the first candidate with
R > alpha passes, and which one that is does not depend on the calibration rows; so all that is needed is that each
single test is valid, and there is no price for the number of candidates.

**Why candidates are quantiles of the pool.** At a threshold fixed before the calibration rows are drawn, those at or
above it are, given their number, independent draws of a coin with bias R: the binomial test (as a bound: Clopper and
Pearson 1934) is exact in finite samples, with ties and for any shape of R. A threshold put at the k-th best calibration
row is itself random: that row is no draw from the rows it delimits, and which candidate is the first bad one then
depends on the rows that test it.

**What holds for** ``top_k``. The k best calibration rows are tested and the row after them marks the boundary; what
scores strictly more than it is selected, so neither the boundary nor what ties with it is evidence. Given the
boundary, the rows above it are independent draws from there: each single prefix is exact. Over the search the level
holds as well if scores do not tie and R, as the cut is lowered, exceeds alpha from some point on for good: the first
bad prefix then consists of the rows above that point, of noise alpha, and of rows below it, which are noisier. Where
scores tie (prefixes of nothing but the best score are passed over) or R crosses alpha several times, the conditioning
on earlier prefixes leaves a small gap: take ``threshold``, which needs neither.

Departures from the paper: the coarse grid is one of quantiles (raw scores have no fixed range), of the pool for
``threshold`` and of the calibration rows for ``top_k``; a prefix never cuts through equal scores.
"""

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from curation.errors import ConfigError, UserError

Rule = Literal["fixed_sequence", "hoeffding", "hoeffding_bonferroni", "hoeffding_grid", "hoeffding_split"]
Kind = Literal["threshold", "top_k"]
Floats = npt.NDArray[np.floating[Any]]
Counts = npt.NDArray[np.int64]

FIRST_SHARE = 0.05
"""Of the pool (``top_k``: of the calibration rows): the strictest cut that the fixed sequence tries."""
STEP = 0.01
NUM_COARSE = 100
"""Candidates of the paper's coarse grid."""
MOST_TIMES = 1000
"""How many times the given calibration rows are looked at when it is asked how many would have sufficed."""


@dataclass(frozen=True, kw_only=True)
class RiskCut:
    """Where a rule cuts, and what certifies it.

    ``num_kept``, ``noise`` (observed) and ``bound`` (an upper confidence bound on R) are those of the calibration rows
    that certified the cut; where none is certified, of the one at which the fixed sequence stopped or which came
    nearest.
    """

    threshold: float | None
    """The raw score from which on a pool row is selected; None: infeasible, nothing is."""
    num_calibration: int
    num_kept: int
    noise: float | None
    bound: float | None
    guarantee: str
    """What holds, with which probability, and on what assumption."""
    needed: int | None = None
    """Only where infeasible: about how many calibration rows would have sufficed; None if more would not have helped.

    An estimate: the least number with which the rule would have certified a cut, were the noise there what it is among
    the given rows; it may turn out to be more.
    """
    needed_basis: str | None = None
    """What ``needed`` follows from: the observed noise, or where there is none, the least number of right rows."""


def calibrate(
    scores_M: npt.ArrayLike,
    correct_M: npt.ArrayLike,
    pool_scores_N: npt.ArrayLike,
    *,
    alpha: float,
    delta: float,
    rule: Rule = "fixed_sequence",
    kind: Kind = "threshold",
    seed: int = 0,
) -> RiskCut:
    """The cut of the pool whose noise is at most ``alpha``, with confidence 1 - ``delta``.

    Args:
        scores_M: raw scores of the calibration rows, larger is better; -inf for a row that may not be selected (its
            label could not be read), which counts as a calibration row and lies below every cut.
        correct_M: whether the weak label is right, bool.
        pool_scores_N: raw scores of all pool rows; -inf or NaN for one that may not be selected.
        alpha: the noise to stay under, in (0, 1).
        delta: how often that may fail over draws of the calibration rows, in (0, 1).
        rule: see the module's header.
        kind: ``threshold`` or ``top_k``, prefixes of the calibration rows sorted by score.
        seed: of the halves of ``hoeffding_split``, which are drawn by position.

    Raises:
        ConfigError: alpha or delta outside (0, 1), an unknown rule or kind.
        UserError: calibration rows that are missing, have NaN scores, other than boolean correctness or differing
            lengths; a pool without a row that may be selected.
    """
    _check_settings(alpha, delta, rule, kind)
    scores_M, correct_M = _checked_rows(scores_M, correct_M)
    pool_N = np.asarray(pool_scores_N)
    selectable_N = np.sort(pool_N[pool_N > -np.inf])  # false for NaN, too
    if pool_N.ndim != 1 or len(selectable_N) == 0:
        raise UserError(f"risk control: no row of the pool has a score (shape {pool_N.shape}); check the score stage")
    problem = _Problem(
        rows=_Rows.sort(scores_M, correct_M),
        scores_M=scores_M,
        correct_M=correct_M,
        selectable_N=selectable_N,
        num_pool=len(pool_N),
        alpha=alpha,
        delta=delta,
        kind=kind,
        seed=seed,
    )
    return _cut(problem, rule, _RULES[rule](problem))


class _Candidates(NamedTuple):
    """Cuts from the strictest on; how many calibration rows are past each, and how many of these are wrong."""

    threshold_G: Floats
    kept_G: Counts
    wrong_G: Counts

    def noise_G(self) -> Floats:
        """The observed noise; NaN where no row is kept."""
        noise_G: Floats = np.where(self.kept_G > 0, self.wrong_G / np.maximum(self.kept_G, 1), np.nan)
        return noise_G


class _Rows(NamedTuple):
    """Calibration rows that may be selected, best first, in a number of rows that counts all."""

    score_M: Floats
    wrong_M: Counts
    """Wrong labels among the first 0, 1, 2 ... of them."""
    num_rows: int

    @staticmethod
    def sort(scores_M: Floats, correct_M: npt.NDArray[np.bool_]) -> "_Rows":
        order = np.argsort(-scores_M)[: np.count_nonzero(scores_M > -np.inf)]
        wrong_M = np.concatenate([[0], np.cumsum(~correct_M[order])])
        return _Rows(score_M=scores_M[order], wrong_M=wrong_M, num_rows=len(scores_M))

    def at(self, threshold_G: Floats) -> _Candidates:
        """Cuts that keep what scores at least so much."""
        kept_G = np.searchsorted(-self.score_M, -threshold_G, side="right")
        return _Candidates(threshold_G, kept_G, self.wrong_M[kept_G])

    def prefix_ends(self, share_G: Floats) -> Floats:
        """The scores of the last rows of the prefixes of these shares; those of rows without one left out."""
        last_G = _ranks(share_G, self.num_rows) - 1
        return self.score_M[last_G[last_G < len(self.score_M)]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problem:
    rows: _Rows
    scores_M: Floats
    correct_M: npt.NDArray[np.bool_]
    selectable_N: Floats
    """Scores of the pool rows that may be selected, ascending."""
    num_pool: int
    alpha: float
    delta: float
    kind: Kind
    seed: int

    def quantiles(self, share_G: Floats) -> Floats:
        """The scores at or above which these shares of the pool lie, or all rows that may be selected."""
        rank_G = np.minimum(_ranks(share_G, self.num_pool), len(self.selectable_N))
        return self.selectable_N[-rank_G]


class _Found(NamedTuple):
    """What a rule found."""

    candidates: _Candidates
    bound_G: Floats
    place: int | None
    """Of the chosen candidate; where none is certified, of the one to show; None where there are none."""
    certified: bool
    needed: int | None = None
    needed_basis: str | None = None


def _fixed_sequence(problem: _Problem) -> _Found:
    rows, num_rows = problem.rows, problem.rows.num_rows
    share_G = np.append(np.arange(FIRST_SHARE, 1 - STEP / 2, STEP), 1.0)
    if problem.kind == "threshold":
        candidates = rows.at(problem.quantiles(share_G))
    else:
        padded_M = np.append(rows.score_M, np.full(num_rows + 1 - len(rows.score_M), -np.inf))
        boundary_G = padded_M[_ranks(share_G, num_rows)]
        kept_G = np.searchsorted(-rows.score_M, -boundary_G, side="left")
        # the least pool score above the boundary, not the next number: that one would not survive a cast to float32
        place_G = np.searchsorted(problem.selectable_N, boundary_G, side="right")
        last = len(problem.selectable_N) - 1
        threshold_G = np.where(place_G <= last, problem.selectable_N[np.minimum(place_G, last)], np.inf)
        candidates = _Candidates(threshold_G, kept_G, rows.wrong_M[kept_G])
    bound_G = exact_upper(candidates.kept_G, candidates.wrong_G, problem.delta)
    start = int(_starts(problem, share_G, np.array([num_rows]))[0])
    if problem.kind == "top_k":
        start = max(start, int(np.argmax(candidates.kept_G > 0)))
    failed = start + np.flatnonzero(bound_G[start:] > problem.alpha)
    end = int(failed[0]) if len(failed) else len(bound_G)
    if end > start:
        return _Found(candidates, bound_G, end - 1, certified=True)
    return _Found(candidates, bound_G, start, False, *_needed_for_sequence(problem, candidates, share_G))


def _starts(problem: _Problem, share_G: Floats, num_rows_S: Counts) -> Counts:
    """Where the sequence starts for these numbers of calibration rows; they alone, alpha and delta decide.

    At ``FIRST_SHARE``, or where as many rows are expected as certify a cut in spite of one error: fewer would often
    fall short even of the number that certifies it without one.
    """
    share_S = np.maximum(FIRST_SHARE, rows_with_one_error(problem.alpha, problem.delta) / num_rows_S)
    return np.searchsorted(share_G[:-1], share_S)


def rows_with_one_error(alpha: float, delta: float) -> int:
    """How many rows with one error among them certify a noise of at most alpha: P(Bin(rows, alpha) <= 1) <= delta."""

    def chance(num_rows: int) -> float:
        return float((1 - alpha) ** (num_rows - 1) * (1 + (num_rows - 1) * alpha))

    return bisect.bisect_left(range(2**62), True, lo=2, key=lambda num_rows: chance(num_rows) <= delta)


def _needed_for_sequence(problem: _Problem, candidates: _Candidates, share_G: Floats) -> tuple[int | None, str]:
    """With how many rows of the same noise the sequence would have passed its start, which moves with their number."""
    num_rows = problem.rows.num_rows
    rows_S = np.unique(np.geomspace(num_rows + 1, MOST_TIMES * num_rows, 200).astype(np.int64))
    start_S = _starts(problem, share_G, rows_S)
    kept_S, wrong_S = (counts_G[start_S] * rows_S / num_rows for counts_G in candidates[1:])
    bound_S = exact_upper(np.floor(kept_S + 1e-9), np.ceil(wrong_S - 1e-9), problem.delta)
    enough = np.flatnonzero(bound_S <= problem.alpha)
    if len(enough) == 0:
        return None, f"too noisy where the sequence starts, even with {MOST_TIMES:,} times as many rows"
    first = enough[0]
    noise = wrong_S[first] / kept_S[first]
    basis = f"observed noise {noise:.3f}" if noise else "zero-error minimum"
    return int(rows_S[first]), f"{basis} of the best {share_G[start_S[first]]:.0%}, where the sequence would start"


def _hoeffding(problem: _Problem) -> _Found:
    return _most_inclusive(problem, problem.rows.at(_distinct(problem.rows.score_M)), problem.delta)


def _hoeffding_bonferroni(problem: _Problem) -> _Found:
    thresholds_G = _distinct(problem.rows.score_M)
    num_candidates = len(thresholds_G) if problem.kind == "threshold" else problem.rows.num_rows
    return _most_inclusive(problem, problem.rows.at(thresholds_G), problem.delta / max(num_candidates, 1))


def _hoeffding_grid(problem: _Problem) -> _Found:
    share_G = np.arange(1, NUM_COARSE + 1) / NUM_COARSE
    ends_G = problem.quantiles(share_G) if problem.kind == "threshold" else problem.rows.prefix_ends(share_G)
    thresholds_G = _distinct(ends_G)
    return _most_inclusive(problem, problem.rows.at(thresholds_G), problem.delta / max(len(thresholds_G), 1))


def _hoeffding_split(problem: _Problem) -> _Found:
    order_M = np.random.default_rng(problem.seed).permutation(problem.rows.num_rows)
    halves = np.array_split(order_M, [len(order_M) // 2])
    choose, check = (_Rows.sort(problem.scores_M[half], problem.correct_M[half]) for half in halves)
    proposed = _most_inclusive(problem, choose.at(_distinct(choose.score_M)), problem.delta)
    if proposed.place is None or not proposed.certified:
        return proposed
    threshold_G = proposed.candidates.threshold_G[[proposed.place]]
    if problem.kind == "top_k":
        num_kept = int(proposed.candidates.kept_G[proposed.place])
        threshold_G = check.score_M[min(num_kept, len(check.score_M)) - 1 :][:1]
    return _most_inclusive(problem, check.at(threshold_G), problem.delta)


_RULES: Mapping[Rule, Callable[[_Problem], _Found]] = {
    "fixed_sequence": _fixed_sequence,
    "hoeffding": _hoeffding,
    "hoeffding_bonferroni": _hoeffding_bonferroni,
    "hoeffding_grid": _hoeffding_grid,
    "hoeffding_split": _hoeffding_split,
}


def _most_inclusive(problem: _Problem, candidates: _Candidates, level: float) -> _Found:
    """The last candidate whose Hoeffding bound at delta = ``level`` is at most alpha."""
    bound_G = hoeffding_upper(candidates.kept_G, candidates.wrong_G, level)
    passed = np.flatnonzero(bound_G <= problem.alpha)
    if len(passed):
        return _Found(candidates, bound_G, int(passed[-1]), certified=True)
    nearest = int(np.argmin(bound_G)) if len(bound_G) else None
    return _Found(candidates, bound_G, nearest, False, *_needed_for_hoeffding(problem, candidates, level))


def _needed_for_hoeffding(problem: _Problem, candidates: _Candidates, level: float) -> tuple[int | None, str]:
    """With how many rows of the same noise the best candidate would have passed, at the same level."""
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


def hoeffding_upper(kept_G: Counts, wrong_G: Counts, delta: float) -> Floats:
    """Hoeffding's upper bound on the noise of each cut (paper's U), at confidence 1 - delta; infinite without rows."""
    rows_G = np.maximum(kept_G, 1)
    bound_G: Floats = np.where(kept_G > 0, wrong_G / rows_G + np.sqrt(-math.log(delta) / (2 * rows_G)), np.inf)
    return bound_G


def exact_upper(kept_G: Counts, wrong_G: Counts, delta: float) -> Floats:
    """Exact upper bound on the noise of each cut at confidence 1 - delta (Clopper and Pearson 1934); 1 without rows.

    It is at most alpha exactly where the one-sided binomial test rejects a noise above alpha:
    P(Bin(kept, alpha) <= wrong) <= delta.
    """
    from scipy.special import betaincinv

    right_G = kept_G - wrong_G
    bound_G: Floats = np.where(right_G > 0, betaincinv(wrong_G + 1, np.maximum(right_G, 1), 1 - delta), 1.0)
    return bound_G


def _cut(problem: _Problem, rule: Rule, found: _Found) -> RiskCut:
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
        guarantee=_guarantee(problem, rule) if certified else f"none: {nothing}, nothing is selected",
        needed=found.needed,
        needed_basis=found.needed_basis,
    )


def _guarantee(problem: _Problem, rule: Rule) -> str:
    grid = "pool quantiles" if problem.kind == "threshold" else "prefixes taken as fixed beforehand"
    scope = {
        "fixed_sequence": "over the whole search (fixed-sequence test, exact binomial)",
        "hoeffding": "for each cut by itself, not over the search (Hoeffding, uncorrected)",
        "hoeffding_bonferroni": "over all observed scores taken as fixed beforehand (Hoeffding, union bound)",
        "hoeffding_grid": f"over a coarse grid of {grid} (Hoeffding, union bound)",
        "hoeffding_split": "for the cut chosen on the other half of the calibration rows (Hoeffding)",
    }[rule]
    assumption = "calibration rows are exchangeable with the pool's"
    if rule == "fixed_sequence" and problem.kind == "top_k":
        assumption += ", scores do not tie, and noise that exceeds alpha stays above it as the cut is lowered"
    return (
        f"expected noise of what is selected at most {problem.alpha:g} with probability at least "
        f"{1 - problem.delta:g}, {scope}; assumes that {assumption}"
    )


def _ranks(share_G: Floats, num_rows: int) -> Counts:
    """These shares of a number of rows, rounded up, at least 1."""
    rank_G: Counts = np.maximum(np.ceil(share_G * num_rows - 1e-9), 1).astype(np.int64)
    return rank_G


def _distinct(scores_M: Floats) -> Floats:
    """Each score once, descending."""
    return np.unique(scores_M)[::-1]


def _check_settings(alpha: float, delta: float, rule: str, kind: str) -> None:
    for name, value in (("alpha", alpha), ("delta", delta)):
        if not 0 < value < 1:
            raise ConfigError(f"{name}: {value} is not a share between 0 and 1, both excluded; the paper's is 0.1")
    for name, choice, known in (("rule", rule, get_args(Rule)), ("kind", kind, get_args(Kind))):
        if choice not in known:
            raise ConfigError(f"{name}: {choice!r} is not one of {', '.join(known)}")


def _checked_rows(scores_M: npt.ArrayLike, correct_M: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.bool_]]:
    scores, correct = np.asarray(scores_M), np.asarray(correct_M)
    if scores.ndim != 1 or scores.shape != correct.shape:
        raise UserError(f"calibration rows: scores {scores.shape} and correctness {correct.shape} are not two columns")
    if len(scores) == 0:
        raise UserError("calibration rows: there are none; give the risk-controlled rule a calibration split")
    if correct.dtype != np.bool_:
        raise UserError(f"calibration rows: correctness is {correct.dtype}, not bool; grade the labels first")
    scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        num_nan = int(np.isnan(scores).sum())
        raise UserError(f"calibration rows: {num_nan:,} scores are NaN; give -inf for a row that is never selected")
    return scores, correct
