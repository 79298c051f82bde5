"""Runs a filter: opens its output, runs the missing stages, and describes the result in ``filter.json``."""

from typing import Literal, NamedTuple

from curation.config.filter import FilterConfig
from curation.errors import RunDirError, ShiftError
from curation.filter.described import CUT, Round, choose_pooled
from curation.filter.opened import OpenedFilter, check, open_filter
from curation.filter.output import DATA, Content, load_content, publish
from curation.pipeline.kept_forecast import collect_used_since, read_forecast
from curation.pipeline.work import at_work
from curation.report.costs import compare_forecast
from curation.rundir.graph import list_awaited
from curation.storage import lease
from curation.telemetry import metrics
from curation.telemetry.console import say
from curation.telemetry.metrics import Telemetry

FORMAT = 1


class Filtered(NamedTuple):
    """The result of a filter."""

    content: Content
    did: bool
    alarm: str | None
    """Clear difference of the newest round's rows to those that trust was fitted on, in words, or None if there is
    none or ``on_shift`` is ``ignore``."""


def run_filter(config: FilterConfig, *, recut: bool = False, wait: bool = False) -> Filtered:
    """Label new rows of the pool, write the rows that pass, and return the result.

    ``recut`` makes the cut again over all labelled rows. If another driver works on the output, this one raises an
    error or, with ``wait``, begins when the other has ended.

    Raises:
        UserError: package, pool, output and rule do not fit each other, or nothing passes.
        ShiftError: ``on_shift`` is ``fail``, and rows that are not written yet differ clearly from the package's.
    """
    package, teacher = check(config)

    def opening(guard: lease.Guard) -> OpenedFilter:
        opened = open_filter(config, package, teacher, recut=recut, guard=guard)
        _require_unreleased(opened)
        return opened

    with at_work(config.directory, opening, wait=wait) as (opened, run):
        did = not opened.is_settled()
        run.do(opened.described.looking)
        _warn_of_shift(opened, "shift")
        run.do(opened.described.cutting)
        _warn_of_shift(opened, "kept")
        run.do(opened.stages)
        before = load_content(config.output_directory)
        content = collect_content(opened, before)
        publish(config.output_directory, content, before, opened.manifest.guard)
        _release(opened)
    newest = content["rounds"][-1]
    alarms = [
        found["warning"] for found in (newest["shift"], newest["foreign"]) if found is not None and found["alarm"]
    ]
    return Filtered(content, did, " ".join(alarms) if alarms and config.on_shift != "ignore" else None)


def _warn_of_shift(opened: OpenedFilter, look: Literal["shift", "kept"]) -> None:
    """Warn of unwritten rounds that differ from the package's rows; raise on an alarm with ``on_shift: fail``."""
    manifest = opened.manifest
    for name, stages in opened.described.rounds.items():
        stage = getattr(stages, look)
        if stage is None or stages.write.name in manifest.stages:
            continue
        found = manifest.stages[stage.name].outputs[look]
        telemetry = Telemetry(run=opened.name, stage=stage.name)
        if look == "shift":
            telemetry.tell_shift(found)
        elif found["passing"] is not None:
            telemetry.set(metrics.FOREIGN_SHARE_LOW, found["passing"]["share"]["low"])
        if found["warning"] is not None:
            say(f"round {name}: {found['warning']}")
        if found["alarm"] and opened.config.on_shift == "fail":
            raise ShiftError(
                f"round {name}: {found['warning']} Nothing of it was written (on_shift: fail); with --on-shift warn or "
                "ignore the same command writes it, and labels nothing again"
            )


def _release(opened: OpenedFilter) -> None:
    """Remove rows and labels of old rounds by ``output.keep_rounds``; every stage is done, so none uses them.

    A removed round keeps its record with counts, seconds, shift and cut, its files in ``data/``, and answers that were
    paid for. Later starts need only these, since the shift test pools the newest rounds, whose tables stay.
    """
    if (number := opened.config.output.keep_rounds) is None:
        return
    kept = {rnd.name for rnd in opened.rounds[-number:]} | set(choose_pooled(opened.rounds))
    old = {name: stages for name, stages in opened.described.rounds.items() if name not in kept}
    looking = [stage for stages in old.values() for stage in (stages.pool, stages.buy, stages.label) if stage]
    if removed := opened.manifest.release([stage.name for stage in looking]):
        rounds = sorted({name.rpartition("-")[2] for name in removed})
        say(f"removed rows and labels of {len(rounds)} rounds up to {rounds[-1]} (output.keep_rounds: {number})")


def _require_unreleased(opened: OpenedFilter) -> None:
    """Refuse work that would read rows or labels of a removed round."""
    records = opened.manifest.stages
    for status in opened.statuses:
        gone = [name for name in list_awaited(status.stage) if name in records and records[name].released]
        if gone and not status.is_settled:
            raise RunDirError(
                f"{opened.config.output_directory}: {status.stage.name} has to be done ({status.words}), and reads "
                f"{', '.join(gone[:3])}, which output.keep_rounds removed; undo the change (--recut, another format, "
                "another version of the project), or filter the pool into another output"
            )


def collect_content(opened: OpenedFilter, before: Content | None) -> Content:
    """Return the manifest of an output whose stages are all done; ``before`` is the manifest that it replaces."""
    config, manifest, rounds = opened.config, opened.manifest, opened.rounds
    forecast = read_forecast(config)
    cut = {**manifest.stages[CUT].outputs, "seed": config.seed}
    superseded = [] if before is None else list(before["superseded"])
    if before is not None and before["cut"]["id"] != cut["id"]:
        superseded.append(before["cut"])
    described_rounds = [_round(opened, rnd, cut["id"]) for rnd in rounds]
    counts = [manifest.stages[stages.label.name].outputs["counts"] for stages in opened.described.rounds.values()]
    return {
        "format": FORMAT,
        "package": {"uri": config.package, "digest": opened.package.digest},
        "pool": config.pool.path,
        "data": config.output.format,
        "partition_by": list(config.output.partition_by),
        "columns": manifest.stages[opened.described.rounds[rounds[0].name].write.name].outputs["columns"],
        "cut": cut,
        **opened.gate.collect(counts, True),
        "superseded": superseded,
        "rows": sum(item["rows"] for item in described_rounds),
        "kept": sum(item["kept"] for item in described_rounds),
        "rounds": described_rounds,
        "files": _list_files(opened, cut["id"]),
        "costs": compare_forecast(forecast, {} if forecast is None else collect_used_since(forecast, manifest)),
    }


def _round(opened: OpenedFilter, rnd: Round, cut: str) -> Content:
    stages = vars(opened.described.rounds[rnd.name])
    records = {name: opened.manifest.stages[stage.name] for name, stage in stages.items() if stage is not None}
    counts = records["label"].outputs["counts"]
    return {
        "round": rnd.name,
        "started": records["pool"].started,
        "files": [{"path": file.path, "rows": file.num_rows} for file in rnd.files],
        "rows": counts["rows"],
        "labelled": counts["rows"] - sum(counts["errors"].values()) - counts["dropped"],
        **opened.gate.collect([counts], False),
        "unparsed": counts["unparsed"],
        "errors": counts["errors"],
        "prompt_tokens": counts["prompt_tokens"],
        "output_tokens": counts["output_tokens"],
        "kept": records["write"].rows,
        "cut": cut,
        "shift": records["shift"].outputs["shift"] if "shift" in records else None,
        "foreign": records["kept"].outputs["kept"],
        "seconds": {name: record.seconds for name, record in records.items()},
    }


def _list_files(opened: OpenedFilter, cut: str) -> list[Content]:
    """Return the data files, each with its cut and rounds; a Lance table is listed once, with its last version."""
    found: dict[str, Content] = {}
    for name, stages in opened.described.rounds.items():
        for file in opened.manifest.stages[stages.write.name].outputs["files"]:
            entry = {**file, "path": f"{DATA}/{file['path']}", "cut": cut, "rounds": [name]}
            if (known := found.get(entry["path"])) is not None:
                entry["rows"] += known["rows"]
                entry["rounds"] = [*known["rounds"], name]
                entry["version"] = max(entry["version"], known["version"])
            found[entry["path"]] = entry
    return list(found.values())
