"""Numbered fits in Ray tasks, side by side on one copy of the source, each recorded as it ends.

The same call resumes after a crash: recorded fits are read, not repeated, and the others get the points that they would
have had (``tune.search``).
"""

import json
import math
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

import ray
import torch
from ray.exceptions import RayError

from curation.cluster import nodes
from curation.config import TuneConfig
from curation.errors import CurationError
from curation.json_types import Json, JsonView
from curation.stopping import LOOK_SECONDS, check
from curation.storage.paths import Place, write_atomically
from tune.objective import Objective, Outcome, TrialRows, run_trial
from tune.space import Point

MOST_DEATHS = 3
"""Maximum number of times that a fit whose process died, e.g. for lack of memory, is tried again."""


class Fold(NamedTuple):
    """The fold that a fit holds out, and its seeds."""

    number: int
    seed: int
    """Seed of the folds and of the parts of the other rows."""
    fit_seed: int
    """Seed of initial weights and batches."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fit of a search: the point that was tried and its outcome."""

    number: int
    kind: str
    drawn: JsonView
    """The values of the space's dimensions; empty for the default."""
    outcome: Outcome | None = None
    error: str | None = None
    """The reason why the trial has no outcome."""

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """Return the trial that ``dataclasses.asdict`` converted to ``value``."""
        outcome = value["outcome"]
        return cls(**{**value, "outcome": None if outcome is None else Outcome(**outcome)})


class Fits:
    """Numbered fits on one source, recorded in a directory; Ray runs as many at once as resources allow."""

    def __init__(self, source: TrialRows, objective: Objective, config: TuneConfig, directory: Place) -> None:
        self._shared = [ray.put((source, objective))]  # within a list: a task maps it itself
        self._config, self._directory = config, directory

    def run(
        self,
        name: str,
        ask: Callable[[int], Point | None],
        folds: Sequence[Fold],
        *,
        on_done: Callable[[Trial, int], None],
        hours: float | None = None,
    ) -> list[Trial]:
        """Return the fits of the points that ``ask`` gives by number, number k on fold ``folds[k]``.

        ``ask`` returns None while it awaits the results of earlier fits. ``name`` is the folder of the fits' records;
        recorded ones are not repeated. ``on_done`` receives each fit that has ended, and the number of ended fits.
        After ``hours`` no fit starts, so that there may be fewer than ``folds``.
        """
        config, until = self._config, math.inf if hours is None else time.time() + 3600 * hours
        fits = _NumberedFits(ask, folds, self._directory / name, on_done)
        asked, deaths = fits.iter_asked(until), Counter[int]()
        fit: Any = ray.remote(max_retries=0, **nodes.make_ray_options(config.per_trial))(_fit)
        how = max(1, round(config.cpus_per_trial)), until
        num_cpus: float = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
        most = config.parallel or 3 * max(1, int(num_cpus / config.cpus_per_trial))
        try:
            while True:
                while len(fits.running) < most and (found := next(asked, None)) is not None:
                    fits.running[fit.remote(self._shared, found[1], folds[found[0].number], *how)] = found
                if not fits.running:
                    return [fits.done[number] for number in sorted(fits.done)]
                ready, _ = ray.wait([*fits.running], timeout=LOOK_SECONDS)
                check()
                for task in ready:
                    trial, point = fits.running.pop(task)
                    try:
                        came: Json = json.loads(ray.get(task))
                    except RayError:
                        deaths[trial.number] += 1
                        if deaths[trial.number] <= MOST_DEATHS:
                            fits.running[fit.remote(self._shared, point, folds[trial.number], *how)] = trial, point
                            continue
                        died = f"its process died {MOST_DEATHS + 1} times; lower tune.parallel, or declare its memory"
                        came = {"error": died}
                    if came:
                        fits.record(Trial.from_json(asdict(trial) | came))
        finally:
            for task in fits.running:  # the search is interrupted, or a record could not be written
                ray.cancel(task, force=True)


class _NumberedFits:
    """The fits of a search that are recorded in a folder, that run, and that are still to be asked for."""

    def __init__(
        self,
        ask: Callable[[int], Point | None],
        folds: Sequence[Fold],
        records: Place,
        on_done: Callable[[Trial, int], None],
    ) -> None:
        self._ask, self._folds, self._records, self._on_done = ask, folds, records, on_done
        self.running: dict[Any, tuple[Trial, Point]] = {}
        """The fits that run, by their task."""
        self._ended: dict[str, Outcome] = {}
        names = records.iterdir() if records.is_dir() else ()
        read = (Trial.from_json(json.loads(path.read_text())) for path in names if path.name.endswith(".json"))
        self.done = {trial.number: trial for trial in read}
        """The fits that have ended, by number."""
        for number in sorted(self.done):
            self._tell(self.done[number])

    def iter_asked(self, until: float) -> Iterator[tuple[Trial, Point] | None]:
        """Yield the fits that are not recorded, in order, or None while results of earlier fits are awaited.

        None is asked for after ``until``, in seconds since 1970. A fit that equals one that has ended is not yielded.
        """
        for number in range(len(self._folds)):
            if time.time() > until:
                return
            while (point := self._ask(number)) is None:
                yield None
            if number in self.done:
                continue
            trial = Trial(number=number, kind=point.kind, drawn=point.drawn)
            fit = trial.kind, trial.drawn, self._folds[number]
            while any(
                (other.kind, other.drawn, self._folds[other.number]) == fit for other, _ in self.running.values()
            ):
                yield None
            if (same := self._ended.get(self._describe_fit(trial))) is not None:
                self.record(replace(trial, outcome=replace(same, seconds=0.0)))
            else:
                yield trial, point

    def record(self, trial: Trial) -> None:
        """Keep a fit that has ended in a file."""
        text = json.dumps(asdict(trial), indent=1) + "\n"
        write_atomically(self._records / f"{trial.number:05d}.json", text)
        self.done[trial.number] = trial
        self._tell(trial)

    def _describe_fit(self, trial: Trial) -> str:
        """Return the fit as text; fits of equal text have equal outcomes and run only once."""
        return json.dumps([trial.kind, dict(trial.drawn), self._folds[trial.number]], sort_keys=True)

    def _tell(self, trial: Trial) -> None:
        if trial.outcome is not None:
            self._ended[self._describe_fit(trial)] = trial.outcome
        self._on_done(trial, len(self.done))


def _fit(shared: Sequence[Any], point: Point, fold: Fold, num_threads: int, until: float) -> str:
    """Return the outcome or the error of a fit as JSON; nothing if it is later than ``until`` (seconds since 1970)."""
    if time.time() > until:
        return "{}"
    torch.set_num_threads(num_threads)
    source, objective = ray.get(shared[0])
    seeds = {"seed": fold.seed, "fit_seed": fold.fit_seed}
    came: Json
    try:
        came = {"outcome": asdict(run_trial(source, point, objective, fold=fold.number, **seeds))}
    except CurationError as error:
        came = {"error": str(error)}
    except Exception as error:  # a failed fit is a row of the table, and the search goes on
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        came = {"error": f"{type(error).__name__}: {error} ({where})"}
    return json.dumps(came)
