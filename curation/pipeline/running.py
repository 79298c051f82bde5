"""From a configuration to its report: opens the run directory, does what is missing, and collects what was made."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from curation import report
from curation.cluster import capacity, membership
from curation.cluster.session import local_or_cluster
from curation.cluster.versions import versions
from curation.config import RunConfig
from curation.config.ablation import Ablation
from curation.config.resolved import warnings
from curation.domains import get_domain
from curation.errors import ConfigError, RunFailedError
from curation.pipeline import ablating
from curation.pipeline.chain import Chain, check_models, describe
from curation.pipeline.kept_forecast import saved, used, used_since
from curation.pipeline.searching import check as check_search
from curation.redaction import redacted_in
from curation.rundir.graph import (
    Known,
    Outputs,
    Skipped,
    Stage,
    Status,
    dependents,
    ordered,
    present,
    resolved,
    statuses,
    steps,
    waited_for,
)
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run, files_of
from curation.selection.budget import check_pool
from curation.sources import check_unchanged, discover, split_sizes
from curation.storage import lease
from curation.storage.paths import Place, write_atomically
from curation.telemetry import tracking
from curation.telemetry.console import say


class Unfinished(Exception):
    """A run is asked for its results, and a stage of it is not done."""

    def __init__(self, stage: str, why: str, redo: str = "") -> None:
        super().__init__(stage, why, redo)
        self.stage, self.why, self.redo = stage, why, redo


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A run directory, and what is to be done in it."""

    config: RunConfig
    manifest: Manifest
    chain: Chain
    num_pool: int
    """Rows of the pool of one generation."""

    @property
    def statuses(self) -> list[Status]:
        """Where every stage stands."""
        return list(statuses(self.chain.stages, self.manifest.records))

    def nodes(self, num: int, came: list[str], left: list[str]) -> None:
        """Tell the events how many nodes the cluster has now, which came and which left."""
        self.manifest.event("nodes", num=num, came=came, left=left)


def run_chain(
    config: RunConfig,
    *,
    config_path: str | None = None,
    command: str | None = None,
    wait: bool = False,
    redo: Sequence[str] = (),
) -> dict[str, Any]:
    """Do what is missing of every generation and write the report; the report's content.

    ``config_path`` and ``command`` say in the report how to do it again. Where another driver has the run directory,
    this one is refused or, with ``wait``, begins when that one has ended. ``redo`` names stages to do again, with all
    that depends on them.
    """
    tracking.require(config.tracking)
    with _at_work(config, wait=wait, redo=redo) as (opened, run):
        known = run.do(opened.chain.stages)
        record = _record(opened, known, config_path, command)
        ended = len(record.generations)
        if ended < len(opened.chain.generations):
            say(f"generation {ended - 1} selected nothing, so that none of its students can teach: the chain ends")
        content = report.collect(record)
        html, numbers = report.write(content, run.directory)
        say(f"report: {html}")
        files = {path.name: path.read_text() for path in (html, numbers)}
        for problem in tracking.publish(config.tracking, tracking.entry_of(content, str(run.directory), files)):
            run.manifest.event("untracked", error=problem)
            say(problem)
        return content


def run_search(
    config: RunConfig, *, config_path: str | None = None, command: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Search for a trust function, with the stages that it needs, and write its page; the page's content.

    Raises:
        ConfigError: a bad point of the space, or a metric that needs what the run does not have.
    """
    with _at_work(config, wait=wait, searching=True) as (opened, run):
        stage = opened.chain.first.search
        stages = ordered([stage.value()])
        found = run.do(stages)[stage.name]
        assert isinstance(found, Mapping), "a search always has something to do"
        content = report.collect_search(
            report.SearchRecord(
                name=config.name,
                seed=config.seed,
                config_path=config_path,
                command=command,
                tune=config.tune.model_dump(mode="json"),
                versions=versions(),
                seconds={stage.name: opened.manifest.stages[stage.name].seconds for stage in stages},
                found=found,
            )
        )
        page, _ = report.write_search(content, run.directory)
        say(f"report: {page}")
        return content


def run_ablation(
    ablation: Ablation, directory: Place, *, command: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Run the stages of all variants that are missing, seed after seed, and write the tables; the page's content.

    Each seed has a run directory in ``directory``, which it shares with other ablations of the same name.

    Raises:
        ConfigError: an ablation that could not be measured.
    """
    ablating.check(ablation)
    seeds, shares = {}, {}
    for seed, variants in ablation.variants.items():
        home = directory / variants[0].config.name / f"seed-{seed}"
        with _at_work(variants[0].config.model_copy(update={"run_dir": str(home)}), wait=wait) as (opened, run):
            shares = ablating.shares(ablation, variants, opened.num_pool)
            described = ablating.describe_seed(ablation, variants, opened.manifest.source_files)
            seeds[seed] = resolved(described._asdict(), run.do(described.stages))
    content = report.collect_ablation(
        report.AblationRecord(
            name=ablation.name,
            command=command,
            config=redacted_in(ablation.config.model_dump(mode="json", by_alias=True)),
            versions=versions(),
            shares=shares,
            seeds=seeds,
        )
    )
    page, _ = report.write_ablation(content, directory)
    say(f"report: {page}")
    return content


@contextmanager
def _at_work(
    config: RunConfig, *, wait: bool, searching: bool = False, redo: Sequence[str] = ()
) -> Iterator[tuple[Opened, Run]]:
    """The run directory held and opened, Ray started or joined, and the cluster's nodes followed.

    ``searching``: the section ``tune`` is checked before anything is done. ``redo``: stages to do again.
    """
    check_models(config, loads=True)
    if redo:  # a wrong name is told before Ray is started
        _redone(open_run(config, save=False), redo)
    for line in warnings(config):
        say(f"warning: {line}")
    Manifest.load(config.directory)  # a damaged one is refused before anything is written beside it
    with (
        lease.hold(config.directory, wait=wait) as held,
        local_or_cluster(config.ray),
        files_of(config.directory),
    ):
        if (waits := capacity.check_room(capacity.needs(config))) is not None:
            say(waits)
        opened = open_run(config, save=True, guard=held.still_held)
        if again := _redone(opened, redo):
            opened.manifest.event("redo", stages=again)
            say(f"to be done again: {', '.join(again)}")
            opened.manifest.redo(again)
        if searching or config.trust.search:
            check_search(config, opened.num_pool)
        if not all(status.is_settled for status in opened.statuses):
            import transformers  # noqa: F401  it replaces its module while it is imported, which stages at once see

        run = Run(
            config.name,
            opened.manifest,
            max_stages=config.ray.max_stages,
            room=capacity.resources,
            hold_cpus=not capacity.is_one_machine(config.ray),
            redo=f"curate run {config.directory} --redo",
        )
        with membership.follow(opened.nodes):
            yield opened, run


def _redone(opened: Opened, names: Sequence[str]) -> list[str]:
    """The stages that are done again if those named are: with all that depends on them.

    Raises:
        ConfigError: no stage has such a name.
    """
    stages = opened.chain.stages
    return dependents([_stage(opened, name, alone=False).name for name in names], stages)


def run_part(config: RunConfig, name: str, *, alone: bool, wait: bool = False, redo: Sequence[str] = ()) -> None:
    """Do one stage, with what it needs or, ``alone``, without; no report is written.

    Raises:
        ConfigError: no stage has that name, or ``alone`` and what it needs is not done.
    """
    stage = _stage(open_run(config, save=False), name, alone=alone)  # a wrong name is told before Ray is started
    with _at_work(config, wait=wait, redo=redo) as (opened, run):
        stage = _stage(opened, stage.name, alone=alone)
        run.do(ordered([stage.value()]))
        left = sum(not status.is_settled for status in opened.statuses)
        say(f"{stage.name} is done; {left:,} stages of the run are left" if left else "all stages of the run are done")


def _stage(opened: Opened, name: str, *, alone: bool) -> Stage:
    """The stage of that name, or of that name without its generation where one stage has it.

    Raises:
        ConfigError: none is called so, or several are; or ``alone``, and what it needs is not done.
    """
    stages = opened.chain.stages
    found = [stage for stage in stages if name in (stage.name, stage.name.partition("/")[2])]
    if not found:
        near = difflib.get_close_matches(name, [stage.name for stage in stages], n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        listed = ", ".join(stage.name for stage in stages)
        raise ConfigError(f"{name}: no stage is called so; {hint}`curate plan` lists them: {listed}")
    if len(found) > 1:
        raise ConfigError(f"{name}: several stages end so; name one: {', '.join(stage.name for stage in found)}")
    (stage,) = found
    for status in opened.statuses if alone else ():
        if status.stage.name in waited_for(stage) and not status.is_settled:
            raise ConfigError(
                f"--only: {stage.name} needs {status.stage.name}, which is not done ({status.words}); "
                f"use --until {name}, which does it too"
            )
    return stage


def rewrite_report(config: RunConfig, *, config_path: str, command: str) -> Place:
    """Write the report of a finished run again; the page's path.

    Raises:
        RunFailedError: a stage is missing.
    """
    try:
        record = finished(config, config_path=config_path, command=command)
    except Unfinished as missing:
        raise RunFailedError(
            f"{config.directory}: no report yet, stage {missing.stage} is missing ({missing.why}); "
            f"`curate run{missing.redo}` does it"
        ) from None
    html, _ = report.write(report.collect(record), config.directory)
    return html


def finished(config: RunConfig, *, config_path: str | None = None, command: str | None = None) -> report.RunRecord:
    """The record of a finished run, from which its report is made; nothing is done or written.

    Raises:
        Unfinished: a stage is missing.
    """
    opened = open_run(config, save=False)
    known: dict[str, Outputs | Skipped] = {}
    for status in statuses(opened.chain.stages, opened.manifest.records, known):
        if not status.is_settled:
            redo = f" {config.directory} --redo {status.stage.name}" if status.state == "damaged" else ""
            raise Unfinished(status.stage.name, status.words, redo)
    return _record(opened, known, config_path, command)


def open_run(config: RunConfig, *, save: bool, guard: lease.Guard = lease.unguarded) -> Opened:
    """The run directory of a configuration, checked against it, and its stages; ``save``: what is new is written.

    ``guard`` is called before anything there is changed for good.

    Raises:
        UserError: the directory belongs to other rows, an input changed, or something that is named is not there.
    """
    check_models(config)
    get_domain(config.domain)
    manifest = Manifest.load(config.directory, guard=guard)
    # splits.overlap changes no row id: a run that was refused for shared questions goes on when it is set.
    chosen = {"domain", "seed", "sources", "splits"}
    identity = config.model_dump(mode="json", include=chosen, exclude={"splits": {"overlap"}})
    known = manifest.source_files
    files = {name: discover(source, known.get(name, ())) for name, source in config.sources.items()}
    for name, before in known.items():
        check_unchanged(before, files.get(name, []))
    num_pool = split_sizes(config, files)["pool"] // max(1, len(config.generations))
    check_pool(config.selection.budget, num_pool)
    described = {name: [file.to_json() for file in items] for name, items in files.items()}
    manifest.identify(identity, described, save=save)
    if save:
        settings = redacted_in(config.model_dump(mode="json", by_alias=True))  # null, too, is a choice
        write_atomically(manifest.directory / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    return Opened(config=config, manifest=manifest, chain=describe(config, files), num_pool=num_pool)


def _record(opened: Opened, known: Known, config_path: str | None, command: str | None) -> report.RunRecord:
    config, manifest = opened.config, opened.manifest
    forecast = saved(config)
    prepared = known[opened.chain.prepared.name]
    assert isinstance(prepared, Mapping), "the prepare stage needs nothing that could be missing"
    stages = opened.chain.stages
    step_of, after = steps(stages), {stage.name: waited_for(stage) for stage in stages}
    done = {name: manifest.stages[name] for name, made in known.items() if not isinstance(made, Skipped)}
    tables = present({name: opened.chain.prepared.table("tables", name) for name in prepared["tables"]}, known)
    generations = [present(fields, known) for fields in opened.chain.generations]
    return report.RunRecord(
        name=config.name,
        config=redacted_in(config.model_dump(mode="json", by_alias=True)),
        config_path=config_path,
        seed=config.seed,
        versions=versions(),
        command=command or "curation.run(curation.config.load.load_config('config.yaml'))",
        domain=get_domain(config.domain_of("pool")),
        prepared=tables,
        prepare_counts=prepared["counts"],
        overlap=prepared["overlap"],
        stages=[
            report.StageRecord(
                name=name,
                seconds=stage.seconds,
                rows=stage.rows,
                rows_per_second=stage.rows / stage.seconds if stage.seconds else None,
                started=stage.started,
                step=step_of[name],
                after=after[name],
            )
            for name, stage in done.items()
        ],
        passes=[
            report.PassRecord(
                name=name,
                **stage.outputs["pass"],
                total_rows=stage.rows,
                prompt_tokens=stage.outputs.get("counts", {}).get("prompt_tokens"),
                output_tokens=stage.outputs.get("counts", {}).get("output_tokens"),
            )
            for name, stage in done.items()
            if "pass" in stage.outputs
        ],
        generations=[report.GenerationRecord(**fields) for fields in generations if "budget" in fields],
        forecast=forecast,
        directory=config.run_dir or f"runs/{config.name}",
        own_code=config.runs_code,
        spent={} if forecast is None else used_since(forecast, manifest),
        used=used(manifest, [name for name, stage in done.items() if "pass" in stage.outputs]),
    )
