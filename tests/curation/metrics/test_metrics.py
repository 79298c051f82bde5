import math
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy.stats import beta, binomtest, sem, t
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score

from benchmarks.verdict_intervals import INTERVALS, coverage
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
    assert metrics.compute_auc_value(logits, correct) == pytest.approx(roc_auc_score(correct, logits), abs=1e-12)
    assert metrics.auc(logits, correct).value == metrics.compute_auc_value(logits, correct)
    assert metrics.brier(trust, correct).value == pytest.approx(brier_score_loss(correct, trust), abs=1e-12)


def test_purity_of_the_first_rows_is_their_share_of_right_ones():
    correct = np.array([True, False, True, True, False, False, True, False])
    shares = [metrics.compute_proportion(sum(correct[:n]), n) for n in range(1, 9)]
    assert metrics.compute_top_purities(correct, range(1, 9)) == shares
    for point in (0, 9):
        with pytest.raises(ValueError, match=f"point {point} is not between 1 and the 8"):
            metrics.compute_top_purities(correct, [point])


def test_auc_of_separated_constant_and_one_sided_scores():
    correct = np.array([False, False, True])
    assert metrics.compute_auc_value([0.0, 1.0, 2.0], correct) == 1.0
    assert metrics.compute_auc_value([2.0, 1.0, 0.0], correct) == 0.0
    assert metrics.compute_auc_value([1.0, 1.0, 1.0], correct) == 0.5
    assert metrics.compute_auc_value([-np.inf, 0.0, np.inf], correct) == 1.0
    for labels in (np.ones(3, bool), np.zeros(3, bool)):
        estimate = metrics.auc([0.0, 1.0, 2.0], labels)
        assert math.isnan(metrics.compute_auc_value([0.0, 1.0, 2.0], labels))
        assert estimate.to_json() == {"value": None, "low": None, "high": None, "n": 3}


@pytest.mark.parametrize("levels", [None, 2])
def test_auc_interval_is_about_that_of_a_naive_bootstrap_where_rows_are_many(levels):
    scores, _, correct = _draw(900, seed=3, levels=levels)
    rng = np.random.default_rng(1)
    naive = []
    for _ in range(1500):
        rows = rng.integers(0, 900, 900)
        naive.append(metrics.compute_auc_value(scores[rows], correct[rows]))
    low, high = np.quantile(naive, [0.025, 0.975])
    estimate = metrics.auc(scores, correct)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.15 * (high - low))


@pytest.mark.parametrize("levels", [None, 2])
def test_auc_interval_equals_one_by_pairs_of_rows(levels):
    """DeLong's variance from the matrix of all pairs, and the interval from SciPy's binomial quantiles."""
    scores, _, correct = _draw(90, seed=6, levels=levels)
    right, wrong = scores[correct], scores[~correct]
    wins = (right[:, None] > wrong) + 0.5 * (right[:, None] == wrong)
    value, m, n = wins.mean(), len(right), len(wrong)
    delong = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
    # Hanley and McNeil 1982 with both counts replaced by their mean in the two terms of pairs that share a row
    hanley = (value * (1 - value) + ((m + n) / 2 - 1) * (q1 - value**2 + q2 - value**2)) / (m * n)
    known = min(m, n) - 1
    rows = value * (1 - value) / ((known * delong + 2.5 * hanley) / (known + 2.5))
    estimate = metrics.auc(scores, correct)
    assert estimate.value == pytest.approx(value, abs=1e-12)
    assert estimate.low == pytest.approx(beta.ppf(0.025, value * rows, (1 - value) * rows + 1), abs=1e-9)
    assert estimate.high == pytest.approx(beta.ppf(0.975, value * rows + 1, (1 - value) * rows), abs=1e-9)


def test_auc_of_one_wrong_row_and_of_equal_scores_has_an_interval():
    lone = metrics.auc(np.arange(50.0), np.arange(50) != 20)  # DeLong's variance is unknown
    assert lone.low < 0.2 < lone.value < 0.95 < lone.high
    tied = metrics.auc(np.zeros(60), np.arange(60) < 30)
    assert tied.value == 0.5 and 0.4 < tied.low < 0.48 and 0.52 < tied.high < 0.6


@pytest.mark.parametrize("kind", [kind for kind in INTERVALS if "users" not in kind])
def test_auc_interval_of_few_wrong_rows_holds_the_truth(kind):
    found = coverage(kind, 1_500, seed=2)  # standard error .006
    assert 0.92 <= found.holds <= 0.98
    assert found.above <= 0.065  # a percentile bootstrap: .07 to .14


def test_auc_of_a_million_rows_is_quick():
    scores, _, correct = _draw(1_000_000)
    start = time.perf_counter()
    found = metrics.auc(scores, correct)
    assert time.perf_counter() - start < 10  # 0.3 s
    assert found.low < found.value < found.high


def test_proportion_equals_scipy():
    for right, n in [(0, 10), (10, 10), (1, 3), (522, 6308), (63_080, 160_000)]:
        estimate = metrics.compute_proportion(right, n)
        interval = binomtest(right, n).proportion_ci(confidence_level=0.95, method="exact")
        assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
        assert estimate.value == right / n
    assert metrics.compute_proportion(3, 20).low == pytest.approx(beta.ppf(0.025, 3, 18))
    assert math.isnan(metrics.compute_proportion(0, 0).value)
    with pytest.raises(ValueError, match="not between 0 and n"):
        metrics.compute_proportion(4, 3)


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
    diagram = metrics.compute_reliability(trust, correct)
    assert [(r.share_right.n, r.mean_trust, r.share_right.value) for r in diagram] == [
        pytest.approx(row) for row in rows
    ]
    assert sum(r.share_right.n for r in diagram) == 2000


def test_reliability_leaves_empty_bins_out():
    (only,) = metrics.compute_reliability([0.56, 0.58], [True, False])
    assert (only.low, only.high, only.share_right.n, only.share_right.value) == (8 / 15, 9 / 15, 2, 0.5)


def test_brier_interval_equals_a_naive_bootstrap_of_rows():
    _, trust, correct = _draw(400, seed=9)
    rng = np.random.default_rng(2)
    naive = []
    for _ in range(1500):
        rows = rng.integers(0, 400, 400)
        naive.append(np.mean((trust[rows] - correct[rows]) ** 2))
    low, high = np.quantile(naive, [0.025, 0.975])
    estimate = metrics.brier(trust, correct)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.15 * (high - low))


@pytest.mark.long
def test_intervals_cover_the_truth():
    population = _draw(400_000, seed=100)
    truths = {"auc": metrics.compute_auc_value(population[0], population[2])}
    truths["brier"] = float(np.mean((population[1] - population[2]) ** 2))
    truths["share"] = float(population[2].mean())
    covered = dict.fromkeys(truths, 0)
    trials = 80
    for trial in range(trials):
        scores, trust, correct = _draw(300, seed=trial)
        estimates = {
            "auc": metrics.auc(scores, correct),
            "brier": metrics.brier(trust, correct, seed=trial),
            "share": metrics.compute_proportion(int(correct.sum()), 300),
        }
        for name, estimate in estimates.items():
            covered[name] += estimate.low <= truths[name] <= estimate.high
    # 95 % nominal; below 0.875 of 80 trials has probability under 0.3 %
    assert all(count / trials >= 0.875 for count in covered.values()), covered


@pytest.mark.parametrize("num_right", [1, 3])
def test_auc_of_separated_classes_has_an_exact_bound(num_right):
    correct = np.arange(9) < num_right
    perfect, inverted = metrics.auc(-np.arange(9.0), correct), metrics.auc(np.arange(9.0), correct)
    # As many concordant pairs without a common row as the rarer class has rows.
    expected = binomtest(num_right, num_right).proportion_ci(confidence_level=0.95, method="exact")
    assert (perfect.low, perfect.value, perfect.high) == pytest.approx((expected.low, 1.0, 1.0))
    assert (inverted.low, inverted.value, inverted.high) == pytest.approx((0.0, 0.0, 1 - expected.low))


def _binned(trust, correct, bins):
    """(rows, mean trust, share right) of each bin that has rows, by a direct loop."""
    edges = [b / bins for b in range(1, bins)]
    found = []
    for b in range(bins):
        low, high = ([-math.inf, *edges][b], [*edges, math.inf][b])
        inside = [i for i, t in enumerate(trust) if low < t <= high]
        if inside:
            found.append((len(inside), sum(trust[i] for i in inside), sum(bool(correct[i]) for i in inside)))
    return [(n, total / n, right / n) for n, total, right in found]


DEGENERATE = {
    "one row": ([0.7], [True]),
    "all right": ([0.2, 0.9, 0.9, 0.4], [True] * 4),
    "all wrong": ([0.2, 0.9, 0.9, 0.4], [False] * 4),
    "equal scores": ([0.3] * 40, [True, False] * 20),
    "zeros and ones": ([0.0] * 20 + [1.0] * 25, [True, False, False] * 15),
    "ties": ([0.1, 0.1, 0.5, 0.5, 0.5, 0.9] * 10, [True, False, True] * 20),
}


@pytest.mark.parametrize("rows", [*DEGENERATE, "random"])
def test_ece_reliability_and_brier_equal_direct_loops(rows):
    trust, correct = DEGENERATE[rows] if rows in DEGENERATE else _draw(333, seed=2, levels=20)[1:]
    trust, correct = np.array(trust), np.array(correct)
    found, n = _binned(trust, correct, metrics.NUM_BINS), len(trust)
    diagram = metrics.compute_reliability(trust, correct)
    assert [(r.share_right.n, r.mean_trust, r.share_right.value) for r in diagram] == [
        pytest.approx(row) for row in found
    ]
    assert all(r.low <= r.mean_trust <= r.high + 1e-12 for r in diagram)
    calibration = metrics.ece(trust, correct)
    assert calibration.value == pytest.approx(sum(m / n * abs(f - o) for m, f, o in found), abs=1e-12)
    assert 0 <= calibration.low <= calibration.value <= calibration.high <= 1
    score = metrics.brier(trust, correct)
    assert score.value == pytest.approx(brier_score_loss(correct, trust, labels=[False, True]), abs=1e-12)
    assert score.low - 1e-12 <= score.value <= score.high + 1e-12 and score.n == n


def test_bins_equal_those_of_scikit_learn():
    _, trust, correct = _draw(1500, seed=8)
    right, mean = calibration_curve(correct, trust, n_bins=15, strategy="uniform")
    diagram = metrics.compute_reliability(trust, correct)
    assert [r.share_right.value for r in diagram] == pytest.approx(right)
    assert [r.mean_trust for r in diagram] == pytest.approx(mean)


@pytest.mark.long
def test_calibration_intervals_cover_the_truth():
    """Of perfect trust, of trust a little off and of trust far off; the bias of the estimate must not hide it."""

    def draw(n, seed, slope):
        rng = np.random.default_rng(seed)
        logits = 1.5 * rng.normal(size=n)
        share = 1 / (1 + np.exp(-slope * logits))
        return 1 / (1 + np.exp(-logits)), share, rng.random(n) < share

    trials = 20
    for slope in (1.0, 0.85, 0.4):
        big, share, _ = draw(200_000, 999, slope)
        covered = 0
        for trial in range(trials):
            trust, _, correct = draw(400, trial, slope)
            diagram = metrics.compute_reliability(trust, correct)
            bin_N = np.searchsorted([r.high for r in diagram[:-1]], big)
            m = np.bincount(bin_N)
            f, o = np.bincount(bin_N, big) / m, np.bincount(bin_N, share) / m
            estimate = metrics.ece(trust, correct)
            covered += estimate.low <= m @ abs(f - o) / len(big) <= estimate.high
        # 95 % nominal; below 16 of 20 has probability under 0.3 %
        assert covered >= 16, (slope, covered)


def test_over_seeds_equals_scipy():
    values = [0.31, 0.35, 0.30, 0.36, 0.33]
    estimate = metrics.average_over_seeds(values)
    low, high = t.interval(0.95, 4, loc=np.mean(values), scale=sem(values))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((np.mean(values), low, high))
    assert estimate.n == 5
    one = metrics.average_over_seeds([0.4])
    assert one.to_json() == {"value": 0.4, "low": None, "high": None, "n": 1}
    assert math.isnan(metrics.average_over_seeds([]).value)
    assert metrics.average_over_seeds([0.4, 0.4]).low == pytest.approx(0.4)
    with pytest.raises(ValueError, match="1 of 2 runs have no finite value"):
        metrics.average_over_seeds([0.4, math.nan])


def test_no_rows_are_undefined_not_an_error():
    for estimate in (metrics.auc([], []), metrics.ece([], []), metrics.brier([], [])):
        assert math.isnan(estimate.value)
        assert estimate.n == 0
    assert metrics.compute_reliability([], []) == []


def test_misuse_is_named():
    calibration = (metrics.ece, metrics.brier, metrics.compute_reliability)
    for call in (metrics.auc, metrics.compute_auc_value, *calibration):
        with pytest.raises(ValueError, match="lengths differ: 2 and 3"):
            call([0.1, 0.2], [True, False, True])
        with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
            call([0.1, np.nan], [True, False])
        with pytest.raises(ValueError, match="booleans"):
            call([0.1, 0.2], [2, 0])
    for call in calibration:
        with pytest.raises(ValueError, match=r"range from 0\.5 to 1\.5"):
            call([0.5, 1.5], [True, False])


def test_importing_metrics_stays_light():
    heavy = "{'scipy.special', 'scipy.stats', 'sklearn', 'torch', 'ray'}"  # scipy itself loads its parts when used
    modules = "curation.metrics, curation.metrics.shift, curation.selection.top_n"
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
