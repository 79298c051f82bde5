"""The search for a trust function: a stage of a run, or the last stage of ``curate tune``."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from curation.arms import find_fitted
from curation.config import RiskConfig, RunConfig, TrustConfig, TuneConfig
from curation.json_types import Json
from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.hosts import Host
from curation.rundir.run import Task
from curation.stages.fit import FitTrust
from curation.stages.training import make_training_host
from curation.storage.paths import write_atomically
from curation.tables.schemas import TOKEN_LOGPROBS
from tune.space import Space

if TYPE_CHECKING:
    from tune.objective import Objective

BEST = "best.yaml"


class Search(Stage):
    """A stage that searches for a trust function on the source split's labels, and fits the best one on all of them."""

    class Made(NamedTuple):
        trust: TrustRef | None
        fit: Json | None
        absent: dict[str, str] | None
        best: Json
        """Section ``trust`` of the configuration for the best trust function."""
        kind: str
        choice: Json
        finalists: Any
        num_trials: int
        num_failed: int
        num_rows: int
        metric: str
        directory: str
        """Directory to which the trials are written."""

    labels: In[TableRef]
    grades: In[TableRef]
    stored: list[str]
    """Names of the states, and ``token_logprobs``, that the labels have."""
    tune: TuneConfig
    trust: TrustConfig
    share: float | None
    risk: RiskConfig | None
    seed: int

    @property
    def takes(self) -> dict[str, float]:
        """Resources of the concurrent trials."""
        return {kind: (self.tune.parallel or 1) * amount for kind, amount in self.tune.per_trial.items()}

    @property
    def host(self) -> Host | None:
        """Training process for fitting the best trust function."""
        return make_training_host(self.trust)

    def run(self, task: Task) -> Done:
        """Search, fit the best trust function on the whole source, and write the trials to the stage's directory."""
        from tune.fits import Fits
        from tune.objective import read_source
        from tune.search import make_folds
        from tune.search import search as search_space

        tune, trust, seed = self.tune, self.trust.without(self.trust.RESOURCES), self.seed
        space, objective = _make_search(tune, trust, tuple(self.stored), self.share, self.risk)
        source, num_left_out = read_source(self.labels, self.grades, space.inputs)
        if num_left_out:
            task.say(f"{num_left_out:,} graded rows lack one of {', '.join(space.inputs)}; no trial reads them")
        source = source.share(trust, seed)
        objective.check(source, seed)
        one, every = make_folds(tune, seed)
        objective.check_components(source, space, [(fold.number, fold.seed) for fold in (one, *every)])
        fits = Fits(source, objective, tune, task.directory)
        with task.progress() as update:
            found = search_space(fits, space, objective, tune, seed=seed, say=task.say, update=update)
        best = found.point.section(trust)
        write_atomically(task.directory / BEST, yaml.safe_dump({"trust": best}, sort_keys=False))
        fitted = find_fitted([found.point.kind])[found.point.kind]
        fit = FitTrust(
            name=self.name,
            function=found.point.kind,
            made_by=fitted.made_by,
            fit_by=fitted.fit,
            labels=self.labels,
            grades=self.grades,
            trust=found.point.trust.model_copy(update=self.trust.resources),
            seed=seed,
        ).run(replace(task, directory=task.directory / "trust"))
        made = self.Made(
            **fit.outputs._asdict(),
            best=best,
            kind=found.point.kind,
            choice=found.choice.to_json(),
            finalists=found.finalists,
            num_trials=len(found.trials),
            num_failed=sum(trial.outcome is None for trial in found.trials),
            num_rows=len(source.row_ids_N),
            metric=objective.metric,
            directory=str(task.directory),
        )
        return Done(outputs=made, rows=made.num_rows)


def check(config: RunConfig, num_pool: int) -> None:
    """Raise ``ConfigError`` if the search's space has a bad point, or its metric needs something that the run lacks."""
    stored, share = list_stored_states(config), get_search_share(config, num_pool)
    space, _ = _make_search(config.tune, config.fitting, stored, share, config.selection.budget.risk)
    if config.tune.search == "grid":
        next(space.grid())


def list_stored_states(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the states, and ``token_logprobs`` if a run has it, of the source split's labels."""
    states = config.fitting.states if config.fitting.states == ("pca",) else config.teacher.states
    return (*states, *([TOKEN_LOGPROBS] if config.teacher.token_logprobs else []))


def get_search_share(config: RunConfig, num_pool: int) -> float | None:
    """Return the share of all rows whose purity counts, or None if the metric or the run has no such share."""
    budget = config.selection.budget
    if config.tune.metric != "purity":
        return None
    return config.tune.share or budget.share or (None if budget.n is None else min(1.0, budget.n / num_pool))


def _make_search(
    tune: TuneConfig, trust: TrustConfig, stored: tuple[str, ...], share: float | None, risk: RiskConfig | None
) -> "tuple[Space, Objective]":
    from tune.objective import Objective

    objective = Objective(metric=tune.metric, folds=tune.folds, share=share, risk=risk)
    return Space.of(tune.space, trust, stored=stored), objective
