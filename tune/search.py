"""The search on Ray Tune: numbered fits, side by side on one copy of the source, each recorded as it ends.

A finished fit is a file of the search's directory. The same call goes on after any death: recorded fits are read, not
repeated, and ``tune.proposals`` gives the others the points that they would have had.
"""

import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

import ray
import ray.tune
from ray.tune.search import Searcher

from curation.config import TuneConfig
from curation.config.tune import LARGER_IS_BETTER
from curation.errors import CurationError, RunFailedError
from curation.hashing import derive
from curation.report import in_words
from curation.stopping import waited_for
from curation.storage.paths import Place, write_atomically
from curation.telemetry.standing import Standing, Update
from train.launch import remove
from tune.choose import Choice, choose
from tune.objective import Objective, Outcome, Source, run_trial
from tune.proposals import Listed, Proposals, proposals_of
from tune.space import Point, Space

MOST_DEATHS = 3
"""A fit whose process died so often and once more, e.g. for want of memory, is recorded as failed."""


class Fold(NamedTuple):
    """What a fit holds out, and how it is seeded."""

    number: int
    seed: int
    """Of the folds and of the parts of the other rows."""
    fit_seed: int
    """Of initial weights and batches."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fit of a search: what was tried and what came of it."""

    number: int
    kind: str
    drawn: Mapping[str, Any]
    """The values of the space's dimensions; empty for the default."""
    outcome: Outcome | None = None
    error: str | None = None
    """Why it has no outcome."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of ``dataclasses.asdict``."""
        outcome = value["outcome"]
        return cls(**{**value, "outcome": None if outcome is None else Outcome(**outcome)})


class Found(NamedTuple):
    """The end of a search."""

    trials: list[Trial]
    """By number."""
    finals: list[Trial]
    """The fits of the choice: of the default, then of each finalist, all folds with all seeds."""
    finalists: list[int]
    """Numbers of trials, the best first."""
    choice: Choice
    point: Point
    """The winner, or the default."""


class Fits:
    """Numbered fits on one source, recorded in a directory; Ray Tune runs as many at once as there is room for."""

    def __init__(self, source: Source, objective: Objective, config: TuneConfig, directory: Place) -> None:
        self._shared = ray.put((source, objective))
        self._config, self._directory = config, directory

    def run(
        self,
        name: str,
        proposals: Proposals,
        folds: Sequence[Fold],
        *,
        told: Callable[[Trial, int], None],
        hours: float | None = None,
    ) -> list[Trial]:
        """Fit the proposed points, number k on fold ``folds[k]``; those that a former call recorded are not repeated.

        Args:
            name: of the records' folder.
            proposals: the points.
            folds: one for each fit.
            told: called with each fit that has ended, and with how many have.
            hours: no fit starts after so long.

        Returns:
            the fits by number; fewer where ``hours`` ended them.
        """
        journal = _Journal(self._directory / name)
        searcher = _Numbers(proposals, folds, journal, told, hours)
        scratch = self._directory / f"{name}.ray"
        config = self._config
        trainable = ray.tune.with_resources(
            ray.tune.with_parameters(_Fit, shared=[self._shared], num_threads=max(1, round(config.cpus_per_trial))),
            ray.tune.PlacementGroupFactory([config.per_trial]),
        )
        tuner = ray.tune.Tuner(
            trainable,
            tune_config=ray.tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,  # the searcher says when it ends
                max_concurrent_trials=config.parallel,
                reuse_actors=True,
            ),
            run_config=ray.tune.RunConfig(
                name="trials",
                storage_path=str(scratch),
                verbose=0,
                stop=searcher.stopper,
                failure_config=ray.tune.FailureConfig(max_failures=MOST_DEATHS),
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        if searcher.is_over:
            return journal.all
        try:
            with _quiet():
                waited_for(tuner.fit)
        finally:
            searcher.stopper.stopped.set()
        remove(scratch)
        if searcher.failed is not None:
            raise searcher.failed
        return journal.all


def search(
    fits: Fits,
    space: Space,
    objective: Objective,
    config: TuneConfig,
    *,
    seed: int,
    say: Callable[[str], None],
    update: Update,
) -> Found:
    """Try the points of a space, and choose among the best of them and the default.

    Raises:
        RunFailedError: every trial failed.
        ConfigError: a grid over a range.
    """
    larger = LARGER_IS_BETTER[objective.metric]
    proposals, num = proposals_of(config, space, seed=seed, larger_is_better=larger)
    num_finals = (1 + config.finalists) * config.folds * config.seeds
    best: Trial | None = None

    def told(trial: Trial, num_done: int) -> None:
        nonlocal best
        update(Standing(rows=num_done, total=num + num_finals, unit="fits"))
        if trial.outcome is None:
            say(f"trial {trial.number} failed: {trial.error}")
        elif best is None or _ranked([best, trial], larger=larger)[0] is trial:
            best = trial
            value = f"{objective.metric} {trial.outcome.value:.4f}: {in_words(trial.kind, trial.drawn)}"
            say(f"{num_done:,} of {num:,} trials, the best is trial {trial.number}, {value}")

    one, every = folds_of(config, seed)
    trials = fits.run("trials", proposals, [one] * num, told=told, hours=config.hours)
    default = Point.default(space.base)
    finalists = _finalists(trials, config.finalists, larger=larger)
    points = [default, *(space.point(trial.kind, _of_dimensions(trial)) for trial in finalists)]
    say(f"the best {len(finalists)} and the default: {len(every)} fits each on other folds and seeds")
    listed = Listed([point for point in points for _ in every])
    finals = fits.run(
        "finals",
        listed,
        every * len(points),
        told=lambda _, done: update(Standing(rows=num + done, total=num + len(points) * len(every), unit="fits")),
    )
    choice = _compared(finals, finalists, len(every), share_held_out=1 / config.folds, larger=larger)
    numbers = [trial.number for trial in finalists]
    winner = default if choice.winner is None else points[1 + numbers.index(int(choice.winner))]
    return Found(trials, finals, numbers, choice, winner)


def folds_of(config: TuneConfig, seed: int) -> tuple[Fold, list[Fold]]:
    """What every trial of a search holds out, and what the fits of a point in the choice hold out in turn."""
    one = Fold(0, derive(seed, "tune search"), derive(seed, "tune fit"))
    every = [
        Fold(fold, derive(seed, f"tune folds {repeat}"), derive(seed, f"tune fit {repeat}"))
        for repeat in range(config.seeds)
        for fold in range(config.folds)
    ]
    return one, every


def _compared(
    finals: Sequence[Trial], finalists: Sequence[Trial], num: int, *, share_held_out: float, larger: bool
) -> Choice:
    """The choice among the default and finalists, by ``num`` fits of each; one of whose fits failed is out.

    Raises:
        RunFailedError: a fit of the default failed, or one of every finalist.
    """
    default, *others = (finals[k : k + num] for k in range(0, len(finals), num))
    whole = {str(trial.number): fits for trial, fits in zip(finalists, others, strict=True) if _all_ended(fits)}
    if not _all_ended(default):
        raise _without_result("the default", default)
    if not whole:
        raise _without_result("every finalist", finals[num:])
    return choose(
        _values(default),
        {name: _values(fits) for name, fits in whole.items()},
        dict(zip((str(trial.number) for trial in finalists), _values(finalists), strict=True)),
        share_held_out=share_held_out,
        larger_is_better=larger,
    )


def _all_ended(trials: Sequence[Trial]) -> bool:
    return all(trial.outcome is not None for trial in trials)


def _values(trials: Sequence[Trial]) -> list[float]:
    return [trial.outcome.value for trial in trials if trial.outcome is not None]


def _ranked(trials: Sequence[Trial], *, larger: bool) -> list[Trial]:
    def key(trial: Trial) -> tuple[float, int]:
        assert trial.outcome is not None
        return (-trial.outcome.value if larger else trial.outcome.value, trial.number)

    return sorted(trials, key=key)


def _finalists(trials: Sequence[Trial], num: int, *, larger: bool) -> list[Trial]:
    """The best trials at different points.

    Raises:
        RunFailedError: none succeeded.
    """
    found: dict[str, Trial] = {}
    for trial in _ranked([trial for trial in trials if trial.outcome is not None], larger=larger):
        found.setdefault(json.dumps([trial.kind, dict(trial.drawn)], sort_keys=True), trial)
    if not found:
        raise _without_result("every trial", trials)
    return list(found.values())[:num]


def _without_result(what: str, trials: Sequence[Trial]) -> RunFailedError:
    errors = [trial.error for trial in trials if trial.error is not None]
    why = f" ({errors[0]})" if errors else ": tune.hours ended the search before"
    return RunFailedError(f"tune: {what} failed{why}")


def _of_dimensions(trial: Trial) -> dict[str, Any]:
    return {key: value for key, value in trial.drawn.items() if key != "kind"}


class _Journal:
    """The fits that have ended: a file each, so that it is there whole or not at all."""

    def __init__(self, directory: Place) -> None:
        self._directory = directory
        names = directory.iterdir() if directory.is_dir() else ()
        read = (Trial.from_json(json.loads(path.read_text())) for path in names if path.name.endswith(".json"))
        self._done = {trial.number: trial for trial in read}

    @property
    def all(self) -> list[Trial]:
        """By number."""
        return [self._done[number] for number in sorted(self._done)]

    def __len__(self) -> int:
        return len(self._done)

    def get(self, number: int) -> Trial | None:
        """The fit of that number, if it has ended."""
        return self._done.get(number)

    def add(self, trial: Trial) -> None:
        """Record a fit."""
        write_atomically(self._directory / f"{trial.number:05d}.json", json.dumps(asdict(trial), indent=1) + "\n")
        self._done[trial.number] = trial


class _Stopper(ray.tune.Stopper):
    """Ends all trials when the search is interrupted."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.stopped.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        """A fresh one: Ray Tune saves the stopper of an experiment, which is never restored."""
        return (_Stopper, ())


class _Numbers(Searcher):
    """Hands Ray Tune the numbers of the fits that are not recorded, in order, and records what ends."""

    def __init__(
        self,
        proposals: Proposals,
        folds: Sequence[Fold],
        journal: _Journal,
        told: Callable[[Trial, int], None],
        hours: float | None,
    ) -> None:
        super().__init__()
        self.stopper = _Stopper()
        self.failed: Exception | None = None
        self._proposals, self._folds, self._journal, self._told = proposals, folds, journal, told
        self._until = None if hours is None else time.monotonic() + 3600 * hours
        self._next = 0
        self._running: dict[str, Trial] = {}
        self._ended: dict[str, Outcome] = {}
        for trial in journal.all:
            self._tell(trial)

    @property
    def is_over(self) -> bool:
        """All fits are recorded."""
        return len(self._journal) == len(self._folds)

    def suggest(self, trial_id: str) -> Any:
        """The next fit that is not recorded."""
        while self._next < len(self._folds):
            if self._until is not None and time.monotonic() > self._until:
                break
            point = self._proposals.ask(self._next)
            if point is None:
                return None
            number, self._next = self._next, self._next + 1
            if self._journal.get(number) is None:
                trial = Trial(number=number, kind=point.kind, drawn=point.drawn)
                if (same := self._ended.get(self._what(trial))) is not None:
                    self._record(replace(trial, outcome=replace(same, seconds=0.0)))
                    continue
                self._running[trial_id] = trial
                trust = point.trust.model_dump(mode="json")
                return {"point": [point.kind, trust], "fold": self._folds[number]._asdict()}
        return Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record what came of a fit."""
        asked = self._running.pop(trial_id, None)
        if asked is None or self.stopper.stopped.is_set():
            return  # told before, as Ray Tune does; or interrupted, not ended
        died = f"its process died {MOST_DEATHS + 1} times; lower tune.parallel, or declare its memory"
        came: dict[str, Any] = {"error": died} if error or result is None else json.loads(result["came"])
        outcome = came.get("outcome")
        self._record(replace(asked, outcome=None if outcome is None else Outcome(**outcome), error=came.get("error")))

    def _record(self, trial: Trial) -> None:
        try:
            self._journal.add(trial)
        except Exception as failed:  # a full store; Ray Tune would only log it
            self.failed = failed
            self.stopper.stopped.set()
            return
        self._tell(trial)

    def _what(self, trial: Trial) -> str:
        """What is fitted, as text: equal fits give equal outcomes, so that one of them is enough."""
        return json.dumps([trial.kind, dict(trial.drawn), self._folds[trial.number]], sort_keys=True)

    def _tell(self, trial: Trial) -> None:
        if trial.outcome is not None:
            self._ended[self._what(trial)] = trial.outcome
        self._proposals.tell(trial.number, None if trial.outcome is None else trial.outcome.value)
        self._told(trial, len(self._journal))

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray Tune saves the searcher of an experiment, but the journal is what a search goes on from."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """See :meth:`__getstate__`."""

    def restore(self, checkpoint_path: str) -> None:
        """See :meth:`__getstate__`."""


class _Fit(ray.tune.Trainable):
    """A process that fits one point after the other; the source is mapped, not copied."""

    def setup(self, config: dict[str, Any], shared: Sequence[Any] = (), num_threads: int = 1) -> None:
        import torch

        torch.set_num_threads(num_threads)
        self._source, self._objective = ray.get(shared[0])
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        from curation.config import TrustConfig

        kind, trust = new_config["point"]
        self._point, self._fold = Point(kind=kind, trust=TrustConfig.model_validate(trust)), Fold(**new_config["fold"])
        return True

    def step(self) -> dict[str, Any]:
        fold = self._fold
        came: dict[str, Any]
        try:
            outcome = run_trial(
                self._source, self._point, self._objective, fold=fold.number, seed=fold.seed, fit_seed=fold.fit_seed
            )
            came = {"outcome": outcome.to_json()}
        except CurationError as error:
            came = {"error": str(error)}
        except Exception as error:
            came = {"error": f"{type(error).__name__}: {error} ({_where(error)})"}
        return {"came": json.dumps(came), "done": True}


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray Tune prints no lines of its own, and writes no files for each trial."""
    logger, level = logging.getLogger("ray.tune"), logging.getLogger("ray.tune").level
    logger.setLevel(logging.CRITICAL)
    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
    try:
        yield
    finally:
        logger.setLevel(level)
