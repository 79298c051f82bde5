"""Why an arm's rows teach well (paper, section "Mechanisms"): stages over a finished run, for ``curate analyze``."""

from collections.abc import Mapping
from typing import Any

from curation.arms import ARMS, REFERENCE_ARM
from curation.config import DomainConfig, EngineConfig, GradientsConfig, RunConfig
from curation.domains import get_domain, position_of
from curation.errors import ConfigError
from curation.hashing import derive
from curation.pipeline.chain import Chain
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Built, Done, Out
from curation.rundir.run import Task

ADVANTAGES, COHERENCE = "advantages", "coherence"
"""What the report reads of a generation's analysis."""


def describe_analysis(config: RunConfig, chain: Chain) -> list[dict[str, Out]]:
    """By generation: the outputs of the analysis, by name."""
    domain = get_domain(config.domain_of("pool"))
    found: list[dict[str, Out]] = []
    for record in chain.generations:
        outs: dict[str, Out] = {}
        engine, gradients = config.analyze.engine, config.analyze.gradients
        if engine is not None and config.splits.audit and position_of(domain) is not None:
            outs[ADVANTAGES] = _advantages(config, chain, record, engine)
        if gradients is not None and record["student_base"] is not None:
            outs[COHERENCE] = _coherence(config, record, gradients)
        found.append(outs)
    return found


def check_analysis(config: RunConfig) -> list[str]:
    """What is left out although the configuration does not say so, in words, before anything is done.

    Raises:
        ConfigError: the run lacks what a stage reads, the engine is not there, or nothing is left to be measured.
    """
    engine, gradients = config.analyze.engine, config.analyze.gradients
    has_moves = position_of(get_domain(config.domain_of("pool"))) is not None
    left_out = []
    if engine is not None and not has_moves:
        left_out.append(f"no engine is asked: labels of the domain {config.domain.name} are no chess moves")
        engine = None
    if engine is not None and not config.splits.audit:
        raise ConfigError(
            "analyze.engine: compares weak labels of the pool with gold ones, and the run has none (splits.audit is "
            "false); leave it out by analyze.engine: null, or run with splits.audit: true"
        )
    if gradients is not None and not config.generations:
        left_out.append("no gradients are taken: the run trains no student (generations is empty)")
        gradients = None
    if engine is None and gradients is None:
        why = "; ".join(left_out) or "analyze.engine and analyze.gradients are null"
        raise ConfigError(f"analyze: there is nothing to measure in this run ({why})")
    if engine is not None:
        from curation.domains.uci import find_engine

        find_engine(engine.path)
    return left_out


def _advantages(config: RunConfig, chain: Chain, record: Mapping[str, Any], engine: EngineConfig) -> Out:
    tables = {arm: table for arm, table in record["selections"].items() if not ARMS[arm].gold}
    stage = Built(
        name=f"gen-{record['index']}/advantages",
        work=value,
        inputs={
            "digests": {arm: table.stage.value("arms", arm, "digest") for arm, table in tables.items()},
            "grades": record["grades"]["pool"],
            "examples": chain.prepared.table("tables", "pool"),
            "audit": chain.prepared.table("tables", "audit"),
            "domain": config.domain_of("pool"),
            "engine": engine,
            "seed": derive(config.seed, "advantages"),
        },
        settings={"selections": tables, "labels": record["labels"]["pool"]},  # the digests name the rows
    )
    return stage.value("found")


def value(
    task: Task,
    digests: Mapping[str, str],
    grades: TableRef,
    examples: TableRef,
    audit: TableRef,
    domain: DomainConfig,
    engine: EngineConfig,
    seed: int,
    selections: Mapping[str, TableRef],
    labels: TableRef,
) -> Done:
    """Ask the engine about weak labels that differ from gold."""
    from curation.stages.advantage import AdvantageJob, advantages
    from curation.tables import io

    job = AdvantageJob(examples=examples, audit=audit, labels=labels, domain=domain, engine=engine)
    uri = str(task.directory / "advantages.lance")
    with task.progress() as update:
        table, arms = advantages(job, selections, grades, uri, seed=seed, guard=task.guard, progress=update)
    num_rows, num_failed = io.count(table), io.count(table, filter="error IS NOT NULL")
    if num_failed:
        task.say(f"{num_failed:,} of {num_rows:,} rows could not be valued; the table has their errors")
    names = sorted({name for name in io.read(table, columns=["engine"])["engine"].to_pylist() if name})
    found = {
        "engine": ", ".join(names),
        "nodes": engine.nodes,
        "equal_within": engine.equal_within,
        "num_rows": num_rows,
        "num_failed": num_failed,
        "arms": arms,
    }
    return Done(outputs={"found": found, "table": table.to_json()}, rows=num_rows)


def _coherence(config: RunConfig, record: Mapping[str, Any], gradients: GradientsConfig) -> Out:
    recipe, seed = config.student, derive(config.seed, "gradients")
    stages = {
        arm: Built(
            name=f"gen-{record['index']}/gradients-{arm}",
            work=differentiate,
            inputs={
                "digest": table.stage.value("arms", arm, "digest"),
                "base": record["student_base"],
                "gradients": gradients.without(gradients.RESOURCES),
                "max_length": recipe.max_length,
                "chat_template": recipe.chat_template,
                "seed": seed,
            },
            settings={"rows": table.stage.table("rows_of", arm), "resources": gradients.resources},
            takes={"CPU": float(gradients.cpus)} | ({"GPU": gradients.gpus} if gradients.gpus else {}),
        )
        for arm, table in record["selections"].items()  # later ones lack arms with a chain of their own
    }
    stage = Built(
        name=f"gen-{record['index']}/coherence",
        work=compare,
        inputs={
            "tables": {arm: stage.table("gradients").or_none for arm, stage in stages.items()},
            "reference": REFERENCE_ARM,
            "seed": seed,
        },
    )
    return stage.value("found")


def differentiate(
    task: Task,
    digest: str,
    base: ModelRef,
    gradients: GradientsConfig,
    max_length: int,
    chat_template: bool,
    seed: int,
    rows: TableRef,
    resources: Mapping[str, Any],
) -> Done:
    """Take the gradients of an arm's rows."""
    from curation.stages.gradients import GradientJob
    from curation.stages.gradients import gradients as gradients_stage
    from curation.tables import io

    job = GradientJob(
        rows=rows,
        base=base,
        config=gradients.model_copy(update=dict(resources)),
        max_length=max_length,
        chat_template=chat_template,
    )
    with task.progress() as update:
        uri = str(task.directory / "gradients.lance")
        ref = gradients_stage(job, uri, seed=seed, guard=task.guard, progress=update)
    if num_failed := io.count(ref, filter="error IS NOT NULL"):
        task.say(f"{num_failed:,} rows have no gradient; the table has their errors")
    return Done(outputs={"gradients": ref.to_json()}, rows=io.count(ref))


def compare(task: Task, tables: Mapping[str, TableRef | None], reference: str, seed: int) -> Done:
    """Compare the arms' gradients."""
    from curation.stages.gradients import compare as compare_arms

    with task.progress() as update:
        made = {arm: ref for arm, ref in tables.items() if ref is not None}  # an empty arm has none
        found = compare_arms(made, reference=reference, seed=seed, progress=update)
    return Done(outputs={"found": found}, rows=found["n"] * len(found["arms"]))
