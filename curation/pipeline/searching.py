"""The search for a trust function: a stage of a run, or the last one of ``curate tune``."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from curation.arms import fitted_of
from curation.config import RiskConfig, RunConfig, TrustConfig, TuneConfig
from curation.pipeline import trusting
from curation.pipeline.given import Generation
from curation.pipeline.training import training_host
from curation.refs import TableRef
from curation.rundir.graph import Built, Done, Out
from curation.rundir.run import Task
from curation.tables.schemas import TOKEN_LOGPROBS
from tune.space import Space, spelled_out

if TYPE_CHECKING:
    from tune.objective import Objective

BEST = "best.yaml"


def searching(generation: Generation, labels: Out, grades: Out) -> Built:
    """The search of the section ``tune`` on the labels of the source split."""
    config, tune, sizes = generation.config, generation.config.tune, generation.sizes
    groups = None
    if tune.groups is not None:
        id_column = config.sources[config.splits.source.source].id_column
        files = [file.to_json() for file in generation.files]
        groups = {"column": tune.groups, "id_column": id_column, "files": files}
    return Built(
        name=generation.name("search"),
        work=search,
        inputs={
            "labels": labels,
            "grades": grades,
            "groups": groups,
            "stored": list(stored(config)),
            "tune": tune.without(tune.RESOURCES).model_copy(update={"space": spelled_out(tune.space)}),
            "trust": config.fitting.without({*TrustConfig.RESOURCES, "search"}),
            "share": share_of(config, sizes["pool"]),
            "risk": config.selection.budget.risk if tune.metric == "certified" else None,
            "seed": config.seed,
        },
        settings={"resources": tune.resources, "fit_resources": config.trust.resources},
        num_rows=sizes["source"],
        takes={kind: (tune.parallel or 1) * amount for kind, amount in tune.per_trial.items()},
        host=training_host(config.trust),  # fits what was found
    )


def check(config: RunConfig, num_pool: int) -> None:
    """Refuse a search that could not begin, before anything is labelled for it.

    Raises:
        ConfigError: a bad point of the space, or a metric that needs what the run does not have.
    """
    budget = config.selection.budget
    space, _ = _asked(config.tune, config.fitting, stored(config), share_of(config, num_pool), budget.risk)
    if config.tune.search == "grid":
        next(space.grid())


def stored(config: RunConfig) -> tuple[str, ...]:
    """The states, and ``token_logprobs`` where a run has it, of the labels of the source split."""
    states = config.fitting.states if config.fitting.states == ("pca",) else config.teacher.states
    return (*states, *([TOKEN_LOGPROBS] if config.teacher.token_logprobs else []))


def share_of(config: RunConfig, num_pool: int) -> float | None:
    """Of all rows, the share whose purity counts; ``None`` where the metric or the run says none."""
    budget = config.selection.budget
    if config.tune.metric != "purity":
        return None
    return config.tune.share or budget.share or (None if budget.n is None else min(1.0, budget.n / num_pool))


def _asked(
    tune: TuneConfig, trust: TrustConfig, stored: tuple[str, ...], share: float | None, risk: RiskConfig | None
) -> "tuple[Space, Objective]":
    from tune.objective import Objective

    objective = Objective(metric=tune.metric, folds=tune.folds, share=share, risk=risk)
    return Space.of(tune.space, trust, stored=stored), objective


def search(
    task: Task,
    labels: TableRef,
    grades: TableRef,
    groups: dict[str, Any] | None,
    stored: list[str],
    tune: TuneConfig,
    trust: TrustConfig,
    share: float | None,
    risk: RiskConfig | None,
    seed: int,
    resources: dict[str, Any],
    fit_resources: dict[str, Any],
) -> Done:
    """Search, fit what was found on the whole source, and write what was tried to the stage's directory."""
    from curation.storage.paths import write_atomically
    from tune.fits import Fits
    from tune.objective import read_source
    from tune.search import folds_of
    from tune.search import search as search_space

    tune = tune.model_copy(update=resources)
    space, objective = _asked(tune, trust, tuple(stored), share, risk)
    group_of = None if groups is None else _groups(grades, **groups)
    source, num_left_out = read_source(labels, grades, space.inputs, groups=group_of)
    if num_left_out:
        task.say(f"{num_left_out:,} graded rows lack one of {', '.join(space.inputs)}; no trial reads them")
    source = source.share(trust, seed)
    objective.check(source, seed)
    one, every = folds_of(tune, seed)
    objective.check_components(source, space, [(fold.number, fold.seed) for fold in (one, *every)])
    with task.progress() as update:
        found = search_space(
            Fits(source, objective, tune, task.directory),
            space,
            objective,
            tune,
            seed=seed,
            say=task.say,
            update=update,
        )
    best = found.point.section(trust)
    write_atomically(task.directory / BEST, yaml.safe_dump({"trust": best}, sort_keys=False))
    kind = fitted_of([found.point.kind])[found.point.kind]
    fit = trusting.fit(
        replace(task, directory=task.directory / "trust"),
        found.point.kind,
        kind.made_by,
        kind.fit,
        labels,
        grades,
        found.point.trust,
        seed,
        fit_resources,
    )
    outputs = {
        **fit.outputs,
        "best": best,
        "kind": found.point.kind,
        "choice": found.choice.to_json(),
        "finalists": found.finalists,
        "num_trials": len(found.trials),
        "num_failed": sum(trial.outcome is None for trial in found.trials),
        "num_rows": len(source.row_ids_N),
        "metric": objective.metric,
        "directory": str(task.directory),
    }
    return Done(outputs=outputs, rows=len(source.row_ids_N))


def _groups(grades: TableRef, column: str, id_column: str | None, files: list[dict[str, Any]]) -> dict[int, str]:
    """The group of every graded source row.

    Raises:
        SourceError: the files have no such column.
    """
    from curation.domains.grading import read_grades
    from curation.sources import SourceFile, values_of

    return values_of(map(SourceFile.from_json, files), column, read_grades(grades).row_ids_N, id_column)
