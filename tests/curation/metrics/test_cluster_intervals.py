"""Intervals of rows in clusters: against closed forms, pairs counted one by one, a jackknife and draws."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta, norm, t

from benchmarks.verdict_intervals import INTERVALS, coverage
from benchmarks.verdict_pools import fitted_on_users
from curation import metrics
from curation.domains.grading import Graded
from curation.metrics.calibration import resample
from curation.metrics.estimates import compute_inflation
from curation.metrics.ranking import compute_influence, compute_placements
from curation.report.by_difficulty import compute_accuracy_bins, compute_purity_bins
from curation.report.evidence import measure_quality, predict_purity
from curation.report.rows import GradedRows

ROWWISE = ("share right", "accuracy", "difference")
"""The estimates whose intervals are clearly too narrow where they count rows."""
RNG = np.random.default_rng(0)
CLUSTER_N = RNG.integers(0, 25, 400)
CORRECT_N = RNG.random(400) < norm.cdf(0.4 + RNG.normal(size=25)[CLUSTER_N])
SCORE_N = np.round(RNG.normal(size=400) + CORRECT_N + 0.5 * RNG.normal(size=25)[CLUSTER_N], 1)  # with ties


def ratio(effective: float, confidence: float = 0.95) -> float:
    quantile = (1 + confidence) / 2
    return float((t.ppf(quantile, effective - 1) / norm.ppf(quantile)) ** 2)


def test_rows_that_are_their_own_clusters_are_as_wide_as_a_t_interval() -> None:
    values_N = RNG.normal(size=40)
    found = compute_inflation(values_N - values_N.mean(), np.arange(40))
    assert found == pytest.approx(40 / 39 * ratio(40)) and found < 1.12
    assert compute_inflation(values_N, None) == 1.0
    assert math.isinf(compute_inflation(values_N, np.zeros(40, dtype=np.int64)))


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_a_share_has_the_interval_of_korn_and_graubard(confidence: float) -> None:
    share = CORRECT_N.mean()
    sums = [(CORRECT_N[c == CLUSTER_N] - share).sum() for c in range(25)]
    sizes = np.bincount(CLUSTER_N)
    variance = 25 / 24 * np.square(sums).sum() / 400**2
    effective = share * (1 - share) / variance / ratio(400**2 / (sizes**2).sum(), confidence)
    found = metrics.compute_proportion(
        int(CORRECT_N.sum()),
        400,
        confidence=confidence,
        inflation=compute_inflation(CORRECT_N - share, CLUSTER_N, confidence=confidence),
    )
    tail = (1 - confidence) / 2
    assert found.low == pytest.approx(beta.ppf(tail, share * effective, (1 - share) * effective + 1))
    assert found.high == pytest.approx(beta.ppf(1 - tail, share * effective + 1, (1 - share) * effective))
    assert found.n == 400 and effective < 120


def test_where_all_rows_are_right_a_cluster_counts_as_one() -> None:
    cluster_N = np.repeat(np.arange(30), 20)
    right_N = np.ones(600, dtype=np.bool_)
    (found,) = metrics.compute_top_purities(right_N, [600], cluster_N)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (ratio(30) / 30)) and found.low < 0.88
    (one,) = metrics.compute_top_purities(right_N, [15], cluster_N)
    assert (one.low, one.high) == (0.0, 1.0), "one cluster tells nothing"


def test_the_variance_of_an_auc_is_that_of_pairs_summed_by_cluster() -> None:
    right, wrong = np.flatnonzero(CORRECT_N), np.flatnonzero(~CORRECT_N)
    in_order = np.array([[(SCORE_N[i] > SCORE_N[j]) + (SCORE_N[i] == SCORE_N[j]) / 2 for j in wrong] for i in right])
    auc = in_order.mean()
    sums = [
        (in_order[CLUSTER_N[right] == c].mean(axis=1) - auc).sum() / len(right)
        + (in_order[:, CLUSTER_N[wrong] == c].mean(axis=0) - auc).sum() / len(wrong)
        for c in range(25)
    ]
    influence_N = compute_influence(*compute_placements(SCORE_N, CORRECT_N), CORRECT_N)
    by_cluster = np.bincount(CLUSTER_N, influence_N)
    np.testing.assert_allclose(by_cluster, sums, atol=1e-12)
    jackknife = [metrics.compute_auc_value(SCORE_N[c != CLUSTER_N], CORRECT_N[c != CLUSTER_N]) for c in range(25)]
    assert 25 / 24 * np.square(sums).sum() == pytest.approx(24 * np.var(jackknife), rel=0.15)
    found, plain = metrics.auc(SCORE_N, CORRECT_N, cluster_N=CLUSTER_N), metrics.auc(SCORE_N, CORRECT_N)
    assert found.value == plain.value == pytest.approx(auc)
    assert found.high - found.low > 1.2 * (plain.high - plain.low)


def test_a_difference_of_two_scores_of_the_same_users_is_wider_by_cluster() -> None:
    other_N = RNG.normal(size=400) + CORRECT_N
    plain = metrics.compute_auc_difference(SCORE_N, other_N, CORRECT_N)
    found = metrics.compute_auc_difference(SCORE_N, other_N, CORRECT_N, cluster_N=CLUSTER_N)
    jackknife = [
        metrics.compute_auc_difference(*(of_N[c != CLUSTER_N] for of_N in (SCORE_N, other_N, CORRECT_N))).value
        for c in range(25)
    ]
    half = t.ppf(0.975, 24) * math.sqrt(24 * np.var(jackknife))
    assert found.value == plain.value
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.2)


def test_a_bootstrap_draws_clusters() -> None:
    trust_N = 1 / (1 + np.exp(-SCORE_N))
    errors_N = (trust_N - CORRECT_N) ** 2
    by_cluster = np.bincount(CLUSTER_N, errors_N - errors_N.mean())
    found = metrics.brier(trust_N, CORRECT_N, cluster_N=CLUSTER_N)
    sd = math.sqrt(np.square(by_cluster).sum()) / 400
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(sd, rel=0.15)
    plain = metrics.brier(trust_N, CORRECT_N)
    assert found.value == plain.value and found.high - found.low > 1.3 * (plain.high - plain.low)
    measured = metrics.ece(trust_N, CORRECT_N, cluster_N=CLUSTER_N)
    assert measured == metrics.ece(trust_N, CORRECT_N, cluster_N=7 * CLUSTER_N - 3), "ids do not count"
    assert resample(np.array([3, 4]), lambda counts: counts[..., 0] / 7, 0).shape == (1000,)


def test_the_evidence_of_users_is_wider_and_its_values_are_the_same() -> None:
    rows, trust_N, _ = fitted_on_users(np.random.default_rng(3), wrong=False, grouped=True)
    alone = replace(rows, cluster_N=None)
    found, plain = (measure_quality(of.readable, "trust", 150, 0.6) for of in (rows, alone))
    assert found is not None and plain is not None and found.auc is not None and plain.auc is not None
    assert found.top.value == plain.top.value and found.share_right.value == plain.share_right.value
    for name in ("share_right", "brier_excess"):
        wide, narrow = getattr(found, name), getattr(plain, name)
        assert wide.high - wide.low > narrow.high - narrow.low
    expected, by_rows = (predict_purity(of, "trust", 150, np.sort(trust_N)[::-1][:1_000]) for of in (rows, alone))
    assert expected is not None and by_rows is not None
    assert expected.purity.value == by_rows.purity.value and expected.purity.low < by_rows.purity.low


def test_the_difference_of_two_students_is_tested_and_wide_by_cluster() -> None:
    other_NJ = np.stack([CORRECT_N, RNG.random(400) < 0.5], axis=1)
    few_N = CLUSTER_N % 10
    rows = metrics.compute_row_differences(CORRECT_N[:, None], other_NJ, few_N)
    found, plain = metrics.compare_rows(rows), metrics.compare_rows(replace(rows, cluster_N=None))
    sums = np.array([rows.steps_N[few_N == c].sum() for c in range(10)])
    flips = np.array([*itertools.product([-1, 1], repeat=10)]) @ sums
    assert found.p_value == pytest.approx((flips >= abs(sums.sum())).mean()) and found.p_value > plain.p_value
    assert found.difference.value == pytest.approx(plain.difference.value) and found.better == plain.better
    many = metrics.compute_row_differences(CORRECT_N[:, None], other_NJ, CLUSTER_N)
    excess = [(many.steps_N[c == CLUSTER_N] / 2 - found.difference.value).sum() for c in range(25)]
    wide = metrics.compare_rows(many).difference
    assert (wide.high - wide.low) / 2 == pytest.approx(
        t.ppf(0.975, 24) * math.sqrt(25 / 24 * np.square(excess).sum() + many.shift_variance * 400**2) / 400, rel=0.1
    )
    one = metrics.compare_rows(
        metrics.compute_row_differences(CORRECT_N[:, None], other_NJ, np.zeros(400, dtype=np.int64))
    )
    assert (one.difference.low, one.difference.high) == pytest.approx((-1, 1), abs=1e-3), "one cluster tells nothing"
    same = metrics.compare_rows(metrics.compute_row_differences(other_NJ, other_NJ, np.zeros(400, dtype=np.int64)))
    assert same.difference.high == pytest.approx(1, abs=1e-3) and same.p_value == 1


def test_pooled_rows_of_one_user_are_one_cluster() -> None:
    part = metrics.compute_row_differences(CORRECT_N[:, None], CORRECT_N[::-1, None], CLUSTER_N)
    pooled = metrics.pool_strata([part, part])
    assert pooled.inflation == pytest.approx(2 * part.inflation)
    assert metrics.pool_strata([part, replace(part, cluster_N=None)]).cluster_N is None


def test_a_recovery_draws_clusters() -> None:
    chance_N = norm.cdf(RNG.normal(size=25)[CLUSTER_N])
    models = [RNG.random((400, 2)) < chance_N[:, None] * share for share in (0.7, 0.3, 0.9)]
    arm, base, truth = models
    found, plain = (metrics.compute_runs_recovery(arm, base, truth, of) for of in (CLUSTER_N, None))
    assert found is not None and plain is not None and found.value == plain.value
    members = [np.flatnonzero(c == CLUSTER_N) for c in range(25)]
    naive = []
    for _ in range(2_000):
        rows = np.concatenate([members[c] for c in RNG.integers(0, 25, 25)])
        naive.append(metrics.compute_recovery(*(model[rows].mean() for model in models)))
    low, high = np.quantile(np.array(naive, dtype=float), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))
    averages = metrics.compute_averaged_recovery([models], ["one"], [CLUSTER_N])
    assert averages is not None and (averages.low, averages.high) == (found.low, found.high)


def test_bins_of_difficulty_and_classes_count_clusters() -> None:
    ids_N, bin_N = np.arange(400), np.arange(400) % 3
    judged = GradedRows(
        row_ids_N=ids_N, correct_N=CORRECT_N, parsed_N=np.ones(400, dtype=bool), scores={}, cluster_N=CLUSTER_N
    )
    rows = replace(judged, selected={"trust": ids_N[:200]})
    tests = {"trust": [Graded(row_ids_N=ids_N, correct_N=CORRECT_N, question_N=ids_N, cluster_N=CLUSTER_N)]}
    values = (ids_N, bin_N.astype(float))
    purities, accuracies = compute_purity_bins(rows, rows.selected, values), compute_accuracy_bins(tests, values)
    assert purities is not None and accuracies is not None
    for found, is_in_N in (
        (purities["all"], ids_N >= 0),
        (purities["arms"]["trust"], ids_N < 200),
        (accuracies["models"]["trust"], ids_N >= 0),
    ):
        for number, cell in enumerate(found):
            kept_N = is_in_N & (bin_N == number)
            right_M, n = CORRECT_N[kept_N], int(kept_N.sum())
            times = compute_inflation(right_M - right_M.mean(), CLUSTER_N[kept_N])
            assert times > 1
            assert cell == metrics.compute_proportion(int(right_M.sum()), n, inflation=times).to_json()
    purity = rows.among_selected("trust")
    times = compute_inflation(CORRECT_N[:200] - CORRECT_N[:200].mean(), CLUSTER_N[:200])
    assert purity == metrics.compute_proportion(int(CORRECT_N[:200].sum()), 200, inflation=times)


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in INTERVALS if kind.endswith("with splits.group")])
def test_intervals_of_users_hold_the_truth(kind: str) -> None:
    assert 0.92 <= coverage(kind, 300 if kind.startswith("recovery") else 1_000, 1).holds <= 0.97


@pytest.mark.parametrize(
    "kind", [kind for kind in INTERVALS if kind.endswith("without splits.group") and kind.startswith(ROWWISE)]
)
def test_intervals_that_count_rows_do_not(kind: str) -> None:
    assert coverage(kind, 300, 1).holds < 0.8
