"""The choice of a winner: the corrected interval, how often a default is replaced in vain, a search's optimism."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold

from tune.search import LEVEL, choose, compute_corrected_difference

pytestmark = pytest.mark.long


def test_without_overlap_the_interval_is_the_paired_t_test() -> None:
    ours_R, theirs_R = np.random.default_rng(0).normal(0.1, 1, (2, 12))
    found = compute_corrected_difference(ours_R - theirs_R, share_held_out=0.0, level=0.05)
    low, high = stats.ttest_rel(ours_R, theirs_R).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high)) and found.num_pairs == 12
    wider = compute_corrected_difference(ours_R - theirs_R, share_held_out=0.2, level=0.05)
    assert (wider.high - wider.value) / (found.high - found.value) == pytest.approx(math.sqrt((1 / 12 + 0.25) * 12))


def test_a_better_finalist_wins_and_an_equal_one_does_not() -> None:
    rng = np.random.default_rng(1)
    default_R = rng.normal(0.7, 0.01, 15)
    finalists = {"better": default_R + rng.normal(0.03, 0.005, 15), "equal": default_R + rng.normal(0, 0.005, 15)}
    in_search = {"better": 0.75, "equal": 0.76}
    found = choose(default_R, finalists, in_search, share_held_out=0.2)
    assert found.winner == "better" and found.differences["better"].low > 0
    assert found.optimism == pytest.approx(0.76 - finalists["equal"].mean()), "that of the search's own best"
    assert choose(default_R, {"equal": finalists["equal"]}, in_search, share_held_out=0.2).winner is None
    assert found.to_json()["differences"]["equal"].keys() == {"value", "low", "high", "num_pairs"}


def test_a_default_is_rarely_replaced_by_one_that_is_no_better() -> None:
    """Finalists that differ from the default in noise columns alone, on k-fold splits of real overlap."""
    rng, replaced, repeats = np.random.default_rng(2), 0, 30
    for _ in range(repeats):
        base_ND = rng.standard_normal((150, 3))
        correct_N = base_ND[:, 0] + rng.standard_normal(150) > 0
        inputs = [np.concatenate([base_ND, rng.standard_normal((150, 2))], axis=1) for _ in range(4)]
        values: list[list[float]] = [[] for _ in inputs]
        for seed in range(2):
            for fit, held in KFold(5, shuffle=True, random_state=seed).split(base_ND):
                for number, input_ND in enumerate(inputs):
                    model = LogisticRegression().fit(input_ND[fit], correct_N[fit])
                    values[number].append(roc_auc_score(correct_N[held], model.decision_function(input_ND[held])))
        default, *others = values
        finalists = {str(number): value for number, value in enumerate(others)}
        in_search = {name: value[0] for name, value in finalists.items()}
        found = choose(default, finalists, in_search, share_held_out=0.2)
        replaced += found.winner is not None
    assert stats.binomtest(replaced, repeats, LEVEL, alternative="greater").pvalue > 0.01
