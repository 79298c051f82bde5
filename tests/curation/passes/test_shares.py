"""The shares of calls that work at once add up to the time in which any of them worked."""

from typing import Any

import pytest

from curation.passes import work_queue
from curation.passes.messages import Call, KnownActor, OpenCall, OpenPass, Starts
from curation.passes.work_queue import WorkQueue


def test_a_moment_is_shared_by_the_calls_that_work(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(work_queue.time, "monotonic", lambda: clock[0])
    queue, nothing = WorkQueue(wanted=1, calls=2), Any
    mine = queue._passes["pass"] = OpenPass("pass", nothing, [], nothing, nothing, Starts(1))  # type: ignore[arg-type]
    actor = queue._actors["one"] = KnownActor("node", 1, heard=110.0, charged=100.0)
    first, second, third = (OpenCall(Call(index, "pass"), actor=actor) for index in range(3))

    def at(seconds: float, *calls: OpenCall) -> None:
        clock[0] = seconds
        queue._charge()
        actor.calls = set(calls)

    at(107.0, first)  # the pass pays for the actor, and nothing works
    at(109.0, first, second)
    at(113.0, first)
    at(114.0, third)
    at(115.0)
    assert (first.seconds, second.seconds, third.seconds) == (2 + 2 + 1, 2, 1)
    queue._accept(mine, first, "one", b"rows")
    assert mine.parts[0].seconds == 5 and first.seconds == 0 and mine.actor_seconds == 15
