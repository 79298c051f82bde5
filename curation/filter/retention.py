"""Removes rows and labels of old rounds from a filter's ``_curation``, by ``output.keep_rounds``.

What stays of a removed round: its record with counts, seconds, shift and cut, its files in ``data/``, and answers that
were paid for. A start goes on from that, and the shift test pools the newest rounds, whose tables stay.
"""

from curation.errors import RunDirError
from curation.filter.described import pooled
from curation.filter.opened import OpenedFilter
from curation.rundir.graph import waited_for
from curation.telemetry.console import say


def release(opened: OpenedFilter) -> None:
    """Remove what the rule says; every stage is done, so that nothing is at work on it."""
    if (number := opened.config.output.keep_rounds) is None:
        return
    kept = {rnd.name for rnd in opened.rounds[-number:]} | set(pooled(opened.rounds))
    old = {name: stages for name, stages in opened.described.rounds.items() if name not in kept}
    looking = [stage for stages in old.values() for stage in (stages.pool, stages.buy, stages.label) if stage]
    if removed := opened.manifest.release([stage.name for stage in looking]):
        rounds = sorted({name.rpartition("-")[2] for name in removed})
        say(f"removed rows and labels of {len(rounds)} rounds up to {rounds[-1]} (output.keep_rounds: {number})")


def require_unreleased(opened: OpenedFilter) -> None:
    """Refuse work that would read rows or labels of a round that was removed.

    Raises:
        RunDirError: names the stage, why it would work, and the round's stage that it reads.
    """
    records = opened.manifest.stages
    for status in opened.statuses:
        gone = [name for name in waited_for(status.stage) if name in records and records[name].released]
        if gone and not status.is_settled:
            raise RunDirError(
                f"{opened.config.output_directory}: {status.stage.name} has to be done ({status.words}), and reads "
                f"{', '.join(gone[:3])}, which output.keep_rounds removed; undo the change (--recut, another format, "
                "another version of the project), or filter the pool into another output"
            )
