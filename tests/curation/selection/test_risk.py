import math
import pickle

import numpy as np
import pytest
from scipy import stats

from benchmarks.risk_simulation import chess_like, simulate
from curation.errors import ConfigError, UserError
from curation.metrics import compute_proportion
from curation.selection.risk import calibrate
from curation.selection.risk.rules import (
    Kind,
    Rule,
    compute_exact_upper,
    compute_hoeffding_upper,
    compute_one_error_rows,
)
from tests import golden

RULES = Rule.__args__
KINDS = Kind.__args__
HOEFFDING = [rule for rule in RULES if rule != "fixed_sequence"]


def _draw(rng, num_rows, levels=None):
    """Rows whose score tells right from wrong; with ``levels``, scores that tie."""
    correct_N = rng.random(num_rows) < 0.5
    scores_N = rng.normal(size=num_rows) + 2.5 * correct_N
    return (scores_N if levels is None else np.round(scores_N * levels) / levels), correct_N


# Restatements, a row and a cut at a time.


def _tally(rows, keep):
    kept = [right for score, right in rows if score > -math.inf and keep(score)]
    return len(kept), sum(not right for right in kept)


def _passes_binomial(rows, keep, alpha, delta):
    kept, wrong = _tally(rows, keep)
    return kept > 0 and stats.binom.cdf(wrong, kept, alpha) <= delta


def _passes_hoeffding(rows, keep, alpha, level):
    kept, wrong = _tally(rows, keep)
    return kept > 0 and wrong / kept + math.sqrt(math.log(1 / level) / (2 * kept)) <= alpha


def _rank(percent, num_rows):
    return max(1, -(-percent * num_rows // 100))


def _pool_quantile(pool, percent):
    selectable = sorted((score for score in pool if score > -math.inf), reverse=True)
    return selectable[min(_rank(percent, len(pool)), len(selectable)) - 1]


def _first_percent(num_rows, alpha, delta):
    least = next(n for n in range(2, 100_000) if stats.binom.cdf(1, n, alpha) <= delta)
    return next((percent for percent in range(5, 100) if percent * num_rows >= 100 * least), 100)


def _fixed_sequence(rows, pool, alpha, delta, kind):
    chosen = None
    ranked = [*sorted((score for score, _ in rows), reverse=True), -math.inf]
    for percent in range(_first_percent(len(rows), alpha, delta), 101):
        if kind == "threshold":
            threshold = _pool_quantile(pool, percent)
            passes = _passes_binomial(rows, lambda score, t=threshold: score >= t, alpha, delta)
        else:
            boundary = ranked[_rank(percent, len(rows))]
            threshold = min((score for score in pool if score > boundary), default=math.inf)
            if _tally(rows, lambda score, b=boundary: score > b)[0] == 0:
                continue
            passes = _passes_binomial(rows, lambda score, b=boundary: score > b, alpha, delta)
        if not passes:
            break
        chosen = threshold
    return chosen


def _hoeffding(rows, pool, alpha, delta, kind, rule):
    distinct = {score for score, _ in rows if score > -math.inf}
    level = delta
    if rule == "hoeffding_bonferroni":
        level = delta / (len(distinct) if kind == "threshold" else len(rows))
    if rule == "hoeffding_grid":
        if kind == "threshold":
            distinct = {_pool_quantile(pool, percent) for percent in range(1, 101)}
        else:
            ranked = sorted((score for score, _ in rows), reverse=True)
            distinct = {ranked[_rank(percent, len(rows)) - 1] for percent in range(1, 101)} - {-math.inf}
        level = delta / len(distinct)
    passing = [t for t in distinct if _passes_hoeffding(rows, lambda score, t=t: score >= t, alpha, level)]
    return min(passing, default=None)


def _split(rows, alpha, delta, kind, seed):
    order = np.random.default_rng(seed).permutation(len(rows))
    first, second = ([rows[place] for place in half] for half in (order[: len(rows) // 2], order[len(rows) // 2 :]))
    threshold = _hoeffding(first, None, alpha, delta, kind, "hoeffding")
    if threshold is None:
        return None
    if kind == "top_k":
        num_kept, _ = _tally(first, lambda score: score >= threshold)
        threshold = sorted((score for score, _ in second), reverse=True)[num_kept - 1]
    return threshold if _passes_hoeffding(second, lambda score: score >= threshold, alpha, delta) else None


def _restated(rows, pool, alpha, delta, rule, kind, seed):
    if rule == "fixed_sequence":
        return _fixed_sequence(rows, pool, alpha, delta, kind)
    if rule == "hoeffding_split":
        return _split(rows, alpha, delta, kind, seed)
    return _hoeffding(rows, pool, alpha, delta, kind, rule)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_risk_rule_equals_its_restatement(rule, kind):
    rng = np.random.default_rng(0)
    num_feasible = 0
    for case in range(40):
        num_rows = int(rng.integers(1, 400))
        scores_M, correct_M = _draw(rng, num_rows, levels=[None, 2, 10][case % 3])
        scores_M[rng.random(num_rows) < 0.1] = -np.inf
        pool_N, _ = _draw(rng, int(rng.integers(5, 300)), levels=[None, 2, 10][case % 3])
        pool_N[rng.random(len(pool_N)) < 0.1] = [-np.inf, np.nan][case % 2]
        alpha, delta = rng.choice([0.1, 0.2, 0.5]), rng.choice([0.05, 0.1, 0.3])
        cut = calibrate(scores_M, correct_M, pool_N, alpha=alpha, delta=delta, rule=rule, kind=kind, seed=case)
        rows = list(zip(scores_M.tolist(), correct_M.tolist(), strict=True))
        assert cut.threshold == _restated(rows, pool_N.tolist(), alpha, delta, rule, kind, case)
        assert (cut.bound <= alpha) == (cut.threshold is not None)
        assert cut.needed is None or cut.needed > num_rows
        num_feasible += cut.threshold is not None
    assert 3 <= num_feasible <= 37


def test_risk_bounds_equal_scipy():
    kept_G = np.array([1, 1, 5, 30, 30, 1000])
    wrong_G = np.array([0, 1, 0, 3, 30, 77])
    for delta in (0.025, 0.1, 0.7):
        bound_G = compute_exact_upper(kept_G, wrong_G, delta)
        for kept, wrong, bound in zip(kept_G, wrong_G, bound_G, strict=True):
            test = stats.binomtest(wrong, kept, alternative="less")
            assert bound == pytest.approx(test.proportion_ci(1 - delta, method="exact").high, abs=1e-12)
    assert compute_exact_upper(kept_G, wrong_G, 0.025)[3] == pytest.approx(compute_proportion(3, 30).high)
    assert compute_hoeffding_upper(np.array([200, 0]), np.array([10, 0]), math.exp(-1)).tolist() == [0.1, math.inf]


def test_risk_bound_agrees_with_the_binomial_test():
    kept_G = np.repeat(np.arange(1, 60), 60)
    wrong_G = np.minimum(np.tile(np.arange(60), 59), kept_G)
    for alpha, delta in ((0.1, 0.1), (0.5, 0.05)):
        rejected_G = stats.binom.cdf(wrong_G, kept_G, alpha) <= delta
        assert np.array_equal(compute_exact_upper(kept_G, wrong_G, delta) <= alpha, rejected_G)


def test_risk_sequence_starts_where_one_error_can_be_borne():
    for alpha, delta in ((0.1, 0.1), (0.5, 0.1), (0.01, 0.3), (0.9, 0.9)):
        rows = compute_one_error_rows(alpha, delta)
        assert stats.binom.cdf(1, rows, alpha) <= delta
        assert rows == 2 or stats.binom.cdf(1, rows - 1, alpha) > delta
    assert compute_one_error_rows(0.1, 0.1) == 38
    assert compute_one_error_rows(1e-9, 1e-6) > 1e9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_risk_cut_grows_with_alpha_and_delta(rule, kind):
    rng = np.random.default_rng(1)
    scores_M, correct_M = _draw(rng, 4000)
    pool_N, _ = _draw(rng, 1000)

    def kept(alpha, delta):
        cut = calibrate(scores_M, correct_M, pool_N, alpha=alpha, delta=delta, rule=rule, kind=kind)
        return 0 if cut.threshold is None else int((pool_N >= cut.threshold).sum())

    # a split may fail its check at any alpha; the sequence starts at the same share in all of these
    if rule != "hoeffding_split":
        by_alpha = [kept(alpha, 0.1) for alpha in (0.05, 0.1, 0.15, 0.2, 0.3, 0.45)]
        by_delta = [kept(0.2, delta) for delta in (0.001, 0.01, 0.1, 0.5, 0.9)]
        assert by_alpha == sorted(by_alpha) and by_alpha[-1] > by_alpha[0]
        assert by_delta == sorted(by_delta) and by_delta[-1] > by_delta[0]
        assert kept(0.7, 0.1) == 1000


def test_risk_infeasible_says_how_many_rows_would_do():
    scores_M, pool_N = np.arange(10.0), np.arange(100.0)
    cut = calibrate(scores_M, np.ones(10, bool), pool_N, alpha=0.1, delta=0.1, kind="top_k")
    assert cut.threshold is None
    assert cut.needed == 22 == math.ceil(math.log(0.1) / math.log(0.9))
    assert cut.needed_basis == "zero-error minimum of the best 100%, where the sequence would start"
    assert "nothing is selected" in cut.guarantee

    enough = calibrate(np.arange(22.0), np.ones(22, bool), pool_N, alpha=0.1, delta=0.1, kind="top_k")
    assert enough.threshold == 0 and enough.num_kept == 22 and enough.needed is None and enough.needed_basis is None

    wrong = calibrate(scores_M, np.zeros(10, bool), pool_N, alpha=0.1, delta=0.1)
    assert wrong.threshold is None and wrong.needed is None and wrong.noise == 1
    assert "too noisy" in wrong.needed_basis

    unreadable = calibrate(np.full(50, -np.inf), np.ones(50, bool), pool_N, alpha=0.1, delta=0.1)
    assert unreadable.threshold is None and unreadable.num_kept == 0 and unreadable.noise is None
    for rule in HOEFFDING:
        assert calibrate(np.full(50, -np.inf), np.ones(50, bool), pool_N, alpha=0.1, delta=0.1, rule=rule).num_kept == 0


@pytest.mark.parametrize("rule", ["fixed_sequence", "hoeffding", "hoeffding_grid"])
def test_risk_needed_rows_suffice_at_the_same_noise(rule):
    rng = np.random.default_rng(2)
    scores_M, correct_M = np.repeat(np.arange(20.0), 3), np.ones(60, bool)
    correct_M[:4] = False  # those of the lowest scores
    pool_N = rng.permutation(np.repeat(np.arange(20.0), 10))
    cut = calibrate(scores_M, correct_M, pool_N, alpha=0.1, delta=0.01, rule=rule)
    assert cut.threshold is None
    times = math.ceil(cut.needed / 60)
    more = calibrate(np.tile(scores_M, times), np.tile(correct_M, times), pool_N, alpha=0.1, delta=0.01, rule=rule)
    assert more.threshold is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_risk_pool_with_one_score(rule, kind):
    correct_M = np.arange(2000) % 20 > 0  # 5 % noise
    cut = calibrate(np.ones(2000), correct_M, np.ones(7), alpha=0.1, delta=0.1, rule=rule, kind=kind)
    assert cut.threshold == 1.0
    assert cut.noise == pytest.approx(0.05, abs=0.01)
    assert cut.num_kept == (1000 if rule == "hoeffding_split" else 2000)
    refused = calibrate(np.ones(2000), correct_M, np.ones(7), alpha=0.05, delta=0.1, rule=rule, kind=kind)
    assert refused.threshold is None and refused.needed is None


@pytest.mark.parametrize("kind", KINDS)
def test_risk_saturated_scores_are_cut_below_their_ties(kind):
    rng = np.random.default_rng(3)
    scores_M = np.minimum(rng.normal(size=2000), 0.5)  # 31 % at the highest score
    correct_M = scores_M > -0.2
    cut = calibrate(scores_M, correct_M, np.minimum(rng.normal(size=999), 0.5), alpha=0.1, delta=0.1, kind=kind)
    assert -0.5 < cut.threshold < -0.2
    assert cut.num_kept > 1000 and 0 < cut.noise < cut.bound <= 0.1


def test_risk_top_k_boundary_row_is_neither_evidence_nor_selected_even_in_float32():
    rng = np.random.default_rng(4)
    scores_M = rng.normal(size=100).astype(np.float32)
    pool_N = np.concatenate([scores_M, rng.normal(size=50).astype(np.float32)])
    cut = calibrate(scores_M, np.ones(100, bool), pool_N, alpha=0.5, delta=0.1, kind="top_k")
    assert cut.num_kept == 100 and cut.threshold == pool_N.min()
    correct_M = scores_M >= np.sort(scores_M)[-30]  # only the best 30
    cut = calibrate(scores_M, correct_M, pool_N, alpha=0.5, delta=0.1, kind="top_k")
    assert 30 < cut.num_kept < 60
    boundary = np.sort(scores_M)[-cut.num_kept - 1]
    assert np.array_equal(pool_N >= cut.threshold, pool_N > boundary)  # compares in float32


def test_risk_pool_rows_without_a_score_count_in_shares():
    rng = np.random.default_rng(5)
    scores_M, correct_M = _draw(rng, 3000)
    pool_N = rng.normal(size=1000) + 1
    holes_N = np.concatenate([pool_N, np.full(500, np.nan), np.full(500, -np.inf)])
    whole, half = (calibrate(scores_M, correct_M, pool, alpha=0.9, delta=0.1).threshold for pool in (pool_N, holes_N))
    assert whole == half == pool_N.min()


def test_risk_order_of_rows_matters_to_the_split_only_and_seeds_to_it_alone():
    rng = np.random.default_rng(6)
    scores_M, correct_M = _draw(rng, 1500, levels=20)
    pool_N, _ = _draw(rng, 500)
    order_M, order_N = rng.permutation(1500), rng.permutation(500)
    for kind in KINDS:
        for rule in RULES:
            cuts = [
                calibrate(scores_M, correct_M, pool_N, alpha=0.2, delta=0.1, rule=rule, kind=kind, seed=seed)
                for seed in (0, 0, 1, 2, 3)
            ]
            shuffled = calibrate(
                scores_M[order_M], correct_M[order_M], pool_N[order_N], alpha=0.2, delta=0.1, rule=rule, kind=kind
            )
            assert cuts[0] == cuts[1]
            assert (len(set(cuts)) > 1) == (rule == "hoeffding_split")
            assert rule == "hoeffding_split" or shuffled == cuts[0]


@pytest.mark.parametrize("name", ["alpha", "delta"])
@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan, math.inf])
def test_risk_alpha_and_delta_are_between_0_and_1(name, value):
    with pytest.raises(ConfigError, match=rf"{name}: .* not a share between 0 and 1"):
        calibrate([0.5], [True], [0.5], **({"alpha": 0.1, "delta": 0.1} | {name: value}))


@pytest.mark.parametrize(
    ("scores", "correct", "pool", "message"),
    [
        ([], [], [1.0], "there are none"),
        ([1.0, 2.0], [True], [1.0], r"scores \(2,\) and correctness \(1,\)"),
        ([[1.0]], [[True]], [1.0], "not two columns"),
        ([1.0, math.nan], [True, False], [1.0], "1 scores are NaN"),
        ([1.0, 2.0], [1, 0], [1.0], "not bool"),
        ([1.0, 2.0], [1.0, 0.5], [1.0], "not bool"),
        ([1.0], [True], [], "no row of the pool has a score"),
        ([1.0], [True], [math.nan, -math.inf], "no row of the pool has a score"),
        ([1.0], [True], [[1.0]], "no row of the pool has a score"),
    ],
)
def test_risk_refuses_bad_rows(scores, correct, pool, message):
    with pytest.raises(UserError, match=message):
        calibrate(np.array(scores), np.array(correct, dtype=None if correct else bool), pool, alpha=0.1, delta=0.1)


def test_risk_refuses_unknown_rules_and_kinds():
    with pytest.raises(ConfigError, match="rule: 'chernoff' is not one of fixed_sequence, hoeffding"):
        calibrate([1.0], [True], [1.0], alpha=0.1, delta=0.1, rule="chernoff")
    with pytest.raises(ConfigError, match="kind: 'share' is not one of threshold, top_k"):
        calibrate([1.0], [True], [1.0], alpha=0.1, delta=0.1, kind="share")


def test_risk_cut_pickles_and_names_its_guarantee():
    scores_M, correct_M = _draw(np.random.default_rng(7), 3000)
    texts = set()
    for rule in RULES:
        cut = calibrate(scores_M, correct_M, scores_M, alpha=0.3, delta=0.1, rule=rule)
        assert pickle.loads(pickle.dumps(cut)) == cut
        assert "at most 0.3 with probability at least 0.9" in cut.guarantee
        assert "exchangeable" in cut.guarantee
        texts.add(cut.guarantee)
    assert len(texts) == len(RULES)


# Guarantees, by simulation.


def _violations(draw, noise, *, alpha, num_rows, num_runs, rule="fixed_sequence", kind="threshold"):
    """In how many runs something is selected whose noise is above alpha, at delta = 0.1."""
    count = 0
    for run in range(num_runs):
        rng = np.random.default_rng((8, run))
        scores_M, correct_M = draw(rng, num_rows)
        pool_N, _ = draw(rng, 1000)
        cut = calibrate(scores_M, correct_M, pool_N, alpha=alpha, delta=0.1, rule=rule, kind=kind, seed=run)
        count += cut.threshold is not None and noise(cut.threshold) > alpha
    return count


def _coin(noise):
    """Scores that say nothing of correctness."""
    return lambda rng, num_rows: (rng.normal(size=num_rows), rng.random(num_rows) >= noise)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("alpha", "num_rows"), [(0.1, 300), (0.1, 3000), (0.5, 300), (0.5, 3000)])
def test_risk_of_our_rule_holds_for_uninformative_scores(alpha, num_rows, kind):
    noise = alpha + 1e-6
    count = _violations(_coin(noise), lambda t: noise, alpha=alpha, num_rows=num_rows, num_runs=400, kind=kind)
    assert compute_proportion(count, 400).low <= 0.1
    assert count > 0  # it is a test of the level, not of a rule that refuses everything


def test_risk_simulations_are_those_on_record():
    tallies = simulate(chess_like(1.25), 0.1, 3_000, 20, 0)
    golden.compare("risk", {f"{kind}.{rule}": vars(tally) for (rule, kind), tally in tallies.items()})


def test_risk_of_the_uncorrected_rule_breaks_at_alpha_one_half():
    settings = {"alpha": 0.5, "num_rows": 3000, "num_runs": 300}
    noise = 0.5 + 1e-6
    uncorrected = _violations(_coin(noise), lambda t: noise, rule="hoeffding", **settings)
    assert compute_proportion(uncorrected, 300).low > 0.1
    for rule in ("hoeffding_bonferroni", "hoeffding_grid", "hoeffding_split"):
        assert _violations(_coin(noise), lambda t: noise, rule=rule, **settings) < 15


@pytest.mark.parametrize(
    "noise_by_level",
    [
        pytest.param([0.29, 0.29, 0.29, 0.34, 0.9, 0.9, 0.9, 0.9], id="ties"),
        pytest.param([0.2, 0.42, 0.25, 0.36, 0.9, 0.9, 0.9, 0.9], id="crosses alpha three times"),
    ],
)
@pytest.mark.parametrize("num_rows", [300, 3000])
def test_risk_of_our_rule_holds_for_ties_and_any_shape_of_noise(noise_by_level, num_rows):
    """Eight scores, 0 the best, -7 the worst."""
    noise_L = np.array(noise_by_level)

    def draw(rng, num_rows):
        level_N = rng.integers(0, 8, num_rows)
        return -level_N.astype(float), rng.random(num_rows) >= noise_L[level_N]

    count = _violations(
        draw, lambda threshold: noise_L[: 1 - int(threshold)].mean(), alpha=0.3, num_rows=num_rows, num_runs=400
    )
    assert count > 0
    assert compute_proportion(count, 400).low <= 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_risk_of_our_rule_keeps_at_least_what_the_uncorrected_one_keeps(kind):
    shares = {"fixed_sequence": [], "hoeffding": []}
    for run in range(60):
        rng = np.random.default_rng((9, run))
        scores_M, correct_M = _draw(rng, 3000)
        pool_N, _ = _draw(rng, 1000)
        for rule, kept in shares.items():
            cut = calibrate(scores_M, correct_M, pool_N, alpha=0.1, delta=0.1, rule=rule, kind=kind)
            kept.append(0 if cut.threshold is None else np.mean(pool_N >= cut.threshold))
    assert np.mean(shares["fixed_sequence"]) > np.mean(shares["hoeffding"]) > 0.2
