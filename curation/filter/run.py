"""Runs a filter: opens its output, does what is missing, and writes what was made of it into ``filter.json``."""

from typing import NamedTuple

from curation.config.filter import FilterConfig
from curation.errors import ShiftError
from curation.filter.content import content_of
from curation.filter.opened import OpenedFilter, check, open_filter
from curation.filter.output import Content, load_content, publish
from curation.pipeline.work import at_work
from curation.storage import lease
from curation.telemetry.console import say


class Filtered(NamedTuple):
    """Result of a filter."""

    content: Content
    """``filter.json``."""
    did: bool
    """Whether anything was left to do."""
    alarm: str | None
    """Why the rows of the newest round are not like those that trust was fitted on; None where they show no clear
    difference, or ``on_shift`` is ``ignore``."""


def run_filter(config: FilterConfig, *, recut: bool = False, wait: bool = False) -> Filtered:
    """Label what is new in the pool, write what passes, and say what was made.

    ``recut`` makes the cut again over everything that is labelled. Where another driver works on the output, this one
    is refused or, with ``wait``, begins when that one has ended.

    Raises:
        UserError: package, pool, output and rule do not fit each other, or nothing passes.
        ShiftError: ``on_shift`` is ``fail``, and rows that are not written yet differ clearly from the package's.
    """
    package, teacher = check(config)

    def opening(guard: lease.Guard) -> OpenedFilter:
        return open_filter(config, package, teacher, recut=recut, guard=guard)

    with at_work(config.directory, opening, wait=wait) as (opened, run):
        did = not opened.is_settled()
        run.do(opened.described.looking)
        _alarm(opened)
        run.do(opened.stages)
        before = load_content(config.output_directory)
        content = content_of(opened, before)
        publish(config.output_directory, content, before, opened.manifest.guard)
    shift = content["rounds"][-1]["shift"]
    alarm = shift["warning"] if config.on_shift != "ignore" and shift is not None and shift["alarm"] else None
    return Filtered(content, did, alarm)


def _alarm(opened: OpenedFilter) -> None:
    """Tell of rounds that differ clearly from the package's rows; with ``on_shift: fail`` before they are written."""
    manifest = opened.manifest
    for name, stages in opened.described.rounds.items():
        if stages.shift is None or stages.write.name in manifest.stages:
            continue
        shift = manifest.stages[stages.shift.name].outputs["shift"]
        if shift["warning"] is not None:
            say(f"round {name}: {shift['warning']}")
        if shift["alarm"] and opened.config.on_shift == "fail":
            raise ShiftError(
                f"round {name}: {shift['warning']} Nothing of it was written (on_shift: fail); with --on-shift warn or "
                "ignore the same command writes it, and labels nothing again"
            )
