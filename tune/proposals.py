"""Which point each trial of a search tries. Trials are numbered, and a number's point never depends on the machine.

A random point follows from the seed and its number, a point of a grid from its number. Optuna's sampler proposes trial
k from the results of trials 0 to k - ``ahead`` alone, told in their order: so a search that was killed, or ran with
another number of trials at once, tries the same points.
"""

import itertools
from typing import Protocol

import optuna

from curation.config import TuneConfig
from curation.hashing import derive
from tune.space import Point, RandomDraws, Space

LEAST_RANDOM = 10
"""Optuna's sampler draws its first trials at random, at least so many."""


class Proposals(Protocol):
    """Asked for the points of trials 0, 1, 2, ... and told their results, in any order."""

    def ask(self, number: int) -> Point | None:
        """The point of a trial, asked for in order; ``None``: it waits for results of earlier ones."""
        ...

    def tell(self, number: int, value: float | None) -> None:
        """The metric of a trial; ``None`` if it failed."""
        ...


def proposals_of(config: TuneConfig, space: Space, *, seed: int, larger_is_better: bool) -> tuple[Proposals, int]:
    """The sampler that proposes the points of a search, and how many it will propose.

    Raises:
        ConfigError: a grid over a range.
    """
    if config.search == "grid":
        points = list(itertools.islice(space.grid(), config.trials))
        return Listed(points), len(points)
    if config.search == "random":
        return _Random(space, seed), config.trials
    return _Tpe(space, seed, config.ahead, larger_is_better=larger_is_better), config.trials


class Listed:
    """The points of a list."""

    def __init__(self, points: list[Point]) -> None:
        self._points = points

    def ask(self, number: int) -> Point:
        """See :class:`Proposals`."""
        return self._points[number]

    def tell(self, number: int, value: float | None) -> None:
        """A list learns nothing."""


class _Random:
    """Independent uniform draws."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int) -> Point:
        """See :class:`Proposals`."""
        return self._space.draw(RandomDraws([self._seed, number]))

    def tell(self, number: int, value: float | None) -> None:
        """A draw learns nothing."""


class _Tpe:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011)."""

    def __init__(self, space: Space, seed: int, ahead: int, *, larger_is_better: bool) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._ahead = space, ahead
        self._study = optuna.create_study(
            direction="maximize" if larger_is_better else "minimize",
            sampler=optuna.samplers.TPESampler(
                seed=derive(seed, "tpe") % 2**32, n_startup_trials=max(LEAST_RANDOM, 2 * len(space.dimensions))
            ),
        )
        self._asked: list[optuna.Trial] = []
        self._results: dict[int, float | None] = {}
        self._num_told = 0

    def ask(self, number: int) -> Point | None:
        """See :class:`Proposals`."""
        until = number - self._ahead + 1
        while self._num_told < until:
            if self._num_told not in self._results:
                return None
            value = self._results[self._num_told]
            failed = optuna.trial.TrialState.FAIL if value is None else None
            self._study.tell(self._asked[self._num_told], value, state=failed)
            self._num_told += 1
        assert number == len(self._asked), "trials are asked for in order"
        trial = self._study.ask()
        self._asked.append(trial)
        return self._space.draw(_OptunaDraws(trial))

    def tell(self, number: int, value: float | None) -> None:
        """See :class:`Proposals`."""
        self._results[number] = value


class _OptunaDraws:
    """Draws of one Optuna trial."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial

    def choice(self, key: str, num: int) -> int:
        """See ``tune.space.Draws``."""
        return int(self._trial.suggest_categorical(key, list(range(num))))

    def number(self, key: str, low: float, high: float, *, log: bool) -> float:
        """See ``tune.space.Draws``."""
        return self._trial.suggest_float(key, low, high, log=log)

    def integer(self, key: str, low: int, high: int, *, log: bool) -> int:
        """See ``tune.space.Draws``."""
        return self._trial.suggest_int(key, low, high, log=log)
