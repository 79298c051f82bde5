"""SIGINT and SIGTERM in every phase of a run: the exit code, the line, what is kept, and how long it takes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sums_run import SumsRun

from curation.stopping import LIMIT_SECONDS
from curation.storage import lease

pytestmark = pytest.mark.long

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A driver as a shell script starts its background jobs: with SIGINT ignored."""
    with log.open("w") as file:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("curate")), *arguments],
            stdout=file,
            stderr=file,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )


def stop(driver: subprocess.Popen[bytes], log: Path, way: signal.Signals) -> tuple[str, float]:
    """The last line of a driver that got a signal, and how long it went on."""
    begun = time.monotonic()
    driver.send_signal(way)
    assert driver.wait(LIMIT_SECONDS + 15) == CODES[way], log.read_text()
    lines = log.read_text().splitlines()
    assert "Traceback" not in log.read_text() and "\r" not in log.read_text() and "\x1b" not in log.read_text()
    assert lines[-1].startswith(f"curate: stopped by {way.name}: "), lines[-5:]
    assert lines[-1].endswith("; run the same command to continue")
    return lines[-1], time.monotonic() - begun


def until(condition: Callable[[], Any], driver: subprocess.Popen[bytes], log: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def events(directory: Path, kind: str) -> list[str]:
    path = directory / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event["stage"] for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("way", CODES)
def test_a_driver_that_waits_says_in_a_line_that_it_was_stopped(tmp_path: Path, way: signal.Signals):
    run = SumsRun(tmp_path, num_pool=60, actors={"max": 1}, seconds_per_row=0.0)
    log = tmp_path / "log"
    with lease.hold(run.directory):
        driver = start(["run", str(run.config), "--wait"], log)
        until(lambda: "waiting for another run" in log.read_text(), driver, log)
        line, seconds = stop(driver, log, way)
    assert "no stage was running" in line and seconds < 10


@pytest.mark.slow
@pytest.mark.parametrize("way", CODES)
def test_ray_starts(tmp_path: Path, way: signal.Signals):
    run = SumsRun(tmp_path, num_pool=60, actors={"max": 1}, seconds_per_row=0.0)
    log = tmp_path / "log"
    for wait in (0.2, 1.0, 3.0):  # from before Ray's processes to the first stages
        driver = start(["run", str(run.config)], log)
        until(lambda: (run.directory / "lease").exists() and lease.find_holder(run.directory), driver, log)
        time.sleep(wait)
        _, seconds = stop(driver, log, way)
        assert seconds < LIMIT_SECONDS
    done = subprocess.run(run.command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", CODES)
def test_rows_are_labelled(tmp_path: Path, way: signal.Signals):
    run = SumsRun(tmp_path, num_pool=2000, actors={"max": 1}, seconds_per_row=0.02)
    log = tmp_path / "log"
    driver = start(["run", str(run.config)], log)
    until(lambda: len(run.committed()) > 100, driver, log)
    line, seconds = stop(driver, log, way)
    kept = len(run.committed())
    assert f"gen-0/label-pool has committed {kept:,} of 2,000 rows" in line and seconds < LIMIT_SECONDS
    status = [run.command[0], "status", str(run.config)]
    shown = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    assert "not running" in shown and "rows/s, about" not in shown and " left" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("way", CODES)
@pytest.mark.parametrize("stage", ["gen-0/trust", "gen-0/student-naive"])
def test_something_is_trained(tmp_path: Path, way: signal.Signals, stage: str):
    fit = {"kind": "neural", "width": 64, "depth": 2, "max_steps": 1_000_000, "patience": None}
    sections = {
        "trust": fit if stage == "gen-0/trust" else {},
        "selection": {"budget": {"n": 100}, "arms": ["naive", "trust"]},
        "student": {"epochs": 2000},
        "generations": [{"student": {"init": {"hidden_size": 64, "num_layers": 2}}}],
        "evaluation": {"num_runs": 1, "decoding": {"temperature": 0, "max_tokens": 8}},
    }
    splits = {"test": {"from": "sums", "rows": 20}}
    run = SumsRun(
        tmp_path, num_pool=200, actors={"max": 1}, seconds_per_row=0.0, splits=splits, sections=sections, num_more=20
    )
    path, log = run.config, tmp_path / "log"
    driver = start(["run", str(path)], log)
    until(lambda: stage in events(run.directory, "started"), driver, log, 200)
    time.sleep(8)
    assert stage not in events(run.directory, "finished"), log.read_text()
    line, seconds = stop(driver, log, way)
    assert stage in line and "stages are done" in line and seconds < LIMIT_SECONDS
    assert stage in events(run.directory, "stopped")


@pytest.mark.slow
def test_a_resumed_run_begins_with_what_takes_longest(tmp_path: Path):
    """Where trust can be fitted and the pool is half labelled, the pool is not kept waiting for its CPU."""
    sections = {"ray": {"num_cpus": 1}, "selection": {"budget": {"n": 50}, "arms": ["naive", "trust"]}}
    run = SumsRun(tmp_path, num_pool=1500, actors={"max": 1}, seconds_per_row=0.02, sections=sections)
    log = tmp_path / "log"
    graded = subprocess.run(
        [*run.command, "--until", "gen-0/grade-source"], capture_output=True, text=True, timeout=200, check=False
    )
    assert graded.returncode == 0, graded.stderr
    driver = start(["run", str(run.config)], log)
    until(lambda: len(run.committed()) > 25, driver, log)
    line, _ = stop(driver, log, signal.SIGTERM)
    assert "gen-0/label-pool has committed" in line
    before = events(run.directory, "started")
    assert "gen-0/trust" not in before
    resumed = subprocess.run(
        [*run.command, "--until", "gen-0/score-pool"], capture_output=True, text=True, timeout=300, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert events(run.directory, "started")[len(before) :][:2] == ["gen-0/label-pool", "gen-0/trust"]
    at = {event["stage"]: event["time"] for event in run.events("started")[len(before) :]}
    (labelled,) = [event["time"] for event in run.events("finished") if event["stage"] == "gen-0/label-pool"]
    assert at["gen-0/trust"] >= labelled
