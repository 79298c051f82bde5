"""Progress of several stages: lines that stay whole in a log, and one line a stage in a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from itertools import pairwise
from typing import Any

import pytest

from curation.telemetry import console
from curation.telemetry.standing import Actors, Standing, Work

COLUMNS = 70
STAGES = """
import time
from curation.telemetry import console
from curation.telemetry.standing import Actors, Standing, Work

actors = Actors(running=2, pending=0, restarting=0, deaths=1)
work = Work(actors=actors, chunks_left=3, chunks_in_flight=1, errors={"poison": 2}, lag_seconds=0, commit_age_seconds=0)
with console.progress("gen-0/label-pool") as first, console.progress("gen-0/test") as second:
    for rows in range(0, 1001, 250):
        first(Standing(rows=rows, total=1000, work=work))
        second(Standing(rows=rows // 2, total=1000))
        time.sleep(0.01)
    console.say("gen-0/shift: is done")
    second(Standing(rows=1000, total=1000))
console.say("the end")
"""


def in_terminal(code: str) -> str:
    """What a process writes to a terminal of ``COLUMNS`` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    assert process.wait(60) == 0
    os.close(ours)
    return written.decode()


def test_each_stage_has_a_line_in_a_terminal_that_its_width_holds():
    written = in_terminal(STAGES)
    lines = [line.rstrip() for line in re.split(r"\r|\n|\x1b\[A", written) if line.strip()]
    assert max(map(len, lines)) <= COLUMNS
    bars = [line for line in lines if "█" in line or "░" in line]
    assert any(
        line.startswith("gen-0/label-pool " + "█" * 10 + "░" * 10 + " 500 of 1,000 rows (50 %)") for line in bars
    )
    assert any(line.startswith("gen-0/test       " + "█" * 5 + "░" * 15 + " 250 of 1,000 rows (25 %)") for line in bars)
    assert len([line for line in lines if line.endswith("gen-0/shift: is done")]) == 1
    assert lines[-1].endswith("the end")


def test_without_a_terminal_there_are_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    writes: list[str] = []

    class Pipe:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

        def flush(self) -> None:
            pass

    clock = [0.0]
    monkeypatch.setattr(sys, "stderr", Pipe())
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])

    def stage(name: str) -> None:
        with console.progress(name) as update:
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
