"""What stages have used, counted over the events of several drivers."""

import json
from dataclasses import asdict
from typing import Any

from curation.rundir.events import compute_spent
from curation.telemetry.standing import Actors, Spent, Work


def line(time: float, event: str, stage: str | None, **spent: Any) -> str:
    fields: dict[str, Any] = {"time": time, "event": event} | ({} if stage is None else {"stage": stage})
    if event == "progress":
        fields |= {"rows": 1, "total": 2}
    if spent:
        actors = Actors(running=1, pending=0, restarting=0, deaths=0)
        ages = {"lag_seconds": 0.0, "commit_age_seconds": 0.0}
        work = Work(actors=actors, chunks_left=1, chunks_in_flight=1, errors={}, spent=Spent(**spent), **ages)
        fields["work"] = asdict(work)
    return json.dumps(fields)


EVENTS = [
    line(1, "started", "a"),
    line(2, "progress", "a", actor_seconds=50.0),
    line(10, "started", "a"),
    line(11, "nodes", None),
    line(12, "progress", "a", actor_seconds=2.0, prompt_tokens=7),
    line(13, "started", "b"),
    line(14, "progress", "b", actor_seconds=1.0, chunks=3),
    line(15, "progress", "a", actor_seconds=4.0, prompt_tokens=9),
    # the driver is killed, and another one goes on
    line(30, "started", "a"),
    line(32, "progress", "a", actor_seconds=1.5, prompt_tokens=2, commits=1),
    line(33, "finished", "a"),
    line(34, "progress", "prepare"),
]


def test_every_driver_counts():
    found = compute_spent(EVENTS)
    assert set(found) == {"a", "b"}
    assert found["a"] == Spent(actor_seconds=55.5, prompt_tokens=11, commits=1)
    assert found["b"].chunks == 3
    assert compute_spent([]) == {}
