import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy.stats import beta, binomtest
from sklearn.metrics import brier_score_loss, roc_auc_score

from curation import metrics


def _draw(n, seed=0, levels=None):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=n)
    if levels:
        logits = np.round(logits * levels) / levels
    trust = 1 / (1 + np.exp(-logits))
    return logits, trust, rng.random(n) < trust**1.5


@pytest.mark.parametrize("levels", [None, 8, 1])
@pytest.mark.parametrize("n", [20, 1000, 9000])
def test_auc_value_and_brier_equal_scikit_learn(n, levels):
    logits, trust, correct = _draw(n, seed=n, levels=levels)
    assert metrics.auc_value(logits, correct) == pytest.approx(roc_auc_score(correct, logits), abs=1e-12)
    assert metrics.auc(logits, correct).value == metrics.auc_value(logits, correct)
    assert metrics.brier(trust, correct).value == pytest.approx(brier_score_loss(correct, trust), abs=1e-12)


def test_auc_of_separated_constant_and_one_sided_scores():
    correct = np.array([False, False, True])
    assert metrics.auc_value([0.0, 1.0, 2.0], correct) == 1.0
    assert metrics.auc_value([2.0, 1.0, 0.0], correct) == 0.0
    assert metrics.auc_value([1.0, 1.0, 1.0], correct) == 0.5
    assert metrics.auc_value([-np.inf, 0.0, np.inf], correct) == 1.0
    for labels in (np.ones(3, bool), np.zeros(3, bool)):
        estimate = metrics.auc([0.0, 1.0, 2.0], labels)
        assert math.isnan(metrics.auc_value([0.0, 1.0, 2.0], labels))
        assert estimate.to_json() == {"value": None, "low": None, "high": None, "n": 3}


@pytest.mark.parametrize("levels", [None, 2])
def test_auc_interval_equals_a_naive_bootstrap(levels):
    scores, _, correct = _draw(300, seed=3, levels=levels)
    rng = np.random.default_rng(1)
    naive = []
    for _ in range(1500):
        rows = rng.integers(0, 300, 300)
        naive.append(metrics.auc_value(scores[rows], correct[rows]))
    low, high = np.quantile(naive, [0.025, 0.975])
    estimate = metrics.auc(scores, correct, resamples=4000)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.15 * (high - low))


def test_grouping_many_scores_leaves_the_interval(monkeypatch):
    scores, _, correct = _draw(12_000, seed=5)
    grouped = metrics.auc(scores, correct)
    monkeypatch.setattr(metrics, "_NUM_SCORE_CELLS", 12_000)
    exact = metrics.auc(scores, correct, resamples=500)
    width = exact.high - exact.low
    assert (grouped.low, grouped.high) == pytest.approx((exact.low, exact.high), abs=0.15 * width)


def test_auc_of_30000_rows_is_quick_and_seeded():
    scores, _, correct = _draw(30_000)
    start = time.perf_counter()
    first = metrics.auc(scores, correct, seed=4)
    assert time.perf_counter() - start < 10  # 0.7 s on a slow core
    assert first == metrics.auc(scores, correct, seed=4)
    assert first.low < first.value < first.high


def test_proportion_equals_scipy():
    for right, n in [(0, 10), (10, 10), (1, 3), (522, 6308), (63_080, 160_000)]:
        estimate = metrics.proportion(right, n)
        interval = binomtest(right, n).proportion_ci(confidence_level=0.95, method="exact")
        assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
        assert estimate.value == right / n
    assert metrics.proportion(3, 20).low == pytest.approx(beta.ppf(0.025, 3, 18))
    assert math.isnan(metrics.proportion(0, 0).value)
    with pytest.raises(ValueError, match="not between 0 and n"):
        metrics.proportion(4, 3)


def test_ece_and_reliability_equal_a_direct_loop():
    _, trust, correct = _draw(2000, seed=7)
    trust[:4] = [0.0, 1.0, 1 / 15, 14 / 15]
    total, rows = 0.0, []
    for b in range(15):
        inside = (trust > b / 15) & (trust <= (b + 1) / 15) | ((b == 0) & (trust == 0))
        if inside.any():
            total += inside.sum() / len(trust) * abs(correct[inside].mean() - trust[inside].mean())
            rows.append((inside.sum(), trust[inside].mean(), correct[inside].mean()))
    estimate = metrics.ece(trust, correct)
    assert estimate.value == pytest.approx(total, abs=1e-12)
    assert 0 <= estimate.low <= estimate.value <= estimate.high
    diagram = metrics.reliability(trust, correct)
    assert [(r.n, r.mean_trust, r.share_right) for r in diagram] == [pytest.approx(row) for row in rows]
    assert sum(r.n for r in diagram) == 2000


def test_reliability_leaves_empty_bins_out():
    (only,) = metrics.reliability([0.55, 0.6], [True, False], bins=2)
    assert (only.low, only.high, only.n, only.share_right) == (0.5, 1.0, 2, 0.5)
    assert json.dumps(only.to_json())


def test_brier_and_ece_intervals_equal_a_naive_bootstrap_of_rows():
    _, trust, correct = _draw(400, seed=9)
    rng = np.random.default_rng(2)
    eces, briers = [], []
    for _ in range(1500):
        rows = rng.integers(0, 400, 400)
        briers.append(np.mean((trust[rows] - correct[rows]) ** 2))
        bins = np.ceil(trust[rows] * 15).astype(int)
        eces.append(np.abs(np.bincount(bins, correct[rows] - trust[rows])).sum() / 400)
    brier, ece = metrics.brier(trust, correct), metrics.ece(trust, correct)
    low, high = np.quantile(briers, [0.025, 0.975])
    assert (brier.low, brier.high) == pytest.approx((low, high), abs=0.15 * (high - low))
    low, high = 2 * ece.value - np.quantile(eces, [0.975, 0.025])
    assert ece.low == pytest.approx(max(0, low), abs=0.2 * (high - low))
    assert ece.high == pytest.approx(max(high, ece.value), abs=0.2 * (high - low))


def test_intervals_cover_the_truth():
    population = _draw(400_000, seed=100)
    truths = {"auc": metrics.auc_value(population[0], population[2])}
    truths["brier"] = float(np.mean((population[1] - population[2]) ** 2))
    truths["share"] = float(population[2].mean())
    covered = dict.fromkeys(truths, 0)
    trials = 80
    for trial in range(trials):
        scores, trust, correct = _draw(300, seed=trial)
        estimates = {
            "auc": metrics.auc(scores, correct, seed=trial, resamples=200),
            "brier": metrics.brier(trust, correct, seed=trial),
            "share": metrics.proportion(int(correct.sum()), 300),
        }
        for name, estimate in estimates.items():
            covered[name] += estimate.low <= truths[name] <= estimate.high
    # 95 % nominal; below 0.875 of 80 trials has probability under 0.3 %
    assert all(count / trials >= 0.875 for count in covered.values()), covered


def test_purity_curve():
    correct = np.array([1, 1, 0, 1, 0, 0])
    curve = metrics.purity_curve(correct, [1, 3, 6])
    assert curve == [metrics.proportion(1, 1), metrics.proportion(2, 3), metrics.proportion(3, 6)]
    for point in (0, 7):
        with pytest.raises(ValueError, match=f"point {point} is not between 1 and the 6"):
            metrics.purity_curve(correct, [point])


def test_recovery():
    assert metrics.recovery(0.26, 0.109, 0.229) == pytest.approx((0.26 - 0.109) / 0.12)
    assert metrics.recovery(0.2, 0.0, 0.4) == pytest.approx(0.5)
    assert metrics.recovery(0.2, 0.3, 0.3) is None


@pytest.mark.parametrize(("first_only", "second_only"), [(0, 0), (5, 5), (9, 2), (2, 9), (1, 0), (400, 250)])
def test_paired_test_equals_scipy(first_only, second_only):
    first = np.array([True] * first_only + [False] * second_only + [True] * 30 + [False] * 40)
    second = np.array([False] * first_only + [True] * second_only + [True] * 30 + [False] * 40)
    test = metrics.paired_test(first, second)
    most, discordant = max(first_only, second_only), first_only + second_only
    expected = binomtest(most, discordant, 0.5, alternative="greater").pvalue if discordant else 1.0
    assert test.p_value == pytest.approx(expected, rel=1e-9)
    assert (test.num_first_only, test.num_second_only) == (first_only, second_only)
    assert test.better == ("tie" if first_only == second_only else "first" if first_only > second_only else "second")
    assert test.difference.value == pytest.approx(first.mean() - second.mean())
    assert test.difference.low <= test.difference.value <= test.difference.high
    assert json.loads(json.dumps(test.to_json()))["difference"]["n"] == len(first)


def test_paired_test_keeps_tiny_p_values():
    first, second = np.ones(1000, bool), np.zeros(1000, bool)
    assert metrics.paired_test(first, second).p_value == pytest.approx(2.0**-1000, rel=1e-9)


def test_paired_difference_covers_the_truth():
    rng = np.random.default_rng(0)
    shares = [0.15, 0.05, 0.3, 0.5]  # first only, second only, both, neither
    covered = 0
    for first_only, second_only, both, neither in rng.multinomial(120, shares, size=600):
        first = np.repeat([True, False, True, False], [first_only, second_only, both, neither])
        second = np.repeat([False, True, True, False], [first_only, second_only, both, neither])
        difference = metrics.paired_test(first, second).difference
        covered += difference.low <= 0.10 <= difference.high
    assert covered / 600 > 0.92


def test_no_rows_are_undefined_not_an_error():
    for estimate in (metrics.auc([], []), metrics.ece([], []), metrics.brier([], [])):
        assert math.isnan(estimate.value)
        assert estimate.n == 0
    assert metrics.reliability([], []) == []
    assert metrics.paired_test([], []).p_value == 1.0


def test_misuse_is_named():
    for call in (metrics.auc, metrics.auc_value, metrics.ece, metrics.brier, metrics.reliability):
        with pytest.raises(ValueError, match="lengths differ: 2 and 3"):
            call([0.1, 0.2], [True, False, True])
        with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
            call([0.1, np.nan], [True, False])
        with pytest.raises(ValueError, match="booleans"):
            call([0.1, 0.2], [2, 0])
    for call in (metrics.ece, metrics.brier, metrics.reliability):
        with pytest.raises(ValueError, match=r"range from 0\.5 to 1\.5"):
            call([0.5, 1.5], [True, False])
    with pytest.raises(ValueError, match="lengths differ"):
        metrics.paired_test([True], [True, False])


def test_importing_metrics_stays_light():
    heavy = "{'scipy', 'sklearn', 'torch', 'ray'}"
    code = f"import sys, curation.metrics, curation.selection.top_n; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
