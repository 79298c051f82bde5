"""Numbered fits on Ray Tune, side by side on one copy of the source, each recorded as it ends.

The same call resumes after a crash: recorded fits are read, not repeated, and the others get the points that they would
have had (``tune.search``).
"""

import json
import logging
import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import ray
import ray.tune
import torch
from ray.tune.search import Searcher

from curation.config import TrustConfig, TuneConfig
from curation.errors import CurationError
from curation.json_types import Json, JsonView
from curation.stopping import wait_for_call
from curation.storage.paths import Place, write_atomically
from train.launch import remove
from tune.objective import Fold, Outcome, TrialRows, run_trial
from tune.space import Point

MOST_DEATHS = 3
"""Maximum number of times that a fit whose process died, e.g. for lack of memory, is tried again."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fit of a search: the point that was tried and its outcome."""

    number: int
    kind: str
    drawn: JsonView  # values of the space's dimensions; empty for the default
    outcome: Outcome | None = None
    error: str | None = None  # reason why the trial has no outcome

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """Return the trial that ``dataclasses.asdict`` converted to ``value``."""
        outcome = value["outcome"]
        return cls(**{**value, "outcome": None if outcome is None else Outcome(**outcome)})


class Fits:
    """Numbered fits on one source, recorded in a directory; Ray Tune runs as many at once as resources allow."""

    def __init__(self, source: TrialRows, config: TuneConfig, directory: Place) -> None:
        self._shared = ray.put(source)
        self._config, self._directory = config, directory

    def run(
        self,
        name: str,
        ask: Callable[[int], Point | None],
        folds: Sequence[Fold],
        *,
        on_done: Callable[[Trial, int], None],
    ) -> list[Trial]:
        """Return the fits of the points that ``ask`` gives by number, number k on fold ``folds[k]``.

        ``ask`` returns None while it awaits the results of earlier fits. ``name`` is the folder of the fits' records;
        recorded ones are not repeated. ``on_done`` receives each fit that has ended, and the number of ended fits.
        """
        searcher = _FitNumbers(ask, folds, self._directory / name, on_done)
        if len(searcher.done) == len(folds):
            return searcher.trials
        scratch, config = self._directory / f"{name}.ray", self._config
        trainable = ray.tune.with_resources(
            ray.tune.with_parameters(_Fit, shared=[self._shared], num_threads=max(1, round(config.cpus_per_trial))),
            ray.tune.PlacementGroupFactory([config.per_trial]),
        )
        tuner = ray.tune.Tuner(
            trainable,
            tune_config=ray.tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,  # the searcher ends the trials
                max_concurrent_trials=config.parallel,
                reuse_actors=True,
            ),
            run_config=ray.tune.RunConfig(
                name="trials",
                storage_path=str(scratch),
                verbose=0,
                stop=searcher,
                failure_config=ray.tune.FailureConfig(max_failures=MOST_DEATHS),
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        logger, level = logging.getLogger("ray.tune"), logging.getLogger("ray.tune").level
        logger.setLevel(logging.CRITICAL)  # else Ray Tune prints lines, and writes files for each trial
        os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
        try:
            wait_for_call(tuner.fit)
        finally:
            searcher.stopped.set()
            logger.setLevel(level)
        remove(scratch)
        if searcher.failed is not None:
            raise searcher.failed
        return searcher.trials


class _FitNumbers(Searcher, ray.tune.Stopper):
    """A searcher that gives Ray Tune the fits that are not recorded, in order, and records those that end.

    Once ``stopped`` is set, because the search is interrupted, all trials end, and none starts or is recorded.
    """

    def __init__(
        self,
        ask: Callable[[int], Point | None],
        folds: Sequence[Fold],
        records: Place,
        on_done: Callable[[Trial, int], None],
    ) -> None:
        """Keep each fit that has ended in a file of the folder ``records``."""
        super().__init__()
        self.failed: Exception | None = None
        self.stopped = threading.Event()
        self._ask, self._folds, self._records, self._on_done = ask, folds, records, on_done
        self._next = 0
        self._running: dict[str, Trial] = {}
        names = records.iterdir() if records.is_dir() else ()
        read = (Trial.from_json(json.loads(path.read_text())) for path in names if path.name.endswith(".json"))
        self.done = {trial.number: trial for trial in read}
        for trial in self.trials:
            on_done(trial, len(self.done))

    @property
    def trials(self) -> list[Trial]:
        """The fits that have ended, in the order of their numbers."""
        return [self.done[number] for number in sorted(self.done)]

    def suggest(self, trial_id: str) -> Any:
        """Return the next fit that is not recorded, or None while results of earlier fits are awaited."""
        while self._next < len(self._folds) and not self.stopped.is_set():
            point = self._ask(self._next)
            if point is None:
                return None
            number, self._next = self._next, self._next + 1
            if number in self.done:
                continue
            self._running[trial_id] = Trial(number=number, kind=point.kind, drawn=point.drawn)
            trust = point.trust.model_dump(mode="json")
            return {"point": [point.kind, trust], "fold": self._folds[number]._asdict()}
        return Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: Json | None = None, error: bool = False) -> None:
        """Record the outcome or the error of a fit."""
        running = self._running.pop(trial_id, None)
        if running is None or self.stopped.is_set():
            return  # Ray Tune has called before; or the trial was interrupted and has not ended
        died = f"its process died {MOST_DEATHS + 1} times; lower tune.parallel, or declare its memory"
        ended: Json = {"error": died} if error or result is None else json.loads(result["ended"])
        trial = Trial.from_json(asdict(running) | ended)
        try:
            text = json.dumps(asdict(trial), indent=1) + "\n"
            write_atomically(self._records / f"{trial.number:05d}.json", text)
        except Exception as failed:  # a full store; Ray Tune would only log it
            self.failed = failed
            self.stopped.set()
            return
        self.done[trial.number] = trial
        self._on_done(trial, len(self.done))

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        return False  # trials end by themselves, or all by stop_all

    def stop_all(self) -> bool:
        return self.stopped.is_set()

    def __getstate__(self) -> dict[str, Any]:
        """Return no state: Ray Tune saves the searcher of an experiment, but a search resumes from the records."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Do nothing; see :meth:`__getstate__`."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing; see :meth:`__getstate__`."""


class _Fit(ray.tune.Trainable):
    """A process that fits one point after another; the source is mapped, not copied."""

    def setup(self, config: Json, shared: Sequence[Any] = (), num_threads: int = 1) -> None:
        torch.set_num_threads(num_threads)
        self._source = ray.get(shared[0])
        self.reset_config(config)

    def reset_config(self, new_config: Json) -> bool:
        kind, trust = new_config["point"]
        self._point, self._fold = Point(kind=kind, trust=TrustConfig.model_validate(trust)), Fold(**new_config["fold"])
        return True

    def step(self) -> Json:
        result: Json
        try:
            result = {"outcome": asdict(run_trial(self._source, self._point, self._fold))}
        except CurationError as error:
            result = {"error": str(error)}
        except Exception as error:  # a failed fit is a row of the table, and the search goes on
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(last.filename)}:{last.lineno}"
            result = {"error": f"{type(error).__name__}: {error} ({where})"}
        return {"ended": json.dumps(result), "done": True}
