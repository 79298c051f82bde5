"""Progress of stages: lines that stay whole, at growing intervals."""

import re
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest

from curation.telemetry import console
from curation.telemetry.standing import Actors, Standing, Work


def test_there_are_lines_at_growing_intervals_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    writes: list[str] = []

    class Pipe:
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

        def flush(self) -> None:
            pass

    clock = [0.0]
    monkeypatch.setattr(sys, "stderr", Pipe())
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])

    def stage(name: str) -> None:
        update = console.tell_progress(name)
        for second in range(0, 4000, 5):
            clock[0] = second
            update(Standing(rows=second, total=4000, work=work()))

    stage("first")
    times = [int(re.search(r"first: ([\d,]+) of 4,000 rows", text)[1].replace(",", "")) for text in writes]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:5] == [10] * 5 and gaps[-1] == 60 and gaps == sorted(gaps)
    assert writes[20].endswith(" rows/s, about 63 min left; 2 actors, 1 died, 2 error rows\n")
    threads = [threading.Thread(target=lambda: [console.say("x" * 50) for _ in range(50)]) for _ in range(4)]
    writes.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writes) == 200 and all(text.endswith("x\n") and text.count("\n") == 1 for text in writes)
    assert not any("\r" in text or "\x1b" in text for text in writes)


def work(**fields: Any) -> Work:
    actors = Actors(running=2, pending=0, restarting=0, deaths=1)
    given = {
        "chunks_left": 3,
        "chunks_in_flight": 1,
        "errors": {"poison": 2},
        "lag_seconds": 0,
        "commit_age_seconds": 0,
    }
    return Work(actors=actors, **given, **fields)
