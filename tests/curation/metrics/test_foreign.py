"""The share of foreign rows: exact levels, power at small shares, and what it makes of degenerate rows."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from curation.metrics.foreign import compute_distances, count_beyond
from curation.metrics.shift import compare_samples

DIMENSIONS = 16


def states(num_rows: int, seed: int, *, num_foreign: int = 0, off: float = 6.0) -> np.ndarray:
    rows_ND = np.random.default_rng(seed).normal(size=(num_rows, DIMENSIONS))
    rows_ND[:num_foreign, 0] += off
    return rows_ND


def test_the_p_value_is_that_of_counting_by_simulation():
    """Pool values beyond the k-th largest of the yardstick, against 20,000 draws of both sides."""
    rng = np.random.default_rng(0)
    source, pool = rng.random(200), rng.random(200)
    beyond = int((pool > np.sort(source)[-2]).sum())  # 1 % of 201 rows are 2
    draws = rng.random((20_000, 400))
    simulated = (draws[:, 200:] > np.sort(draws[:, :200])[:, -2:-1]).sum(axis=1) >= beyond
    found = count_beyond(source, pool, "distance")
    assert found.p_value == pytest.approx(simulated.mean(), abs=0.02)
    assert found.share.n == 200


def test_values_that_are_all_beyond_are_all_foreign():
    found = count_beyond(np.arange(500.0), np.arange(500.0) + 500, "distance")
    assert found.share.value == 1.0 and found.share.low > 0.95 and found.alarm
    none = count_beyond(np.arange(500.0), np.arange(500.0) - 500, "distance")
    assert (none.share.value, none.share.low, none.p_value) == (0.0, 0.0, 1.0) and not none.alarm


def test_without_rows_nothing_is_told():
    found = count_beyond([], [1.0], "distance")
    assert math.isnan(found.share.value) and found.p_value == 1.0 and not found.alarm
    assert found.to_json()["share"]["value"] is None


@pytest.mark.long
def test_honest_pools_raise_no_alarm_and_their_test_keeps_its_level():
    found = [compare_samples(states(400, 2 * i), states(600, 2 * i + 1), seed=i) for i in range(150)]
    assert sum(shift.alarm for shift in found) <= 1
    assert sum(shift.has_minority for shift in found) <= binom.ppf(0.999, 150, 0.01)
    small = sum(shift.foreign.p_value < 0.05 for shift in found)
    assert small <= binom.ppf(0.999, 150, 0.05)  # Bonferroni's bound of two tests
    assert all(shift.foreign.share.low == 0 or shift.foreign.p_value < 0.1 for shift in found)


@pytest.mark.parametrize(("share", "least"), [(0.1, 0.9), (0.2, 0.95), (0.5, 0.95)])
def test_a_minority_that_the_auc_does_not_show_is_found(share, least):
    trials, number = 40, round(1000 * share)
    found = [
        compare_samples(states(1000, 2 * i), states(1000, 2 * i + 1, num_foreign=number), seed=i) for i in range(trials)
    ]
    assert np.mean([shift.alarm for shift in found]) >= least
    assert np.mean([shift.foreign.share.value for shift in found]) == pytest.approx(share, abs=0.04)
    assert np.mean([shift.foreign.share.low <= share <= shift.foreign.share.high for shift in found]) >= 0.9
    if share == 0.1:
        assert np.mean([shift.auc.low > 0.6 for shift in found]) == 0  # the old alarm
        assert {shift.strength for shift in found if shift.alarm} == {"minority"}


def test_the_words_give_the_auc_and_the_foreign_rows():
    shift = compare_samples(states(1000, 1), states(1000, 2) + 0.08, seed=0)
    assert shift.strength == "slight" and shift.in_words() in shift.warning()
    assert shift.in_words() == f"AUC {shift.auc.value:.3f} [{shift.auc.low:.3f}, {shift.auc.high:.3f}]"
    found = compare_samples(states(1000, 1), states(1000, 2, num_foreign=100), seed=0)
    assert "of 1,000 rows are unlike any labelled one" in found.in_words()


def test_copies_in_the_source_do_not_make_new_rows_foreign():
    """Each labelled row three times: with copies among the neighbours every new row would be far."""
    alarms = [
        compare_samples(np.repeat(states(200, 2 * i), 3, axis=0), states(600, 2 * i + 1), seed=i).foreign
        for i in range(20)
    ]
    assert not any(found.alarm for found in alarms if found.by == "distance")


def test_distances_are_those_of_a_plain_computation():
    source, pool = states(60, 1).astype(np.float32), states(30, 2).astype(np.float32)
    held_N, source_K, pool_M = compute_distances(source, pool, np.random.default_rng(3))
    assert held_N.sum() == 30 == len(source_K)
    fit = source[~held_N].astype(np.float64)
    mean, sd = fit.mean(axis=0), fit.std(axis=0)
    standard = (fit - mean) / sd
    _, spread, axes = np.linalg.svd(standard, full_matrices=False)
    whiten = axes[:6].T / (spread[:6] / np.sqrt(30))  # as many components as a fifth of the rows
    near, far = standard @ whiten, ((pool - mean) / sd) @ whiten
    expected = np.sort(np.linalg.norm(far[:, None] - near[None], axis=2), axis=1)[:, 4]
    assert pool_M == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_states_of_one_value_are_not_foreign(dimensions):
    assert not compare_samples(np.ones((200, dimensions)), np.ones((300, dimensions)), seed=0).alarm
