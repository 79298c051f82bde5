"""Stages that fit a trust function on the graded labels of the source split: a given one, or the best of a search."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import yaml

from curation.arms import check_fit_options, find_fitted
from curation.config import DomainConfig, RunConfig, TrustConfig, TuneConfig
from curation.config.states import is_of_prompt
from curation.domains import get_domain
from curation.errors import DegenerateSourceError
from curation.json_types import Json
from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, Inputs, Stage, Table, setting
from curation.rundir.hosts import Host
from curation.rundir.run import Task
from curation.stages.training import make_training_host, training
from curation.storage.paths import write_atomically
from curation.tables import io
from curation.tables.schemas import TOKEN_LOGPROBS
from curation.trust import saved
from tune.space import Space

BEST = "best.yaml"
"""File of the best section ``trust`` of a search."""


class LabelledClasses(Inputs):
    """A closed set of labels, and the labelled rows with their gold labels."""

    names: Sequence[str]
    examples: In[TableRef]


class FitTrust(Stage):
    """A stage that fits the trust ``function`` of the given name, and reports the choice that the fit made."""

    class Made(NamedTuple):
        trust: TrustRef | None
        fit: Json | None
        """Summary of the fit for terminal and report; its ``choice`` is None if there was none."""
        absent: dict[str, str] | None = None

    function: str
    made_by: str
    fit_by: str | None
    """Code that fits the function in a training process, or None if its class fits it in this process."""
    labels: In[TableRef]
    grades: In[TableRef]
    trust: TrustConfig
    seed: int
    closed: LabelledClasses | None = None
    """The labels, if they are a closed set that the function reads."""
    teacher: str | None = setting(default=None)
    """Name of the teacher if labels that are all right or all wrong end the chain, and not the run; else None."""
    revision: int = 2  # a stack of 500 rows has networks

    @property
    def takes(self) -> dict[str, float]:
        """Resources of the workers."""
        return self.trust.takes

    @property
    def host(self) -> Host | None:
        """Training process, or None if the function is fitted in this process."""
        return make_training_host(self.trust) if self.fit_by is not None else None

    def run(self, task: Task) -> Done:
        """Fit the trust function, or end the chain."""
        from train.probes import ClosedLabels
        from train.trust import fit_trust

        num_rows = io.count(self.labels)
        closed = None if self.closed is None else ClosedLabels(tuple(self.closed.names), self.closed.examples)
        how: Json = {"seed": self.seed, "output": task.directory, "closed": closed}
        try:
            with task.progress() as update, training(task, self.trust):
                ref = fit_trust(self.function, self.labels, self.grades, self.trust, update=update, **how)
        except DegenerateSourceError as error:
            if self.teacher is None:
                raise
            why = f"the chain ends, as no trust can be fitted on the answers of {self.teacher} ({error})"
            task.say(why)
            return Done(outputs=self.Made(trust=None, fit=None, absent={"trust": why}), rows=num_rows)
        description = saved.read_description(ref)
        fit, choice = description["fit"], description["fit"].get("choice")
        if choice is not None:
            task.say(choice["reason"])
        facts = {
            "kind": description["kind"],
            "num_fit": fit["num_fit"],
            "share_right_fit": fit["share_right_fit"],
            "num_repeats": fit.get("num_repeats", 0),
            "calibration": description["calibration"],
            "choice": choice,
        }
        return Done(outputs=self.Made(trust=ref, fit=facts), rows=num_rows)


def find_closed_classes(domain: DomainConfig, states: Sequence[str], examples: Table) -> LabelledClasses | None:
    """Return the classes, if labels are a closed set and trust reads a state of the prompt; else None."""
    if not any(map(is_of_prompt, states)) or (names := get_domain(domain).closed_labels()) is None:
        return None
    return LabelledClasses(names=names, examples=examples)


def check_settings(config: TrustConfig) -> None:
    """Raise ``ConfigError`` for a setting of ``trust.options`` that a trust function does not take."""
    for name in find_fitted(config.options):
        check_fit_options(f"trust.options.{name}", name, config, config.options[name])


class Search(Stage):
    """A stage that searches for a trust function on the source split's labels, and fits the best one on all of them."""

    class Made(NamedTuple):
        trust: TrustRef | None
        fit: Json | None
        absent: dict[str, str] | None
        best: Json
        kind: str
        choice: Json
        finalists: Any
        num_trials: int
        num_failed: int
        num_rows: int
        directory: str

    labels: In[TableRef]
    grades: In[TableRef]
    stored: list[str]
    """Names of the states, and ``token_logprobs``, that the labels have."""
    tune: TuneConfig
    trust: TrustConfig
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
        from tune.objective import check_folds, read_source
        from tune.search import make_folds
        from tune.search import search as search_space
        from tune.space import Point

        tune, trust, seed = self.tune, self.trust.without(self.trust.RESOURCES), self.seed
        space = Space.of(tune.space, trust, stored=tuple(self.stored))
        source, num_left_out = read_source(self.labels, self.grades, space.inputs, trust, seed)
        if num_left_out:
            task.say(f"{num_left_out:,} graded rows lack one of {', '.join(space.inputs)}; no trial reads them")
        first, _ = make_folds(tune, seed)
        check_folds(source, first)
        source.rows(Point.default(space.base).trust, first)  # raises as every trial would
        fits = Fits(source, tune, task.directory)
        with task.progress() as update:
            found = search_space(fits, space, tune, seed=seed, say=task.say, update=update)
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
            choice=asdict(found.choice),
            finalists=found.finalists,
            num_trials=len(found.trials),
            num_failed=sum(trial.outcome is None for trial in found.trials),
            num_rows=len(source.row_ids_N),
            directory=str(task.directory),
        )
        return Done(outputs=made, rows=made.num_rows)


def check_search(config: RunConfig) -> None:
    """Raise ``ConfigError`` if the search's space has a bad point."""
    Space.of(config.tune.space, config.trust, stored=list_stored_states(config))


def list_stored_states(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the states, and ``token_logprobs`` if a run has it, of the source split's labels."""
    return (*config.teacher.states, *([TOKEN_LOGPROBS] if config.teacher.token_logprobs else []))
