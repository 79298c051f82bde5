import csv
import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from curation import metrics
from curation.metrics import paired
from curation.metrics.paired import (
    compare_rows,
    compute_averaged_recovery,
    compute_paired_test,
    compute_row_differences,
    compute_runs_recovery,
    compute_sign_flip,
    pool_strata,
)

PAPER = Path(__file__).parents[2] / "data/paper_world_knowledge.csv"
"""Tables 24 to 28 of the paper by benchmark, and Table 2 as ``average``, in per cent; a column a student."""


def _one_run(first_only, second_only, both=30, neither=40):
    counts = [first_only, second_only, both, neither]
    first = np.repeat([True, False, True, False], counts)
    return first[:, None], np.repeat([False, True, True, False], counts)[:, None]


def _population(rng, num_rows, kind):
    """Each row's chance of a right answer by two models, whose means over all rows are equal; [N] each."""
    if kind == "noise":  # rows are alike, all chance is that of the draws
        return np.full(num_rows, 0.5), np.full(num_rows, 0.5)
    if kind == "few":  # hardly a row that the models do not agree on
        same = (rng.random(num_rows) < 0.6).astype(float)
        apart = rng.random(num_rows)
        return np.where(apart < 0.03, 0.3, same), np.where((apart > 0.03) & (apart < 0.06), 0.3, same)
    hard = rng.random(num_rows)
    return tuple(np.clip(1.3 * rng.random(num_rows) - hard / 2, 0, 1) for _ in range(2))


def _draw(rng, chance_N, runs, shift=0.0):
    chances = np.clip(chance_N[:, None] + rng.normal(0, shift, runs), 0, 1)
    return rng.random((len(chance_N), runs)) < chances


@pytest.mark.parametrize("steps", [[1, -1, 1], [3, 3, -1, 2, 0, 0], [5], [-2, -2, 4], [6, -4, 2, 2, 2, -10], [1] * 12])
def test_sign_flip_equals_all_flips_one_by_one(steps):
    sizes = np.abs(steps)
    sums = [np.dot(signs, sizes) for signs in itertools.product([-1, 1], repeat=len(steps))]
    expected = np.mean([total >= abs(sum(steps)) for total in sums])
    assert compute_sign_flip(np.array(steps)) == pytest.approx(expected, rel=1e-12)
    assert compute_sign_flip(-np.array(steps)) == compute_sign_flip(np.array(steps))
    assert compute_sign_flip(7 * np.array(steps)) == compute_sign_flip(np.array(steps))


def test_sign_flip_of_two_sizes_equals_a_sum_of_binomials():
    rng = np.random.default_rng(1)
    steps = np.concatenate([rng.choice([-1, 1], 150, p=[0.35, 0.65]), rng.choice([-3, 3], 80, p=[0.4, 0.6])])
    coins = [np.array([math.comb(count, k) for k in range(count + 1)], dtype=object) for count in (150, 80)]
    total = sum(
        coins[0][i] * coins[1][j]
        for i in range(151)
        for j in range(81)
        if (2 * i - 150) + 3 * (2 * j - 80) >= abs(int(steps.sum()))
    )
    assert compute_sign_flip(steps) == pytest.approx(float(total / 2**230), rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 5), (9, 2), (2, 9), (1, 0), (400, 250), (1000, 0)])
def test_one_run_is_the_exact_test_to_the_digit(first, second):
    one = _one_run(first, second)
    exact = compute_paired_test(first, second, len(one[0]))
    assert compare_rows(compute_row_differences(*one)) == exact
    steps = np.repeat([1, -1], [first, second])
    expected = binomtest(max(first, second), first + second, alternative="greater").pvalue if first + second else 1.0
    assert compute_sign_flip(steps) == pytest.approx(expected, rel=1e-9) == pytest.approx(exact.p_value, rel=1e-9)
    # Five runs that are all the same are one run, and the interval does not believe otherwise.
    five = compare_rows(compute_row_differences(np.repeat(one[0], 5, axis=1), np.repeat(one[1], 5, axis=1)))
    assert five.p_value == pytest.approx(exact.p_value, rel=1e-9) and five.better == exact.better
    assert (five.difference.low, five.difference.high) == pytest.approx((exact.difference.low, exact.difference.high))
    gain = float(one[1].mean()) - 0.1
    verdict = metrics.compute_rows_verdict(compute_row_differences(*one), gain=gain)
    wide = metrics.compute_rows_verdict(
        compute_row_differences(np.repeat(one[0], 5, axis=1), np.repeat(one[1], 5, 1)), gain=gain
    )
    assert wide.verdict == verdict.verdict


def test_drawn_flips_agree_with_counted_ones(monkeypatch):
    steps = np.random.default_rng(3).integers(-5, 7, 400)
    exact = compute_sign_flip(steps)
    monkeypatch.setattr(paired, "COUNTED", 0)
    drawn = compute_sign_flip(steps)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / paired.DRAWS)) and 1e-4 < exact < 0.5
    assert drawn == compute_sign_flip(steps, seed=0) != compute_sign_flip(steps, seed=1)
    assert compute_sign_flip(np.ones(60, dtype=np.int64)) == 1 / (1 + paired.DRAWS)  # never zero


def test_many_rows_take_no_time():
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    compute_sign_flip(rng.integers(-5, 6, 10_000))
    compute_sign_flip(rng.integers(-105, 106, 100_000))
    assert time.perf_counter() - start < 20  # 1 s on a slow core


def test_several_runs_equal_a_direct_computation_from_the_means_of_the_rows():
    rng = np.random.default_rng(2)
    first, second = rng.random((80, 5)) < 0.6, rng.random((80, 3)) < 0.5  # one may have been asked more often
    rows = compute_row_differences(first, second)
    apart = first.mean(axis=1) - second.mean(axis=1)
    assert rows.steps_N / rows.per_unit == pytest.approx(apart) and rows.per_unit == 15
    test = compare_rows(rows)
    assert test.difference.value == pytest.approx(apart.mean()) and test.difference.n == 80
    flips = rng.choice([-1, 1], size=(40_000, 80)) @ apart
    assert test.p_value == pytest.approx((flips >= apart.sum() - 1e-9).mean(), abs=0.01)
    models = [rng.random((80, 5)) < share for share in (0.5, 0.3, 0.6)]
    found = compute_runs_recovery(*models)
    assert found.value == metrics.compute_recovery(*(runs.mean() for runs in models))
    assert found.low < found.value < found.high and found == compute_runs_recovery(*models)
    assert compute_runs_recovery(models[0], models[2], models[1]) is None
    assert compute_runs_recovery(models[0], models[1], models[1]) is None
    none = [np.zeros((0, 5), dtype=bool)] * 3
    assert compute_runs_recovery(*none) is None and compare_rows(compute_row_differences(*none[:2])).p_value == 1.0


def test_strata_are_pooled_as_one_table():
    strata = [_one_run(9, 2), _one_run(3, 8, 10, 10), _one_run(20, 11)]
    pooled = compare_rows(pool_strata([compute_row_differences(*stratum) for stratum in strata]))
    assert (pooled.num_first_only, pooled.num_second_only) == (32, 21)
    assert pooled.p_value == pytest.approx(binomtest(32, 53, alternative="greater").pvalue, rel=1e-9)
    n = sum(len(first) for first, _ in strata)
    assert pooled == compare_rows(
        compute_row_differences(*(np.concatenate([pair[i] for pair in strata]) for i in range(2)))
    )
    rng = np.random.default_rng(0)
    runs = rng.random((50, 2)) < 0.5, rng.random((50, 2)) < 0.5
    mixed = pool_strata([compute_row_differences(*strata[0]), compute_row_differences(*runs)])
    expected = np.concatenate([strata[0][0][:, 0] - strata[0][1][:, 0].astype(int), runs[0].mean(1) - runs[1].mean(1)])
    assert mixed.steps_N / mixed.per_unit == pytest.approx(expected) and len(mixed) < n


@pytest.mark.parametrize(("repeats", "slack"), [(400, 0.03), pytest.param(8000, 0.008, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["noise", "few", "spread"])
@pytest.mark.parametrize(("num_rows", "runs"), [(60, 5), (250, 2)])
def test_level_and_coverage_of_several_runs(kind, num_rows, runs, repeats, slack):
    rng = np.random.default_rng(num_rows)
    covered, above, shown = 0, 0, 0
    for _ in range(repeats):
        first, second = (_draw(rng, chance, runs) for chance in _population(rng, num_rows, kind))
        test = compare_rows(compute_row_differences(first, second))
        covered += test.difference.low <= 0 <= test.difference.high
        above += test.difference.low > 0
        shown += test.p_value < metrics.ALPHA / 2
    assert covered / repeats > 0.95 - slack
    assert above / repeats < 0.025 + slack
    assert shown / repeats < 0.05 + slack  # 2.5 % on either side


def test_shifts_of_whole_runs_widen_the_interval_and_nothing_else_does():
    rng = np.random.default_rng(0)
    chance = rng.beta(0.7, 0.7, 400)
    still, strays = 0.0, 0
    for _ in range(200):
        quiet = compute_row_differences(_draw(rng, chance, 5), _draw(rng, chance, 5))
        still += np.sqrt(quiet.shift_variance) / 200
        moved = compare_rows(compute_row_differences(_draw(rng, chance, 5, 0.05), _draw(rng, chance, 5, 0.05)))
        strays += not moved.difference.low <= 0 <= moved.difference.high
    assert still < 0.006  # a fifth of what the moved runs have
    assert strays / 200 < 0.13  # five runs tell little about how they vary; without this it is 40 %


@pytest.mark.long
def test_recovery_over_runs_covers_the_truth():
    rng = np.random.default_rng(5)
    covered, repeats = 0, 150
    for _ in range(repeats):
        hard = rng.random(200)
        chances = [np.clip(skill + 0.4 - hard, 0, 1) for skill in (0.4, 0.1, 0.5)]
        found = compute_runs_recovery(*(_draw(rng, chance, 3) for chance in chances))
        means = [np.clip(skill + 0.4 - np.linspace(0, 1, 100_001), 0, 1).mean() for skill in (0.4, 0.1, 0.5)]
        covered += found.low <= metrics.compute_recovery(*means) <= found.high
    assert covered / repeats > 0.9


def test_agreement_of_few_rows_is_not_near_lossless():
    """A bootstrap of rows that all agree is a point; so is one of a handful of small differences, nearly."""
    truth = np.random.default_rng(0).random((100, 1)) < 0.5
    same = np.repeat(truth, 5, axis=1)
    assert metrics.compute_rows_verdict(compute_row_differences(same, same), gain=0.5).verdict == "inconclusive"
    nearly = same.copy()
    nearly[0, 0] = ~nearly[0, 0]
    assert metrics.compute_rows_verdict(compute_row_differences(nearly, same), gain=0.5).verdict == "inconclusive"
    many = np.tile(same, (4, 1))
    assert metrics.compute_rows_verdict(compute_row_differences(many, many), gain=0.5).verdict == "near-lossless"


def test_an_arm_that_loses_the_margin_is_rarely_near_lossless_over_runs():
    rng = np.random.default_rng(9)
    granted = 0
    for _ in range(400):
        chance = rng.beta(0.4, 0.4, 300) * 0.9 + 0.05
        arm, truth = _draw(rng, chance - metrics.MARGIN, 5), _draw(rng, chance, 5)
        granted += (
            metrics.compute_rows_verdict(compute_row_differences(arm, truth), gain=0.5).verdict == "near-lossless"
        )
    assert granted / 400 < 0.045


@pytest.mark.parametrize("wrong", [[True, False], np.zeros((3, 0)), [[0.5, 1.0]]])
def test_wrong_shapes_are_refused(wrong):
    with pytest.raises(ValueError, match="rows by runs"):
        compute_row_differences(wrong, wrong)
    with pytest.raises(ValueError, match="lengths differ: 2 and 1"):
        compute_row_differences([[True], [True]], [[True]])


def test_the_papers_accuracies_by_benchmark_give_the_recoveries_of_its_table_2():
    with PAPER.open() as file:
        lines = list(csv.DictReader(file))
    table = {(line.pop("benchmark"), line.pop("number"), line.pop("method")): line for line in lines}
    benchmarks = sorted({name for name, _, _ in table} - {"average"})
    recoveries = {method: line for (_, number, method), line in table.items() if number == "recovery"}
    students = list(recoveries["Naive"])
    assert (len(benchmarks), len(recoveries), len(students)) == (5, 6, 8)

    def rows(benchmark, method, student):
        """1,000 test rows with that accuracy."""
        num_right = round(10 * float(table[benchmark, "accuracy", method][student]))
        return (np.arange(1000) < num_right)[:, None]

    of_recoveries = []
    for method, student in itertools.product(recoveries, students):
        runs = [[rows(name, model, student) for model in (method, "No-SFT", "Ground Truth")] for name in benchmarks]
        found = compute_averaged_recovery(runs, benchmarks)
        arm, base, truth = np.mean([[model.mean() for model in run] for run in runs], axis=0)
        assert found is not None and found.value == pytest.approx((arm - base) / (truth - base)) and found.n == 5000
        assert abs(100 * arm - float(table["average", "accuracy", method][student])) < 0.07  # Table 2's own rounding
        paper, gap = float(recoveries[method][student]), 100 * (truth - base)
        moved = 0.05 + 100 * 0.05 * (1 + found.value + abs(1 - found.value)) / gap  # by three averages of one decimal
        assert abs(100 * found.value - paper) <= moved, (method, student)
        alone = [metrics.compute_runs_recovery(*run).value for run in runs]
        of_recoveries.append(abs(100 * np.mean(alone) - paper))
    assert sum(off > 5 for off in of_recoveries) == 17  # the mean of the benchmarks' recoveries is another quantity


@pytest.mark.long
@pytest.mark.parametrize("several", [False, True])
def test_recovery_of_averages_covers_that_of_the_populations(several):
    """Two benchmarks, one with a small gap; the second has two runs, each of rows of its own."""
    rng, runs = np.random.default_rng(8), 3 if several else 1
    chances = [(0.55, 0.5, 0.56), (0.6, 0.3, 0.7), (0.6, 0.3, 0.7)]
    means = np.mean([chances[0], chances[1]], axis=0)
    true = (means[0] - means[1]) / (means[2] - means[1])
    misses = 0
    for _ in range(300):
        drawn = [[rng.random((200, runs)) < chance for chance in of] for of in chances]
        found = compute_averaged_recovery(drawn, ["a", "b", "b"], seed=1)
        misses += not found.low <= true <= found.high
    assert 0.015 < misses / 300 < 0.08  # what looks like shifts of whole runs widens the interval


def test_one_run_has_the_recovery_of_its_rows_and_no_gain_has_none():
    rng = np.random.default_rng(2)
    run = [rng.random((80, 2)) < chance for chance in (0.6, 0.4, 0.8)]
    assert compute_averaged_recovery([run], ["a"], seed=5) == compute_runs_recovery(*run, seed=5)
    base = np.ones((10, 1), dtype=bool)
    assert compute_averaged_recovery([[base, base, base]] * 2, ["a", "b"]) is None
    with pytest.raises(ValueError):
        compute_averaged_recovery([[base, base, base[1:]]], ["a"])
