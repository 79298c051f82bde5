"""The points of numbered trials: the same however the trials end, and Optuna's own where it proposes."""

import random
from typing import Any

import optuna
import pytest

from curation.config import TrustConfig
from curation.hashing import derive
from tune import search
from tune.search import LEAST_RANDOM, Proposals
from tune.space import Space

STATES = ("prompt_last", "output_last")
SPACE = {"kind": ["neural", "linear_probe"], "depth": [1, 2], "learning_rate": {"log": [1e-4, 1e-1]}}
NUM = 40


def made(seed: int = 3) -> Proposals:
    return Proposals(Space.of(SPACE, TrustConfig(), stored=STATES), seed)


def worth(drawn: dict[str, Any]) -> float | None:
    """A metric that is best for deep networks at a rate of 0.01; of probes every third trial fails."""
    if drawn["kind"] == "linear_probe":
        return None
    return drawn["depth"] - abs(drawn["learning_rate"] - 0.01)


def played(proposals: Proposals, num: int, parallel: int, seed: int) -> list[Any]:
    """The points of trials of which ``parallel`` run at once and end in a random order."""
    chance, asked, running, points = random.Random(seed), 0, {}, []
    while asked < num or running:
        while asked < num and len(running) < parallel and (point := proposals.ask(asked)) is not None:
            running[asked], asked = point, asked + 1
            points.append(point)
        assert running, "waits although nothing runs"
        number = chance.choice(list(running))
        proposals.tell(number, worth(running.pop(number).drawn))
    return points


def test_points_do_not_depend_on_which_trial_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "AHEAD", 4)
    one = played(made(), NUM, parallel=1, seed=0)
    assert [played(made(), NUM, parallel, parallel) for parallel in (2, 4, 8)] == [one] * 3
    assert played(made(seed=4), NUM, parallel=1, seed=0) != one


def test_tpe_is_optunas_sampler_and_finds_the_better_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "AHEAD", 1)
    points = played(made(), NUM, parallel=1, seed=0)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=derive(3, "tpe") % 2**32, n_startup_trials=LEAST_RANDOM)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for point in points:
        trial = study.ask()
        drawn = {"kind": ["neural", "linear_probe"][trial.suggest_categorical("kind", [0, 1])]}
        if drawn["kind"] == "neural":
            drawn["depth"] = [1, 2][trial.suggest_categorical("depth", [0, 1])]
            drawn["learning_rate"] = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
        assert drawn == point.drawn
        value = worth(drawn)
        study.tell(trial, value, state=None if value is not None else optuna.trial.TrialState.FAIL)
    late = [point.drawn for point in points[NUM // 2 :] if point.kind == "neural"]
    assert sum(drawn["depth"] == 2 for drawn in late) > 0.6 * len(late)


def test_tpe_never_runs_ahead_of_what_it_may_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "AHEAD", 3)
    proposals = made()
    assert all(proposals.ask(number) is not None for number in range(3))
    assert proposals.ask(3) is None
    proposals.tell(1, 0.5)
    assert proposals.ask(3) is None  # trial 0 has not ended
    proposals.tell(0, 0.5)
    assert proposals.ask(3) is not None and proposals.ask(4) is not None and proposals.ask(5) is None
