"""A search for a trust function: the trials, the finalists on other folds and seeds, and the choice.

Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) proposes trial k from the results of trials 0
to k - ``AHEAD`` alone, in their order. So a search tries the same points after a kill or with another number of trials
at once.

The best of many trials looks better than it is. So the best few are fitted again, on every fold and several seeds, each
beside the default on the same rows and with the same seed, and the default stays unless a finalist is proven
better. Folds share rows, so their differences are dependent: the interval is that of the corrected resampled t-test
(Nadeau and Bengio, "Inference for the Generalization Error", 2003), at a level divided by the number of finalists.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import optuna
from scipy import stats

from curation.arrays import Float64s
from curation.config import TuneConfig
from curation.errors import RunFailedError
from curation.hashing import derive
from curation.report import describe_point
from curation.telemetry.standing import Standing, Update
from tune.fits import Fits, Trial
from tune.objective import Fold
from tune.space import KIND, Point, Space

LEAST_RANDOM = 10  # minimum number of first trials that the estimator draws at random
AHEAD = 8  # maximum number of trials that run at once, since a proposal reads the results of the trials before those
LEVEL = 0.05  # probability that the default is replaced by a finalist that is not better, over all finalists


class Proposals:
    """The points of trials 0, 1, 2, ... by Optuna's estimator, which receives their results in any order."""

    def __init__(self, space: Space, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        num_random = max(LEAST_RANDOM, 2 * len(space.dimensions))
        sampler = optuna.samplers.TPESampler(seed=derive(seed, "tpe") % 2**32, n_startup_trials=num_random)
        self._space, self._study = space, optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: list[optuna.Trial] = []
        self._results: dict[int, float | None] = {}
        self._num_told = 0  # results that the study has received

    def ask(self, number: int) -> Point | None:
        """Return the next trial's point, or ``None`` while earlier results are awaited. Call in trial order."""
        while self._num_told < number - AHEAD + 1:
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
        """Record the AUC of a trial, ``None`` if it failed."""
        self._results[number] = value


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The AUC of a finalist less that of the default."""

    value: float
    low: float
    high: float  # upper end of the interval, which holds for all finalists at once at confidence 1 - ``LEVEL``
    num_pairs: int  # number of paired fits


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The result of a search."""

    winner: str | None  # finalist that replaces the default, or ``None`` if the default stays
    differences: Mapping[str, Difference]  # difference of each finalist to the default, by finalist
    optimism: float
    """The best trial's value in the search minus the mean of its new fits: the gain that comes only from choosing the
    best of many."""


class SearchResult(NamedTuple):
    """The result of a search, with its trials."""

    trials: list[Trial]  # trials in the order of their numbers
    finals: list[Trial]  # fits for the choice: those of the default, then of each finalist, on all folds with all seeds
    finalists: list[int]  # numbers of the finalists' trials, the best first
    choice: Choice
    point: Point  # point of the winner, or the default


def search(
    fits: Fits, space: Space, config: TuneConfig, *, seed: int, say: Callable[[str], None], update: Update
) -> SearchResult:
    """Try the points of a space, and choose among the best and the default; ``RunFailedError`` if all trials failed."""
    proposals, num = Proposals(space, seed), config.trials
    num_finals = (1 + config.finalists) * config.folds * config.seeds
    best: Trial | None = None

    def on_done(trial: Trial, num_done: int) -> None:
        nonlocal best
        proposals.tell(trial.number, None if trial.outcome is None else trial.outcome.value)
        update(Standing(rows=num_done, total=num + num_finals, unit="fits"))
        if trial.outcome is None:
            say(f"trial {trial.number} failed: {trial.error}")
        elif best is None or _rank_trials([best, trial])[0] is trial:
            best = trial
            value = f"AUC {trial.outcome.value:.4f}: {describe_point(trial.kind, trial.drawn)}"
            say(f"{num_done:,} of {num:,} trials, the best is trial {trial.number}, {value}")

    one, every = make_folds(config, seed)
    trials = fits.run("trials", proposals.ask, [one] * num, on_done=on_done)
    default = Point.default(space.base)
    at_points: dict[str, Trial] = {}  # trials at the same point count once
    for trial in _rank_trials(trials):
        at_points.setdefault(json.dumps([trial.kind, dict(trial.drawn)], sort_keys=True), trial)
    if not at_points:
        raise _without_result("every trial", trials)
    finalists = list(at_points.values())[: config.finalists]
    drawn = [{key: value for key, value in trial.drawn.items() if key != KIND} for trial in finalists]
    points = [default, *(space.point(trial.kind, values) for trial, values in zip(finalists, drawn, strict=True))]
    say(f"the best {len(finalists)} and the default: {len(every)} fits each on other folds and seeds")
    finals = fits.run(
        "finals",
        [point for point in points for _ in every].__getitem__,
        every * len(points),
        on_done=lambda _, done: update(Standing(rows=num + done, total=num + len(points) * len(every), unit="fits")),
    )
    choice = _compare_finalists(finals, finalists, len(every), share_held_out=1 / config.folds)
    numbers = [trial.number for trial in finalists]
    winner = default if choice.winner is None else points[1 + numbers.index(int(choice.winner))]
    return SearchResult(trials, finals, numbers, choice, winner)


def make_folds(config: TuneConfig, seed: int) -> tuple[Fold, list[Fold]]:
    """Return the fold that every trial of a search holds out, and the folds that the final fits hold out in turn."""
    one = Fold(0, config.folds, derive(seed, "tune search"), derive(seed, "tune fit"))
    every = [
        Fold(fold, config.folds, derive(seed, f"tune folds {repeat}"), derive(seed, f"tune fit {repeat}"))
        for repeat in range(config.seeds)
        for fold in range(config.folds)
    ]
    return one, every


def _compare_finalists(
    finals: Sequence[Trial], finalists: Sequence[Trial], num: int, *, share_held_out: float
) -> Choice:
    """Return the choice among default and finalists, by ``num`` fits of each; a failed fit excludes a finalist."""
    default, *others = (_get_values(finals[k : k + num]) for k in range(0, len(finals), num))
    names = [str(trial.number) for trial in finalists]
    ended = {name: values for name, values in zip(names, others, strict=True) if len(values) == num}
    if len(default) < num:
        raise _without_result("the default", finals[:num])
    if not ended:
        raise _without_result("every finalist", finals[num:])
    in_search = dict(zip(names, _get_values(finalists), strict=True))
    return choose(default, ended, in_search, share_held_out=share_held_out)


def _get_values(trials: Sequence[Trial]) -> list[float]:
    return [trial.outcome.value for trial in trials if trial.outcome is not None]


def _rank_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that succeeded, the best first."""
    valued = [(-trial.outcome.value, trial.number, trial) for trial in trials if trial.outcome is not None]
    return [trial for _, _, trial in sorted(valued, key=lambda item: item[:2])]


def _without_result(what: str, trials: Sequence[Trial]) -> RunFailedError:
    error = next(trial.error for trial in trials if trial.error is not None)
    return RunFailedError(f"tune: {what} failed ({error})")


def choose(
    default_R: npt.ArrayLike,
    finalists: Mapping[str, npt.ArrayLike],
    in_search: Mapping[str, float],
    *,
    share_held_out: float,
) -> Choice:
    """Return the choice between the default and the finalists by their AUC in R fits, one a fold and seed.

    ``in_search``: each finalist's AUC in the search. ``share_held_out``: the share of the rows that a fit holds out.
    """
    values = {name: np.asarray(given, dtype=np.float64) for name, given in finalists.items()}
    differences, level = {}, LEVEL / len(finalists)
    for name, value_R in values.items():
        ahead_R = value_R - np.asarray(default_R)
        differences[name] = compute_corrected_difference(ahead_R, share_held_out=share_held_out, level=level)
    best = max(differences, key=lambda name: differences[name].value)
    first = max(finalists, key=lambda name: in_search[name])
    return Choice(
        winner=best if differences[best].low > 0 else None,
        differences=differences,
        optimism=float(in_search[first] - values[first].mean()),
    )


def compute_corrected_difference(difference_R: Float64s, *, share_held_out: float, level: float) -> Difference:
    """Return the mean of paired differences, with the interval that misses with probability ``level``.

    By the corrected resampled t-test the mean's variance is (1 / R + n_test / n_train) times the sample's, since R fits
    on overlapping rows tell less than R independent ones.
    """
    num = len(difference_R)
    mean = float(difference_R.mean())
    spread = float(difference_R.std(ddof=1)) * math.sqrt(1 / num + share_held_out / (1 - share_held_out))
    half = float(stats.t.ppf(1 - level / 2, num - 1)) * spread
    return Difference(value=mean, low=mean - half, high=mean + half, num_pairs=num)
