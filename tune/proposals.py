"""Proposals of the point that each trial tries. Trials are numbered; a number's point never depends on the machine.

A random point follows from the seed and its number. Optuna's tree-structured Parzen
estimator (Bergstra et al., NeurIPS 2011) proposes trial k from the results of trials 0 to k - ``ahead`` alone, told in
their order: so a search that was killed, or ran with another number of trials at once, tries the same points.
"""

import optuna

from curation.config import TuneConfig
from curation.hashing import derive
from tune.space import Point, Space

LEAST_RANDOM = 10
"""Minimum number of first trials that the estimator draws at random."""


class Proposals:
    """The points of trials 0, 1, 2, ... by a sampler of Optuna, which receives their results in any order."""

    def __init__(
        self, space: Space, sampler: optuna.samplers.BaseSampler, ahead: int, *, larger_is_better: bool
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._ahead = space, ahead
        self._study = optuna.create_study(direction="maximize" if larger_is_better else "minimize", sampler=sampler)
        self._asked: list[optuna.Trial] = []
        self._results: dict[int, float | None] = {}
        self._num_told = 0

    def ask(self, number: int) -> Point | None:
        """Return the next trial's point, or ``None`` while earlier results are awaited. Call in trial order."""
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
        return self._space.draw(trial)

    def tell(self, number: int, value: float | None) -> None:
        """Record the metric of a trial, ``None`` if it failed."""
        self._results[number] = value


def make_proposals(config: TuneConfig, space: Space, *, seed: int, larger_is_better: bool) -> Proposals:
    """Return the proposals of a search by ``random`` or ``tpe``."""
    own = derive(seed, config.search) % 2**32
    if config.search == "random":  # waits for nothing, as it learns nothing
        random = optuna.samplers.RandomSampler(seed=own)
        return Proposals(space, random, config.trials, larger_is_better=larger_is_better)
    num_random = max(LEAST_RANDOM, 2 * len(space.dimensions))
    tpe = optuna.samplers.TPESampler(seed=own, n_startup_trials=num_random)
    return Proposals(space, tpe, config.ahead, larger_is_better=larger_is_better)
