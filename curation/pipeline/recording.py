"""The record of a run, from which its report is made, collected from its stages' outputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from curation import report
from curation.cluster.versions import find_versions
from curation.config.endpoint import PAID
from curation.domains import get_domain
from curation.json_types import Json
from curation.pipeline.chain import Chain, Fields
from curation.pipeline.extending import describe_analysis
from curation.pipeline.numbers import read_reviews
from curation.pipeline.opened import OpenedRun
from curation.redaction import redact_value
from curation.refs import TableRef
from curation.rundir.events import compute_spent
from curation.rundir.graph import Known, Skipped, count_steps, order_stages, resolve_present
from curation.rundir.manifest import Manifest
from curation.rundir.status import iter_statuses
from curation.tables import io
from curation.teachers.endpoint_paid import read_spending

MOST_EVENT_BYTES = 1 << 40
"""Maximum bytes of events to read, in effect all: a day of a run adds less than a megabyte."""


def record_of(opened: OpenedRun, known: Known, config_path: str | None, command: str | None) -> report.RunRecord:
    """Return the record of a run, given all ``known`` outputs of its stages."""
    config, manifest = opened.config, opened.manifest
    analyses = describe_analysis(config, opened.chain.tables, opened.chain.generations)
    further = [stage for stage in order_stages(analyses) if stage.name not in known]
    known = {**known}
    for _ in iter_statuses(further, manifest.records, known):  # adds what is done of them
        pass
    stages = [*opened.stages, *further]
    # In the order of the run, not that in which stages side by side ended: the same run has the same record.
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
        used=_collect_used(manifest, [name for name, stage in done.items() if "pass" in stage.outputs]),
    )


def _collect_used(manifest: Manifest, names: Iterable[str]) -> dict[str, Json]:
    """Return the amounts that the named stages have used, by name, for finished stages with labels."""
    spent, done = compute_spent(manifest.events.last(MOST_EVENT_BYTES)), manifest.stages
    return {
        name: asdict(spent[name]) | {"bytes": io.get_table_size(TableRef.from_json(done[name].outputs["labels"]))}
        for name in names
        if name in spent and "labels" in done[name].outputs
    }


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
    if not isinstance(why, Skipped):  # it is reached, and no arm is left
        return str(why["absent"]["budget"])
    before = resolve_present({"budget": generations[num_reached - 1]["budget"]}, known) if num_reached else {}
    if before and before["budget"]["n"] == 0:
        last = num_reached - 1
        return f"generation {last} selected nothing, so that none of its students can teach: the chain ends"
    return why.why
