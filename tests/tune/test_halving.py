"""Successive halving: where the rungs are, what a trial has to reach, and who decides it."""

import itertools
import random

import pytest

from train.trust_loop import FitRecord
from tune.halving import Bar, Halving, compute_rung_aucs


def record(steps: list[int], aucs: list[float]) -> FitRecord:
    rows = dict.fromkeys(("num_fit", "num_validation", "num_repeats"), 1)
    return FitRecord(**rows, share_right_fit=0.5, share_right_validation=0.5, steps=steps, validation_aucs=aucs)


def test_a_rung_has_the_best_auc_until_its_first_evaluation() -> None:
    steps, aucs = [50, 100, 150, 200, 450, 900], [0.5, 0.6, 0.55, 0.7, 0.65, 0.8]
    assert compute_rung_aucs(steps, aucs, 1000, 2) == [0.6, 0.7, 0.8]  # at 125, 250 and 500 steps
    assert compute_rung_aucs(steps[:1], aucs[:1], 1000, 2) == []


def test_a_trial_ends_where_it_is_below_the_bar() -> None:
    bar = Bar(eta=2, aucs=[0.6, 0.75, None])
    assert not bar.ends(record([100], [0.5]), 1000)  # 125 steps are not done
    assert bar.ends(record([100, 200], [0.5, 0.59]), 1000)
    assert not bar.ends(record([100, 200], [0.5, 0.61]), 1000)
    assert bar.ends(record([100, 200, 300], [0.5, 0.61, 0.74]), 1000)
    assert not bar.ends(record([100, 200, 300, 600], [0.5, 0.61, 0.75, 0.1]), 1000)


def test_the_bar_is_the_best_share_of_earlier_trials_whichever_ended_first() -> None:
    fits = [{"rungs": [0.5, 0.6]}, {"rungs": [0.7]}, None, {"rungs": [0.6, 0.9, 0.9]}, {}, {"rungs": [0.8]}]
    bars = set()
    for seed in range(5):
        halving = Halving(2, ahead=2)
        for number in random.Random(seed).sample(range(len(fits)), len(fits)):
            halving.tell(number, fits[number])
        bars.add(tuple(tuple(halving.bar(number).aucs) for number in range(7)))
    (found,) = bars
    assert found[0] == found[1] == found[2] == (None, None, None)  # of trial 0 alone: fewer than two
    assert found[3] == (0.7, None, None)  # of trials 0 and 1
    assert found[5] == (0.6, 0.9, None)  # .5, .7, .6: the best two; .6, .9: the best one
    assert found[6] == found[5]


def test_a_trial_waits_until_the_trials_it_is_compared_with_have_ended() -> None:
    halving = Halving(2, ahead=3)
    assert [halving.bar(number) is None for number in range(4)] == [False, False, False, True]
    halving.tell(1, None)
    assert halving.bar(3) is None
    halving.tell(0, None)
    assert halving.bar(3) is not None and halving.bar(4) is not None and halving.bar(5) is None


@pytest.mark.parametrize("eta", [2, 3, 4])
def test_about_one_of_eta_random_trials_passes_each_rung(eta: int) -> None:
    chance, halving = random.Random(eta), Halving(eta, ahead=4)
    passed = [0, 0]
    for number in itertools.islice(itertools.count(), 600):
        aucs, bar = [chance.random() for _ in range(2)], halving.bar(number).aucs
        first = bar[0] is None or aucs[0] >= bar[0]
        second = first and (bar[1] is None or aucs[1] >= bar[1])
        halving.tell(number, {"rungs": aucs if first else aucs[:1]})
        passed = [passed[0] + first, passed[1] + second]
    assert passed[0] / 600 == pytest.approx(1 / eta, abs=0.08)
    assert passed[1] / passed[0] == pytest.approx(1 / eta, abs=0.15)
