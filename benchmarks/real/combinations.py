"""Ways to combine a stack's columns, the default among them: ``python -m benchmarks.real.combinations --work FOLDER``.

The sets are those that ``benchmarks.real`` has labelled, the draws of labelled rows are its draws. Members are fitted
once a draw, then each way combines the same columns, goes through the same choice (``trust.combining``) and ranks
the pool:

- ``any sign``: with priors that the evidence weighs; the way to which all others are compared;
- ``signs``: the same, but that no weight of a free signal is below 0, as higher confidence is to mean righter: the
  default;
- ``means``: further priors, as likely together as the one without a lead, whose means are equal weights of the
  standardised free signals, by which logits have a deviation of .25, .5 or 1; the evidence weighs them;
- ``signs and means``: both;
- ``equal lead``: the mean of the standardised free signals is a third lead;
- ``to the average``: logits of the stack and of the free signals' average normal score, weighed by the probability that
  the stack's out-of-fold AUC is the higher one (DeLong);
- ``to the best``: the same with the free signal that the labelled rows put first, and ``halfway to the best``: one half
  each; ``fitted to the best``: weights of at least 0 by a logistic regression of the out-of-fold logits;
- ``bags``: the mean of ten combinations of bootstrapped rows, each with leads of its own.

Printed are, for each set and size, the AUC of ``any sign``, that less the best free signal's as known afterwards, and
of each other way the difference of its AUC: mean over the draws with its standard error, both in .0001, then that of
its Brier score in .0001, and that of how far trust above .9 is off, in points. ``--out`` keeps a line a draw and goes
on from there.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm

from benchmarks.real.__main__ import labelled, measured, rows_of
from benchmarks.real.arms import Scored, drawn
from benchmarks.real.tasks import TASKS
from curation.arms import FREE, TRUST, Column
from curation.arrays import Bools, Float64s
from curation.config import TrustConfig
from curation.metrics import compute_auc_difference, compute_auc_value
from curation.metrics.estimates import NORMAL_QUANTILE
from curation.trust.class_probe import LABEL
from curation.trust.combining import (
    LEARNED,
    NEGLIGIBLE,
    STRENGTHS,
    Candidate,
    Folded,
    _compute_deviations,
    _fill_missing,
    _list_scales,
    choose_candidate,
    fit_rising_line,
)
from curation.trust.stacked import Combination, Logistic
from train.stack import PROOF, STACKED, _Stack
from train.trust_loop import LabelledRows

MEANS = (0.25, 0.5, 1.0)
BAGS = 10


class Way(NamedTuple):
    """How columns are combined."""

    signs: bool = False
    means: tuple[float, ...] = ()
    equal_lead: bool = False
    bags: int = 0
    towards: str = ""
    """``average`` or ``best``: the logits are drawn towards it."""
    weighed: str = "evidence"
    """How much: by ``evidence``, ``half``, or ``fitted``."""


COMPARED = "any sign"
WAYS = {
    COMPARED: Way(),
    "signs": Way(signs=True),
    "means": Way(means=MEANS),
    "signs and means": Way(signs=True, means=MEANS),
    "equal lead": Way(equal_lead=True),
    "to the average": Way(towards="average"),
    "to the best": Way(towards="best"),
    "halfway to the best": Way(towards="best", weighed="half"),
    "fitted to the best": Way(towards="best", weighed="fitted"),
    "bags": Way(bags=BAGS),
}


class Drawn(NamedTuple):
    """Columns of a draw of labelled rows and of the pool."""

    names: tuple[str, ...]
    columns_MK: Float64s
    """The numbers, then out-of-fold logits of ``num_members`` members."""
    num_members: int
    correct_M: Bools
    fold_M: Any
    free: list[Candidate]
    """The free signals, the best by the labelled rows first."""
    pool_NK: Float64s

    @property
    def is_free_K(self) -> Bools:
        """Which columns are free signals."""
        columns = [trust.column for name in FREE if isinstance(trust := TRUST[name], Column)]
        return np.isin(self.names, columns)


def columns_of(source: LabelledRows, pool: LabelledRows, states: tuple[str, ...], seed: int) -> Drawn:
    """Return members fitted on the labelled rows of ``source``, as a stack of these rows fits them."""
    stack = _Stack(source, TrustConfig(states=states), seed)
    stack.fit_probes()
    stack.fit_class_probe()
    names, columns_MK = stack.join_columns(stack.members)
    nothing = Combination(names, np.zeros(len(names)), Logistic(np.zeros(len(names)), 0.0))
    trust = stack.make(Candidate(STACKED, nothing, np.zeros(len(columns_MK))), {}, None)
    places = [pool.numbers.index(name) for name in trust.numbers]
    class_N = np.full(len(pool.part_N), np.nan)
    if LABEL in pool.numbers:
        class_N = pool.numbers_NK[:, pool.numbers.index(LABEL)]
    pool_NK = trust._join_columns([torch.from_numpy(np.asarray(pool.hidden_ND)), pool.numbers_NK[:, places], class_N])
    members = len(stack.members)
    return Drawn(names, columns_MK, members, stack.correct_M, stack.folded.fold_M, list(stack.free), pool_NK)


def combined(found: Drawn, way: Way, seed: int) -> Float64s:
    """Return the pool's logits of one way, float64 [N]."""
    num_numbers = len(found.names) - found.num_members
    numbers = _candidate("fitted_confidence", found, num_numbers, way, seed)
    stacked = _candidate(STACKED, found, len(found.names), way, seed)
    taken, _ = choose_candidate([*found.free, numbers], stacked, found.correct_M, PROOF)
    if not way.towards:
        return _pool_logits(taken, found)
    own_M, own_N = stacked.raw_M, _pool_logits(stacked, found)
    other_M, other_N = found.free[0].raw_M, _pool_logits(found.free[0], found)
    if way.towards == "average":
        score_M, score_N = (_average(columns, found) for columns in (found.columns_MK, found.pool_NK))
        average = Folded(found.correct_M, found.fold_M).fit_column("average", "average", score_M)
        other_M, other_N = average.raw_M, average.combination.logits(score_N[:, None])
    if way.weighed == "fitted":
        both_M2 = np.stack([own_M, other_M], axis=1)
        weight_2, bias = regression(
            both_M2, found.correct_M, np.full(2, 100.0), np.zeros(2), np.ones(2, dtype=np.bool_)
        )
        return np.stack([own_N, other_N], axis=1) @ weight_2 + bias
    share = 0.5
    if way.weighed == "evidence":
        ahead = compute_auc_difference(own_M, other_M, found.correct_M)
        error = (ahead.high - ahead.low) / (2 * NORMAL_QUANTILE)
        share = float(norm.cdf(ahead.value / max(error, 1e-9)))
    logit_N: Float64s = share * own_N + (1 - share) * other_N
    return logit_N


def _pool_logits(candidate: Candidate, found: Drawn) -> Float64s:
    places = [found.names.index(name) for name in candidate.combination.names]
    return candidate.combination.logits(found.pool_NK[:, places])


def _average(columns_NK: Float64s, found: Drawn) -> Float64s:
    """Return the mean normal score of the free signals, by their ranks among the labelled rows, float64 [N]."""
    places = np.flatnonzero(found.is_free_K)
    total_N = np.zeros(len(columns_NK))
    for place in places:
        known_M = np.sort(_fill_missing(found.columns_MK[:, [place]])[:, 0])
        value_N = np.where(np.isnan(columns_NK[:, place]), known_M.mean(), columns_NK[:, place])
        rank_N = (np.searchsorted(known_M, value_N, "left") + np.searchsorted(known_M, value_N, "right")) / 2
        total_N += norm.ppf((rank_N + 0.5) / (len(known_M) + 1))
    return total_N / len(places)


def _candidate(name: str, found: Drawn, width: int, way: Way, seed: int) -> Candidate:
    """Return the first ``width`` columns in a combination, out of fold and of all rows (``trust.combining``)."""
    columns_MK, correct_M = found.columns_MK[:, :width], found.correct_M
    num_members = max(width - len(found.names) + found.num_members, 0)
    scale_K, members = np.ones(width), slice(width - num_members, None)
    scale_K[members] = np.minimum(columns_MK[:, members].std(axis=0) / LEARNED, 1.0)
    leads = [found.names.index(signal.combination.names[0]) for signal in found.free[:2]]
    is_free_K = found.is_free_K[:width]

    def fitted(taken_M: Bools) -> Logistic:
        return averaged(_fill_missing(columns_MK, taken_M)[taken_M], correct_M[taken_M], scale_K, leads, is_free_K, way)

    raw_M, filled_MK = (
        Folded(correct_M, found.fold_M)._compute_out_of_fold(columns_MK, fitted),
        _fill_missing(columns_MK),
    )
    calibrator, model = fit_rising_line(raw_M, correct_M), fitted(np.ones(len(correct_M), dtype=np.bool_))
    rng, bags = np.random.default_rng(seed), []
    for _ in range(way.bags):
        taken_M = rng.integers(0, len(correct_M), len(correct_M))
        bag_MK, right_M = filled_MK[taken_M], correct_M[taken_M]
        if right_M.min() < right_M.max():
            of_bag = sorted(np.flatnonzero(is_free_K), key=lambda place: -compute_auc_value(bag_MK[:, place], right_M))[
                :2
            ]
            bags.append(averaged(bag_MK, right_M, scale_K, of_bag, is_free_K, way))
    if bags:
        model = Logistic(np.mean([bag.weight_K for bag in bags], axis=0), float(np.mean([bag.bias for bag in bags])))
    return Candidate(
        name, Combination(found.names[:width], filled_MK.mean(axis=0), model, calibrator), calibrator(raw_M)
    )


def averaged(
    columns_MK: Float64s, correct_M: Bools, scale_K: Float64s, leads: Sequence[int], is_free_K: Bools, way: Way
) -> Logistic:
    """Return the mean of logistic regressions under all priors, each weighed by its evidence (``trust.combining``)."""
    mean_K, deviation_K = columns_MK.mean(axis=0), _compute_deviations(columns_MK)
    inverse_K = np.where(deviation_K > 0, 1 / np.where(deviation_K > 0, deviation_K, 1.0), 0.0)
    scaled_MK, free = (columns_MK - mean_K) * inverse_K, np.flatnonzero(is_free_K)
    width = len(mean_K)
    deviation = float(scaled_MK[:, free].mean(axis=1).std()) or 1.0
    if way.equal_lead:
        lead_M1 = scaled_MK[:, free].mean(axis=1, keepdims=True) / deviation
        scaled_MK, scale_K = np.concatenate([scaled_MK, lead_M1], axis=1), np.append(scale_K, 1.0)
        leads = [*leads, width]
    scales, bounded_K = _list_scales(scale_K, leads), np.zeros(len(scale_K), dtype=np.bool_)
    bounded_K[free] = way.signs
    none_K, equal_K = np.zeros(len(scale_K)), np.zeros(len(scale_K))
    equal_K[free] = 1 / (deviation * len(free))
    families = [(scale, none_K, 1.0 if place == 0 else 1 / (len(scales) - 1)) for place, scale in enumerate(scales)]
    families += [(scales[0], mean * equal_K, 1 / len(way.means)) for mean in way.means]
    priors = [(strength, *family) for strength in STRENGTHS for family in families]
    log_P = np.array([log_evidence(scaled_MK, correct_M, strength, scale, mean) for strength, scale, mean, _ in priors])
    share_P = np.exp(log_P - log_P.max()) * np.array([weight for *_, weight in priors])
    share_P /= share_P.max()
    weight_K, bias, total = np.zeros(len(scale_K)), 0.0, 0.0
    for share, (strength, scale, mean, _) in zip(share_P, priors, strict=True):
        if share < NEGLIGIBLE:
            continue
        precision_K = 1 / (strength * np.maximum(scale, 1e-6) ** 2)
        of_K, of_bias = regression(scaled_MK, correct_M, precision_K, mean, bounded_K)
        weight_K, bias, total = weight_K + share * of_K, bias + share * of_bias, total + share
    weight_K, bias = weight_K / total, bias / total
    if way.equal_lead:
        lead, weight_K = weight_K[-1], weight_K[:-1]
        weight_K[free] += lead / (deviation * len(free))
    weight_K = weight_K * inverse_K
    return Logistic(weight_K, float(bias - weight_K @ mean_K))


def log_evidence(columns_MK: Float64s, correct_M: Bools, strength: float, scale_K: Float64s, mean_K: Float64s) -> float:
    """Return the log marginal likelihood of a prior with a mean, up to a constant (``trust.combining``)."""
    share = correct_M.mean()
    variance = share * (1 - share)
    rest_M = correct_M - share - variance * (columns_MK @ mean_K)
    by_K = scale_K * (strength * variance) ** 0.5
    lower_KK = np.linalg.cholesky(np.eye(len(by_K)) + columns_MK.T @ columns_MK * np.outer(by_K, by_K))
    fitted_K = np.linalg.solve(lower_KK, (columns_MK.T @ rest_M) * by_K)
    return float((fitted_K @ fitted_K - rest_M @ rest_M) / (2 * variance) - np.log(np.diag(lower_KK)).sum())


def regression(
    columns_MK: Float64s, correct_M: Bools, precision_K: Float64s, mean_K: Float64s, bounded_K: Bools
) -> tuple[Float64s, float]:
    """Fit a logistic regression under a normal prior, weights of ``bounded_K`` at least 0; return weights and bias."""
    deviation_K = precision_K**-0.5
    with_bias_MK = np.append(columns_MK * deviation_K, np.ones((len(columns_MK), 1)), axis=1)
    offset_M, precision = columns_MK @ mean_K, np.append(np.ones(len(mean_K)), 0.0)
    share = correct_M.mean()
    moved_K = np.append(np.zeros(len(mean_K)), np.log(share / (1 - share)))

    def loss(moved_K: Float64s) -> tuple[float, Float64s]:
        logit_M = with_bias_MK @ moved_K + offset_M
        slope_K = (expit(logit_M) - correct_M) @ with_bias_MK + precision * moved_K
        value = np.logaddexp(0, logit_M).sum() - logit_M[correct_M].sum() + (precision * moved_K**2).sum() / 2
        return float(value), slope_K

    for _ in range(50):  # Newton's method; each step is halved until the loss falls
        value, slope_K = loss(moved_K)
        if np.abs(slope_K).max() < 1e-6:
            break
        trust_M = expit(with_bias_MK @ moved_K + offset_M)
        curve_KK = (with_bias_MK * (trust_M * (1 - trust_M))[:, None]).T @ with_bias_MK + np.diag(precision)
        step_K = np.linalg.solve(curve_KK, slope_K)
        sizes = (size for size in 0.5 ** np.arange(20) if loss(moved_K - size * step_K)[0] < value)
        moved_K = moved_K - next(sizes, 0.0) * step_K
    least_K = np.where(bounded_K, -mean_K / deviation_K, -np.inf)
    if (moved_K[:-1] < least_K).any():
        bounds = [*((least, None) for least in least_K), (None, None)]
        start = np.maximum(moved_K, np.append(least_K, -np.inf))
        moved_K = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-9}).x
    return mean_K + deviation_K * moved_K[:-1], float(moved_K[-1])


def of_draw(found: Drawn, pool: LabelledRows, seed: int, ways: Sequence[str]) -> dict[str, Any]:
    """Return what is measured of each way on a draw."""
    constant, lines = float(found.correct_M.mean()), {}
    for name in ways:
        raw_N = combined(found, WAYS[name], seed)
        lines[name] = measured(Scored(raw_N, 1 / (1 + np.exp(-raw_N))), pool, constant)
    best = max(compute_auc_value(_pool_logits(signal, found), pool.correct_N) for signal in found.free)
    return {"best_free": best, "ways": lines}


def table(lines: Sequence[dict[str, Any]], ways: Sequence[str]) -> str:
    """Return a row a set and size, as Markdown; then the mean and the least difference of each way over the cells."""
    others = [way for way in ways if way != COMPARED]
    found = [f"| set, labelled rows | draws | any sign | less the best | {' | '.join(others)} |"]
    found.append("| --- |" + " ---: |" * (len(others) + 3))
    means: dict[str, list[float]] = {way: [] for way in others}

    def differences(draws: Sequence[dict[str, Any]], way: str, of: Callable[[dict[str, float]], float]) -> Float64s:
        return np.array([of(draw["ways"][way]) - of(draw["ways"][COMPARED]) for draw in draws])

    for name, size in dict.fromkeys((line["set"], line["size"]) for line in lines):
        draws = [line for line in lines if (line["set"], line["size"]) == (name, size)]
        own = np.array([draw["ways"][COMPARED]["auc"] for draw in draws])
        cells = [f"{own.mean():.4f}", f"{np.mean(own - [draw['best_free'] for draw in draws]):+.4f}"]
        for way in others:
            auc = differences(draws, way, lambda line: 1e4 * line["auc"])
            brier = differences(draws, way, lambda line: 1e4 * line["brier"]).mean()
            off = differences(draws, way, lambda line: 100 * abs(line.get("promise_less_right", 0.0))).mean()
            error = auc.std(ddof=1) / len(auc) ** 0.5 if len(auc) > 1 else np.nan
            cells.append(f"{auc.mean():+.0f} ± {error:.0f}, {brier:+.0f}, {off:+.1f}")
            means[way].append(float(auc.mean()))
        found.append(f"| {name}, {size} | {len(draws)} | {' | '.join(cells)} |")
    ends = [f"{np.mean(of):+.1f} (least {min(of):+.0f})" for of in means.values()]
    return "\n".join([*found, f"| mean of the cells | | | | {' | '.join(ends)} |"])


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/real"), help="where benchmarks.real keeps labels")
    parser.add_argument("--out", type=Path, default=Path("build/real-combinations.jsonl"))
    parser.add_argument("--sets", nargs="*", default=[*TASKS], choices=TASKS)
    parser.add_argument("--run", action="append", default=[], metavar="NAME=DIR", help="a finished run beside the sets")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 300, 1_000])
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=WAYS)
    parser.add_argument("--draws", type=int, default=10)
    given = parser.parse_args()
    ways = list(dict.fromkeys([COMPARED, *given.ways]))
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    known = {(line["set"], line["size"], line["draw"]) for line in lines}
    wanted = [(size, draw) for size in given.sizes for draw in range(given.draws)]
    directories = {name: given.work / name for name in given.sets}
    directories |= {name: Path(path) for name, _, path in (item.partition("=") for item in given.run)}
    for name, directory in directories.items():
        missing = [key for key in wanted if (name, *key) not in known]
        if not missing or not labelled(directory):
            continue
        (source, states), (pool, _) = (rows_of(directory, split) for split in ("source", "pool"))
        for size, draw in missing:
            found = columns_of(drawn(source, size, draw), pool, states, draw)
            lines.append({"set": name, "size": size, "draw": draw, **of_draw(found, pool, draw, ways)})
            with given.out.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    print(table([line for line in lines if line["set"] in directories and line["size"] in given.sizes], ways))


if __name__ == "__main__":
    main()
