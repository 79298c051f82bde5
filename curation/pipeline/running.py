"""From a configuration to its report: opens the run directory, runs missing stages, and collects their outputs."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from curation import report
from curation.cluster.versions import find_versions
from curation.config import RunConfig
from curation.config.external import PAID
from curation.config.resolved import iter_warnings
from curation.domains import get_domain
from curation.errors import ConfigError, RunFailedError
from curation.features import parts
from curation.json_types import Json
from curation.pipeline import extending, numbers
from curation.pipeline.chain import Chain, Fields
from curation.pipeline.extending import describe_analysis
from curation.pipeline.numbers import collect_used, read_reviews
from curation.pipeline.opened import OpenedRun, open_run, settle
from curation.pipeline.roles import check_models
from curation.pipeline.work import at_work
from curation.redaction import redact_value
from curation.report.rules import CARE, STOP, USE
from curation.rundir.graph import Known, Outputs, Skipped, Stage, count_steps, order_stages, resolve_present
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run
from curation.rundir.status import Status, iter_statuses
from curation.stages.fit import check_search
from curation.storage import lease
from curation.storage.paths import Place
from curation.teachers.endpoint_paid import read_spending
from curation.telemetry import metrics
from curation.telemetry.console import say
from curation.telemetry.metrics import Telemetry


def run_chain(
    config: RunConfig,
    *,
    config_path: str | None = None,
    command: str | None = None,
    wait: bool = False,
    redo: Sequence[str] = (),
) -> Json:
    """Run the missing stages of every generation and write the report; return the report's content.

    ``config_path`` and ``command`` say in the report how to repeat the run. If another driver has the run directory,
    this driver is refused or, with ``wait``, begins when the other has ended. ``redo`` names stages to do again, with
    all stages that depend on them.
    """
    for _, check, section in parts(config, "require"):
        check(section)
    with hold_run(config, wait=wait, redo=redo) as (opened, run):
        known = run.do(opened.stages)
        record = record_of(opened, known, config_path, command)
        if record.chain is not None and record.chain.ended is not None:
            say(record.chain.ended)
        content = numbers.update_report(numbers.compute(opened, record), run.directory)
        if (verdict := content["verdict"]) is not None:  # a gauge for as long as this driver lives
            level = (USE, CARE, STOP).index(verdict["level"])
            Telemetry(run=opened.name, stage="driver").set(metrics.VERDICT, level)
        for _, publish, section in parts(config, "publish"):
            for problem in publish(section, content, run.directory):
                run.manifest.event("unpublished", error=problem)
                say(problem)
        return content


def run_search(
    config: RunConfig, *, config_path: str | None = None, command: str | None = None, wait: bool = False
) -> Json:
    """Search for a trust function, with the stages that it needs, and write its page; return the page's content.

    Raises:
        ConfigError: the space has a bad point, or the metric needs something that the run lacks.
    """

    def find_needed(opened: OpenedRun) -> list[Stage]:
        return order_stages([opened.chain.first.search.value()])

    with hold_run(config, find_needed, wait=wait, searching=True) as (opened, run):
        stage, stages = opened.chain.first.search, find_needed(opened)
        found = run.do(stages)[stage.name]
        assert isinstance(found, Mapping), "a search always has something to do"
        content = report.collect_search(
            found,
            config.tune.model_dump(mode="json"),
            name=config.name,
            seed=config.seed,
            config_path=config_path,
            command=command,
            versions=dict(find_versions()),
            seconds={stage.name: opened.manifest.stages[stage.name].seconds for stage in stages},
        )
        page, _ = report.write_page("curation.report:search.html.j2", "search", content, run.directory)
        say(f"report: {page}")
        return content


def run_analysis(
    config: RunConfig, *, config_path: str | None = None, command: str | None = None, wait: bool = False
) -> Json:
    """Run the missing stages of a finished run's analysis, and write its report; return the report's content.

    Raises:
        ConfigError: the run lacks something that the analysis reads.
        RunFailedError: a stage of the run itself is missing.
    """
    config = settle(config)
    for line in extending.check_analysis(config):
        say(line)
    open_finished(config, "is not finished")

    def find_analysis(opened: OpenedRun) -> list[Stage]:
        return order_stages(extending.describe_analysis(config, opened.chain.tables, opened.chain.generations))

    with hold_run(config, find_analysis, wait=wait, redo_by=None) as (opened, run):
        known = run.do(opened.stages)  # reads their outputs: all are done
        run.do(find_analysis(opened))
        record = numbers.compute(opened, record_of(opened, known, config_path, command))
        return numbers.update_report(record, run.directory)


@contextmanager
def hold_run(
    config: RunConfig,
    stages: Callable[[OpenedRun], Sequence[Stage]] = lambda opened: opened.stages,
    *,
    wait: bool,
    searching: bool = False,
    redo: Sequence[str] = (),
    redo_by: str | None = "curate run {} --redo",
) -> Iterator[tuple[OpenedRun, Run]]:
    """Yield a run directory, held and opened (:func:`at_work`).

    ``searching``: whether to check the section ``tune`` first. ``redo``: stages to do again. ``redo_by``: the command
    that does stages of the run directory again, for messages; None if no command does.
    """
    # A model that does not load, like a wrong name below, leaves no directory behind.
    check_models(config, loads=not Manifest.load(config.directory).identity)
    for line in iter_warnings(config):
        say(f"warning: {line}")

    def opening(guard: lease.Guard) -> OpenedRun:
        opened = open_run(config, guard=guard)
        if searching or config.trust.search:
            check_search(config)
        return opened

    def find_redone(opened: OpenedRun) -> list[str]:
        recorded = opened.manifest.stages  # they include numbers and analyses, which are no stages of the run
        return [name if name in recorded else _find_stage(opened, name).name for name in redo]

    if redo:
        find_redone(open_run(config))
    by = redo_by and redo_by.format(config.directory)
    with at_work(config.directory, opening, stages, wait=wait, redo=find_redone, redo_by=by) as found:
        yield found


def run_part(config: RunConfig, name: str, *, wait: bool = False, redo: Sequence[str] = ()) -> None:
    """Run one stage, with the stages that it needs; no report is written. A wrong name is a ``ConfigError``."""

    def find_needed(opened: OpenedRun) -> list[Stage]:
        return order_stages([_find_stage(opened, name).value()])

    full_name = find_needed(open_run(config))[-1].name  # a wrong name leaves no directory behind
    with hold_run(config, find_needed, wait=wait, redo=redo) as (opened, run):
        run.do(find_needed(opened))
        left = sum(not status.is_settled for status in opened.statuses)
        say(f"{full_name} is done; {left:,} stages of the run are left" if left else "all stages of the run are done")


def _find_stage(opened: OpenedRun, name: str) -> Stage:
    """Return the stage of that name; its generation may be left out if only one stage has the rest of the name."""
    names = [stage.name for stage in opened.stages]
    found = [stage for stage in opened.stages if name in (stage.name, stage.name.partition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        problem = f"several stages have names that end so; name one: {', '.join(stage.name for stage in found)}"
    else:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        problem = f"no stage has this name; {hint}`curate plan` lists them: {', '.join(names)}"
    raise ConfigError(f"{name}: {problem}")


def rewrite_report(config: RunConfig, *, config_path: str, command: str) -> Place:
    """Write the report of a finished run again; return the page's path."""
    opened, record = open_finished(config, "no report yet", config_path=config_path, command=command)
    with lease.hold(config.directory) if numbers.list_missing_numbers(opened, record) else nullcontext():
        record = numbers.compute(opened, record)
    html, _ = report.write(report.collect(record), config.directory)
    return html


def get_finished_record(config: RunConfig) -> report.RunRecord:
    """Return the record of a finished run, from which its report is made; nothing is done or written."""
    opened, record = open_finished(config, "is unfinished")
    _require_done(config, numbers.list_missing_numbers(opened, record), "is unfinished")
    return numbers.compute(opened, record)


def open_finished(
    config: RunConfig, problem: str, *, config_path: str | None = None, command: str | None = None
) -> tuple[OpenedRun, report.RunRecord]:
    """Return a finished run and its record, or raise a ``RunFailedError`` with ``problem`` and the missing stage."""
    opened = open_run(config)
    known: dict[str, Outputs | Skipped] = {}
    _require_done(config, iter_statuses(opened.stages, opened.manifest, known), problem)
    return opened, record_of(opened, known, config_path, command)


def _require_done(config: RunConfig, statuses: Iterable[Status], problem: str) -> None:
    for status in statuses:
        if not status.is_settled:
            name = status.stage.name
            redo = f" {config.directory} --redo {name}" if status.state == "damaged" else ""
            raise RunFailedError(
                f"{config.directory}: {problem}, stage {name} is missing ({status.words}); `curate run{redo}` does it"
            )


def record_of(opened: OpenedRun, known: Known, config_path: str | None, command: str | None) -> report.RunRecord:
    """Return the record of a run, given all ``known`` outputs of its stages."""
    config, manifest = opened.config, opened.manifest
    analyses = describe_analysis(config, opened.chain.tables, opened.chain.generations)
    further = [stage for stage in order_stages(analyses) if stage.name not in known]
    known = {**known}
    for _ in iter_statuses(further, manifest, known):  # adds the outputs of those that are done
        pass
    stages = [*opened.stages, *further]
    # Parallel stages end in any order; in that of the graph, the same run has the same record.
    made = [name for name in count_steps(stages) if name in known and not isinstance(known[name], Skipped)]
    done = {name: manifest.stages[name] for name in made}
    bought = None if config.teacher.endpoint is None else read_spending(str(config.directory / PAID))
    counts, overlap = _collect_prepared(opened.chain, known)
    generations = _collect_generations(
        [
            {
                **fields,
                "analysis": {
                    name: {key: out for key, out in outs.items() if out.stage.name in known}
                    for name, outs in of_features.items()
                },
            }
            for fields, of_features in zip(opened.chain.generations, analyses, strict=True)
        ],
        known,
    )
    return report.RunRecord(
        name=config.name,
        config=redact_value(config.model_dump(mode="json", by_alias=True)),
        config_path=config_path,
        seed=config.seed,
        versions=find_versions(),
        command=command or "curation.run(curation.config.load.load_config('config.yaml'))",
        domain=get_domain(config.domain_of("pool")),
        prepared=resolve_present(opened.chain.tables, known),
        prepare_counts=counts,
        reviews=read_reviews(config.directory),
        overlap=overlap,
        answers=() if bought is None else bought.findings,
        stages=[
            report.StageSummary(
                name=name,
                seconds=stage.seconds,
                rows=stage.rows,
                rows_per_second=stage.rows / stage.seconds if stage.rows and stage.seconds else None,
                started=stage.started,
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
        generations=generations,
        chain=_make_chain_record(opened, known, len(generations)) if len(opened.chain.generations) > 1 else None,
        directory=config.run_dir or f"runs/{config.name}",
        own_code=config.runs_code,
        used=collect_used(manifest, [name for name, stage in done.items() if "pass" in stage.outputs]),
    )


def _collect_prepared(chain: Chain, known: Known) -> tuple[Json, Json]:
    """Return the counts of every table by name, and the overlap of splits, over all deals."""
    counts: Json = {}
    overlap: Json = {"pairs": [], "dropped": {}, "uncompared": {}}
    for stage in chain.preparing:
        made = known[stage.name]
        assert isinstance(made, Mapping), "a prepare stage needs nothing that could be missing"
        counts |= made["counts"]
        overlap["pairs"] += made["overlap"]["pairs"]
        for part in ("dropped", "uncompared"):
            overlap[part] |= made["overlap"][part]
    return counts, overlap


def _collect_generations(described: Sequence[Fields], known: Known, branch: str = "") -> list[report.GenerationRecord]:
    """Return the generations that were reached, which are those with a budget."""
    found = [resolve_present(fields, known) for fields in described]
    return [report.GenerationRecord(**fields, branch=branch) for fields in found if "budget" in fields]


def _make_chain_record(opened: OpenedRun, known: Known, num_reached: int) -> report.ChainRecord:
    """Return the record of the chain: its branches, students without a chain, decisions and end."""
    chain = opened.chain
    shallow = [resolve_present(fields, known) for fields in chain.shallow]
    decisions = [resolve_present({"decision": out}, known) for out in chain.decisions]
    branches = {name: _collect_generations(fields, known, name) for name, fields in chain.branches.items()}

    return report.ChainRecord(
        arms=opened.config.chain.arms,
        branches=branches,
        shallow={
            str(index): {arm: {key: found[key][arm] for key in found} for arm in found["training"]}
            for index, found in enumerate(shallow)
        },
        decisions=[found["decision"] for found in decisions if found],
        ended=_explain_end(chain.generations, known, num_reached),
        branches_ended={
            name: why
            for name, fields in chain.branches.items()
            if (why := _explain_end([chain.generations[0], *fields], known, 1 + len(branches[name]))) is not None
        },
    )


def _explain_end(generations: Sequence[Fields], known: Known, num_reached: int) -> str | None:
    """Return the reason why a chain has fewer generations than configured, or None if it has all."""
    if num_reached == len(generations):
        return None
    why = known[generations[num_reached]["budget"].stage.name]
    assert isinstance(why, Skipped), "a generation that is not reached is skipped"
    before = resolve_present({"budget": generations[num_reached - 1]["budget"]}, known) if num_reached else {}
    if before and before["budget"]["n"] == 0:
        last = num_reached - 1
        return f"generation {last} selected nothing, so that none of its students can teach: the chain ends"
    return why.why
