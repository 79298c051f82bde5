"""Exactly once: the driver dies by SIGKILL while the pool is labelled, the same command goes on."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from sums_run import NUM_SOURCE, SumsRun

from curation.storage.lease import find_holder

pytestmark = pytest.mark.whole_run

NUM_POOL, NUM_ACTORS, CHUNK_ROWS = 3000, 2, 50
UNTIL = ("--until", "label-pool")


def make_run(directory: Path, commit_seconds: float = 0.2) -> SumsRun:
    return SumsRun(
        directory,
        num_pool=NUM_POOL,
        actors={"min": NUM_ACTORS, "max": NUM_ACTORS},
        seconds_per_row=0.004,
        chunk_rows=CHUNK_ROWS,
        commit_seconds=commit_seconds,
    )


def kill_and_resume(directory: Path, num_kills: int) -> None:
    run, chance = make_run(directory), random.Random(num_kills)
    marks = []
    for _ in range(num_kills):
        process = run.start(*UNTIL)
        # The rows labelled so far are the clock: a moment after some more of the pool, however slow the machine is.
        target = max(len(run.labelled()), NUM_SOURCE) + chance.uniform(0.1, 0.8) * NUM_POOL / num_kills
        while process.poll() is None and len(run.labelled()) < target:
            time.sleep(0.02)
        assert process.poll() is None, f"the run ended before it was killed: {run.errors()}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        committed = run.committed()
        assert len(committed) == len(set(committed))
        marks.append((set(committed), len(run.labelled())))
    run.run(*UNTIL)

    assert run.committed() == run.pool() and len(run.pool()) == NUM_POOL
    labels = run.labels()
    assert labels is not None and len(labels.get_fragments()) == 1, "60 small fragments were not compacted"
    log = run.labelled()
    for committed, length in marks:
        again = committed.intersection(log[length:])
        assert not again, f"{len(again)} committed rows were labelled again"
    assert any(0 < len(committed) < NUM_POOL for committed, _ in marks)


def test_driver_killed_twice(local_ray: Any, tmp_path: Path):
    kill_and_resume(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_driver_killed_twenty_times(local_ray: Any, tmp_path: Path):
    kill_and_resume(tmp_path, 20)


@pytest.mark.quick
def test_sigterm_commits_what_is_done_and_gives_the_directory_back(tmp_path: Path):
    run = make_run(tmp_path, commit_seconds=3600)
    process = run.start(*UNTIL)
    while process.poll() is None and len(run.labelled()) < NUM_SOURCE + NUM_POOL / 2:
        time.sleep(0.02)
    begun = time.monotonic()
    process.terminate()
    assert process.wait(timeout=60) == 143, run.errors()
    assert time.monotonic() - begun < 25  # Kubernetes grants 30 s
    assert "curate: stopped by SIGTERM: " in run.errors() and "; run the same command to continue" in run.errors()
    unfinished = NUM_ACTORS * 2 * CHUNK_ROWS  # two chunks each
    assert len(run.committed()) >= len(run.labelled()) - NUM_SOURCE - unfinished
    assert find_holder(run.directory) is None
    assert '"stopped"' in (run.directory / "events.jsonl").read_text().splitlines()[-1]
