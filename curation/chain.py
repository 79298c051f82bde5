"""The roof: stages in order, generation after generation; the student of one is the teacher of the next."""

from typing import Any

import yaml

from curation import cluster, lease, membership, models, progress, report, tracking
from curation.config import RunConfig
from curation.config.resolved import warnings
from curation.domains import get_domain
from curation.errors import RunFailedError
from curation.generation import generation_stages, run_generation
from curation.learning import teacher_model
from curation.manifest import Manifest, versions
from curation.places import Place, write_atomically
from curation.refs import TableRef
from curation.runs import Done, Generation, Pending, Run, files_of, local_or_cluster, say
from curation.selection.budget import check_pool
from curation.sources import SourceFile, check_unchanged, discover, split_sizes


def run_chain(
    config: RunConfig, *, config_path: str | None = None, command: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Do what is missing of every generation and write the report; the report's content.

    ``config_path`` and ``command`` say in the report how to do it again. Where another driver has the run directory,
    this one is refused or, with ``wait``, begins when that one has ended.
    """
    tracking.require(config.tracking)
    _check_models(config)
    for line in warnings(config):
        say(f"warning: {line}")
    Manifest.load(config.directory)  # a damaged one is refused before anything is written beside it
    with lease.hold(config.directory, wait=wait), local_or_cluster(config.ray), files_of(config.directory):
        if (waits := cluster.check_room(config)) is not None:
            say(waits)
        run = _open(config, Manifest.load(config.directory))
        with membership.follow(run.nodes):
            prepared = _prepare(run)
            generations = _generations(run, prepared)
        record = _record(run, prepared, generations, config_path, command)
        content = report.collect(record)
        html, numbers = report.write(content, run.directory)
        say(f"report: {html}")
        files = {path.name: path.read_text() for path in (html, numbers)}
        for problem in tracking.publish(config.tracking, tracking.entry_of(content, str(run.directory), files)):
            run.manifest.event("untracked", error=problem)
            say(problem)
        return content


def rewrite_report(config: RunConfig, *, config_path: str, command: str) -> Place:
    """Write the report of a finished run again; the page's path.

    Raises:
        RunFailedError: a stage is missing.
    """
    try:
        record = finished(config, config_path=config_path, command=command)
    except Pending as pending:
        raise RunFailedError(
            f"{config.directory}: no report yet, stage {pending.name} is missing ({pending.why}); `curate run` does it"
        ) from None
    html, _ = report.write(report.collect(record), config.directory)
    return html


def finished(config: RunConfig, *, config_path: str | None = None, command: str | None = None) -> report.RunRecord:
    """The record of a finished run, from which its report is made; nothing is done or written.

    Raises:
        Pending: a stage is missing.
    """
    run = _open(config, Manifest.load(config.directory), dry=True)
    prepared = _prepare(run)
    return _record(run, prepared, _generations(run, prepared), config_path, command)


def first_pending(config: RunConfig) -> Pending | None:
    """The first stage that the same command would do, and why; None where all is done."""
    _check_models(config)
    try:
        run = _open(config, Manifest.load(config.directory), dry=True)
        _generations(run, _prepare(run))
    except Pending as pending:
        return pending
    return None


def stage_names(config: RunConfig) -> list[str]:
    """The names of all stages of a run, in order."""
    names = ["prepare"]
    if (model := config.teacher.model) is not None:
        names += ["gen-0/teacher-base"] if model.init is not None else []
        names += ["gen-0/teacher"] if config.teacher.adapt is not None else []
    for index in range(max(1, len(config.generations))):
        names += generation_stages(config, index)
    return names


def _check_models(config: RunConfig) -> None:
    """Refuse models that need code of their own: all of them, before hours of labelling."""
    for role, model in config.models.items():
        if model.path is not None and role not in config.runs_code:
            models.check_code(model.path)


def _open(config: RunConfig, manifest: Manifest, *, dry: bool = False) -> Run:
    get_domain(config.domain)
    # splits.overlap changes no row id: a run that was refused for shared questions goes on when it is set.
    chosen = {"domain", "seed", "sources", "splits"}
    identity = config.model_dump(mode="json", include=chosen, exclude={"splits": {"overlap"}})
    known = {name: [SourceFile.from_json(item) for item in items] for name, items in manifest.files.items()}
    files = {name: discover(source, known.get(name, ())) for name, source in config.sources.items()}
    for name, before in known.items():
        check_unchanged(before, files.get(name, []))
    check_pool(config.selection.budget, split_sizes(config, files)["pool"] // max(1, len(config.generations)))
    described = {name: [file.to_json() for file in items] for name, items in files.items()}
    manifest.identify(identity, described, save=not dry)
    if not dry:
        settings = config.model_dump(mode="json", by_alias=True)  # null, too, is a choice
        write_atomically(manifest.directory / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    return Run(config, manifest, dry=dry)


def _prepare(run: Run) -> dict[str, Any]:
    """The splits' tables and counts, by name."""
    from curation.stages.prepare import prepare

    config = run.config
    files = {name: [SourceFile.from_json(item) for item in items] for name, items in run.manifest.files.items()}

    def work(directory: Place) -> Done:
        with progress.bar("prepare") as shown:
            prepared = prepare(config, directory, files, progress=run.progress("prepare", shown))
        for sentence in prepared.overlap.told():
            say(f"prepare: {sentence}")
        return Done(outputs=prepared.to_json(), rows=sum(counts.rows for counts in prepared.counts.values()))

    identity = config.model_dump(mode="json", include={"domain", "seed", "splits"})
    return run.stage("prepare", identity | {"files": run.manifest.files}, work)


def _generations(run: Run, prepared: dict[str, Any]) -> list[report.GenerationRecord]:
    config = run.config
    tables = {name: TableRef.from_json(ref) for name, ref in prepared["tables"].items()}
    model = config.teacher.model
    teacher = None if model is None else teacher_model(run, model, tables, "teacher")
    records = []
    for index in range(max(1, len(config.generations))):
        generation = Generation(index=index, teacher=teacher, tables=tables, num_shares=max(1, len(config.generations)))
        record, students = run_generation(run, generation)
        records.append(record)
        teacher = students.get(config.chain_arm)
        if teacher is None and index + 1 < len(config.generations):
            say(f"generation {index} selected nothing, so that none of its students can teach: the chain ends")
            break
    return records


def _record(
    run: Run,
    prepared: dict[str, Any],
    generations: list[report.GenerationRecord],
    config_path: str | None,
    command: str | None,
) -> report.RunRecord:
    config = run.config
    done = {name: run.manifest.stages[name] for name in stage_names(config) if name in run.manifest.stages}
    return report.RunRecord(
        name=config.name,
        config=config.model_dump(mode="json", by_alias=True),
        config_path=config_path,
        seed=config.seed,
        versions=versions(),
        command=command or "curation.run(curation.config_file.load_config('config.yaml'))",
        domain=get_domain(config.domain_of("pool")),
        prepared={name: TableRef.from_json(ref) for name, ref in prepared["tables"].items()},
        prepare_counts=prepared["counts"],
        overlap=prepared["overlap"],
        stages=[
            report.StageRecord(
                name=name,
                seconds=stage.seconds,
                rows=stage.rows,
                rows_per_second=stage.rows / stage.seconds if stage.seconds else None,
                started=stage.started,
            )
            for name, stage in done.items()
        ],
        passes=[
            report.PassRecord(
                name=name,
                **stage.outputs["pass"],
                total_rows=stage.rows,
                prompt_tokens=stage.outputs["counts"]["prompt_tokens"],
                output_tokens=stage.outputs["counts"]["output_tokens"],
            )
            for name, stage in done.items()
            if "pass" in stage.outputs
        ],
        generations=generations,
    )
