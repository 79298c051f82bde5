"""Runs a filter: opens its output, runs the missing stages, and describes the result in ``filter.json``."""

from typing import Literal, NamedTuple

from curation.config.filter import FilterConfig
from curation.errors import RunDirError, ShiftError
from curation.filter.content import collect_content
from curation.filter.described import choose_pooled
from curation.filter.opened import OpenedFilter, check, open_filter
from curation.filter.output import Content, load_content, publish
from curation.pipeline.work import at_work
from curation.rundir.graph import list_awaited
from curation.storage import lease
from curation.telemetry import metrics
from curation.telemetry.console import say
from curation.telemetry.metrics import Telemetry


class Filtered(NamedTuple):
    """The result of a filter."""

    content: Content
    """Content of ``filter.json``."""
    did: bool
    """Whether the filter had any work to do."""
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
    """Refuse work that would read rows or labels of a removed round.

    Raises:
        RunDirError: a stage would; the message names it, why it has to run, and what it reads.
    """
    records = opened.manifest.stages
    for status in opened.statuses:
        gone = [name for name in list_awaited(status.stage) if name in records and records[name].released]
        if gone and not status.is_settled:
            raise RunDirError(
                f"{opened.config.output_directory}: {status.stage.name} has to be done ({status.words}), and reads "
                f"{', '.join(gone[:3])}, which output.keep_rounds removed; undo the change (--recut, another format, "
                "another version of the project), or filter the pool into another output"
            )
