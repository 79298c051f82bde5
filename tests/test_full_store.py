"""A run directory on a disk that is read-only, full from the start, or full in the middle of a run."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from small_disk import small_disk
from sums_run import NUM_SOURCE, SumsRun

from curation.errors import RunFailedError
from curation.pipeline.work import files_of
from curation.rundir import events
from curation.storage.paths import write_atomically

pytestmark = pytest.mark.long

NUM_POOL = 600


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MB, where the run directory is."""
    with small_disk(tmp_path / "run") as path:
        yield path


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def last_line(run: SumsRun) -> str:
    return run.errors().strip().splitlines()[-1]


def test_a_disk_that_is_read_only_or_full_is_refused_at_once(disk: Path, tmp_path: Path):
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 1}, seconds_per_row=0)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert run.start().wait(60) == 2
    assert "no lease can be written there" in last_line(run) and "Read-only file system" in last_line(run)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    fill(disk)
    assert run.start().wait(60) == 2
    assert "no lease can be written there" in last_line(run) and "No space left on device" in last_line(run)


def test_a_disk_that_is_full_between_two_stages_fails_the_run(disk: Path):
    fill(disk)
    with (
        pytest.raises(RunFailedError, match=r"No space left on device.*run the same command to resume"),
        files_of(disk),
    ):
        write_atomically(disk / "manifest.json", "x" * 10_000)


@pytest.mark.slow  # the commit is tried again for a minute
def test_a_disk_that_fills_up_ends_the_run_and_no_committed_row_is_lost(disk: Path, tmp_path: Path):
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 1}, seconds_per_row=0.01)
    driver = run.start()
    while len(run.labelled()) < NUM_SOURCE + NUM_POOL // 2:
        assert driver.poll() is None, run.errors()
        time.sleep(0.05)
    fill(disk)
    assert driver.wait(120) == 1
    told = [line for line in run.errors().splitlines() if line.startswith("curate: ")]
    assert len(told) == 1 and "stage gen-0/label-pool failed" in told[0] and "No space left" in told[0], run.errors()
    assert "run the same command to resume" in told[0] and "Traceback" not in run.errors()
    committed, length = set(run.committed()), len(run.labelled())
    assert 0 < len(committed) < NUM_POOL
    (disk / "filler").unlink()
    assert run.start().wait(120) == 0, run.errors()
    assert run.committed() == run.pool() and not committed.intersection(run.labelled()[length:])


def test_events_wait_for_room_and_are_never_half_written(disk: Path):
    log = events.EventLog(disk)
    log.add("first", can_wait=False)
    fill(disk)
    for number in range(3):
        log.add(f"{number}" * 5000, can_wait=False)
    assert log.last(1 << 20) == ["first"]
    (disk / "filler").unlink()
    log.add("last", can_wait=False)
    assert log.last(1 << 20) == ["first", "0" * 5000, "1" * 5000, "2" * 5000, "last"]
