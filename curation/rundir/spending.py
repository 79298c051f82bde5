"""Amounts that passes of models have used, from the events of all drivers, even killed ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from curation.rundir.events import parse_events
from curation.telemetry.standing import Spent

ENDS = ("finished", "failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class StageSpent:
    """Amounts that a stage has used in all its runs."""

    spent: Spent
    spans: tuple[tuple[float, float], ...]
    """The start and end of each run of the stage, in seconds since 1970; an interrupted run ends at its last event."""


def compute_spent_since(lines: Iterable[str], since: float) -> dict[str, StageSpent]:
    """Return the amounts used by each stage since ``since``, from ``lines``, a run's events with the oldest first.

    All runs of a stage that was interrupted count. What a killed driver used after its last event is not known.
    """
    before: dict[str, Spent] = {}
    found: dict[str, StageSpent] = {}
    for event in parse_events(lines):
        kind, stage, time = event["event"], event.get("stage"), event["time"]
        if time < since or stage is None:
            continue
        if kind == "started":
            known = found.get(stage) or StageSpent(spent=Spent(), spans=())
            before[stage], found[stage] = known.spent, replace(known, spans=(*known.spans, (time, time)))
        elif stage in found and (kind in ENDS or kind == "progress"):
            *earlier, (began, _) = found[stage].spans
            found[stage] = replace(found[stage], spans=(*earlier, (began, time)))
            if "work" in event:
                now = Spent(**event["work"]["spent"])  # of this driver, from the stage's start on
                found[stage] = replace(found[stage], spent=before[stage].plus(now))
    return found
