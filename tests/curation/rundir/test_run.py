"""Stages side by side: as many as fit, one that fails beside healthy ones, and what is broken off."""

import json
import math
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built import Built

from curation.errors import ConfigError, RunFailedError
from curation.rundir.graph import Done, Out, Stage, order_stages
from curation.rundir.manifest import Manifest
from curation.rundir.run import Load, Run, Task, has_room
from curation.stopping import Stopped, stopped_by_signals, wait_for_call
from curation.storage import lease
from curation.storage.conditional import make_register
from curation.telemetry import standing


class Crowd:
    """Stages that count how many of them are at work at once."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds, self.most, self._now, self._lock = seconds, 0, 0, threading.Lock()

    def stage(self, name: str, *, cpus: float = 1.0, error: BaseException | None = None, **inputs: Any) -> Stage:
        def work(task: Task, **read: Any) -> Done:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            wait_for_call(lambda: time.sleep(self.seconds))
            with self._lock:
                self._now -= 1
            if error is not None:
                raise error
            return Done(outputs={"name": name}, rows=1)

        return Built(name=name, work=work, inputs=inputs, takes={"CPU": cpus})


def run(directory: Path, stages: list[Stage], *, cpus: float = 4.0, most: int | None = None) -> Any:
    made = Run("test", Manifest.load(directory), max_stages=most, room=lambda: {"CPU": cpus})
    return made.do(order_stages([stage.value("name") for stage in stages]))


def events(directory: Path) -> list[tuple[str, str]]:
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [(event["event"], event["stage"]) for event in map(json.loads, lines)]


@pytest.mark.parametrize(("cpus", "most", "expected"), [(4, None, 3), (2, None, 2), (4, 1, 1), (0.5, None, 1)])
def test_stages_that_do_not_wait_are_done_at_once_as_far_as_there_is_room(tmp_path, cpus, most, expected):
    crowd = Crowd()
    first = crowd.stage("first", seed=0)
    others = [crowd.stage(f"student-{index}", first=first.value("name"), seed=index) for index in range(3)]
    known = run(tmp_path, others, cpus=cpus, most=most)
    assert crowd.most == expected and set(known) == {"first", "student-0", "student-1", "student-2"}
    assert events(tmp_path)[:2] == [("started", "first"), ("finished", "first")]
    assert sorted(Manifest.load(tmp_path).stages) == sorted(known)


def test_of_the_stages_that_can_start_the_one_with_most_rows_starts_first(tmp_path):
    crowd, rows = Crowd(0.05), {"short": 1, "long": 240, "middle": 20}
    stages = [replace(crowd.stage(name, seed=place), num_rows=rows[name]) for place, name in enumerate(rows)]
    made = Run("test", Manifest.load(tmp_path), room=lambda: {"CPU": 1.0})
    made.do(order_stages([stage.value("name") for stage in stages]))
    assert [name for event, name in events(tmp_path) if event == "started"] == ["long", "middle", "short"]


@pytest.mark.long
def test_a_slow_stage_ends_with_its_speed(tmp_path, capsys):
    run(tmp_path, [Crowd(2.1).stage("slow")])
    speed = float(capsys.readouterr().err.rpartition(" rows/s")[0].rpartition(" ")[2])
    assert 0.1 < speed < 0.5


def test_loads_fit_beside_each_other_where_there_is_room_and_one_that_is_too_large_alone():
    def load(cpus: float, gpus: float = 0.0, shared: str | None = None) -> Load:
        return Load(shared, {"CPU": cpus, "GPU": gpus})

    room = {"CPU": 4.0, "GPU": 1.0}
    assert has_room(load(2), [load(2)], room) and not has_room(load(2.5), [load(2)], room)
    assert not has_room(load(1), [load(64)], room) and not has_room(load(64), [load(1)], room)
    assert has_room(load(1), [load(3, 1)], room) and not has_room(load(1, 0.5), [load(3, 1)], room)
    assert has_room(load(3, 1, "model"), [load(3, 1, "model")], room), "one host serves both"
    assert has_room(load(4, 1, "model"), [load(3, 1, "model")], room), "it grows"
    assert not has_room(load(4, 1, "model"), [load(3, 1, "model"), load(1)], room)
    assert has_room(load(1), [load(2, 0, "model"), load(3, 0, "model")], room), (
        "together they take what the larger takes"
    )
    assert not has_room(load(3), [load(1, 0, "model"), load(1, 0, "other")], room)
    all_cores = load(math.inf, 0, "model")
    assert has_room(all_cores, [all_cores], room), "its actors serve a second pass as well"
    assert has_room(all_cores, [load(0, 1)], room) and not has_room(all_cores, [load(1)], room)
    assert not has_room(load(1), [all_cores], room)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ConfigError("x: is wrong"), ConfigError, "^x: is wrong$"),
        (KeyError("lost"), RunFailedError, "stage bad failed: KeyError: 'lost' .*run the same command to resume"),
        (SystemExit(3), RunFailedError, "stage bad failed: RuntimeError: its work ended by SystemExit: 3"),
    ],
)
def test_where_one_fails_those_under_way_end_and_no_other_begins(tmp_path, capsys, error, raised, message):
    slow, quick = Crowd(0.6), Crowd(0.1)
    healthy = [slow.stage(f"healthy-{index}", seed=index) for index in range(2)]
    bad = quick.stage("bad", error=error, seed=0)
    after = slow.stage("after", of=healthy[0].value("name"))
    with pytest.raises(raised, match=message):
        run(tmp_path, [*healthy, bad, after])
    assert set(Manifest.load(tmp_path).stages) == {"healthy-0", "healthy-1"}
    assert ("failed", "bad") in events(tmp_path) and ("started", "after") not in events(tmp_path)
    assert "bad failed; waiting for the running stages: healthy-0, healthy-1" in capsys.readouterr().err
    mended = quick.stage("bad", seed=0)
    run(tmp_path, [*healthy, mended, after])
    assert set(Manifest.load(tmp_path).stages) == {"healthy-0", "healthy-1", "bad", "after"}
    assert [name for event, name in events(tmp_path) if event == "finished"].count("healthy-0") == 1


@pytest.mark.parametrize(("way", "raised"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_breaks_off_all_stages_and_each_keeps_what_is_done(tmp_path, way, raised):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def stage(name: str) -> Stage:
        def work(task: Task) -> Done:
            done = 0
            try:
                for step in _steps():
                    wait_for_call(step)
                    done += 1
            except BaseException:
                (tmp_path / name).write_text(str(done))
                raise
            return Done(outputs={"name": name}, rows=done)

        return Built(name=name, work=work, inputs={})

    def _steps() -> Any:
        yield from [lambda: None] * 3
        yield threading.Event().wait  # for ever, deaf to everything

    stages: list[Out] = [stage(f"pass-{index}").value("name") for index in range(3)]
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), way))
    timer.start()
    begun = time.monotonic()
    with stopped_by_signals(), pytest.raises(raised):
        Run("test", Manifest.load(tmp_path), room=lambda: {"CPU": 4.0}).do(order_stages(stages))
    signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < 10
    assert [(tmp_path / f"pass-{index}").read_text() for index in range(3)] == ["3"] * 3
    assert sorted(events(tmp_path))[-3:] == [("stopped", f"pass-{index}") for index in range(3)]
    assert not Manifest.load(tmp_path).stages


def test_a_lease_that_is_lost_breaks_off_the_stages_at_once_and_leaves_the_others_log_alone(tmp_path):
    with lease.hold(tmp_path, seconds=0.6) as held:
        manifest = Manifest.load(tmp_path, guard=held.still_held)
        stage = Crowd(seconds=60).stage("long")
        register = make_register(tmp_path / "lease")

        def take() -> None:
            token = None
            while token is None:  # its holder may renew it in between
                found = register.read()
                record = json.loads(found.text) | {"owner": "other", "host": "node-7", "expires": time.time() + 600}
                token = register.put_if_match(json.dumps(record), found.token)

        taking = threading.Timer(0.5, take)
        taking.start()
        begun = time.monotonic()
        with pytest.raises(RunFailedError, match=r"stage long failed: .* the lease was lost to .* on node-7") as lost:
            Run("test", manifest, room=lambda: {"CPU": 4.0}, redo="curate run DIR --redo", lease=held).do([stage])
        assert "the other driver goes on" in str(lost.value) and "--redo" not in str(lost.value)
        assert time.monotonic() - begun < 30
    assert events(tmp_path) == [("started", "long")]


def test_what_is_called_in_a_thread_gives_its_result_or_its_error():
    def fail() -> None:
        raise ConfigError("x: is wrong")

    with pytest.raises(ConfigError, match="is wrong"):
        wait_for_call(fail)
    assert wait_for_call(lambda: 3) == 3 and wait_for_call(lambda: None) is None


@pytest.mark.long
def test_a_stage_without_progress_is_named_after_a_silence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("curation.telemetry.console.LINE_SECONDS", 0.5)
    monkeypatch.setattr("curation.rundir.run.ROOM_SECONDS", 0.1)
    run(tmp_path, [Crowd(seconds=2.0).stage("slow"), Crowd(seconds=2.0).stage("other")])
    lines = [line for line in capsys.readouterr().err.splitlines() if "at work" in line]
    assert 2 <= len(lines) <= 4 and lines[0].endswith(("slow for 1 s, other for 1 s", "other for 1 s, slow for 1 s"))


def test_a_key_that_is_no_json_fails_the_stage(tmp_path):
    with pytest.raises(RunFailedError, match=r"stage bad failed: ValueError: .*not JSON compliant"):
        run(tmp_path, [Crowd().stage("bad", share=math.nan)])


def test_progress_is_told_while_the_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standing, "EVENT_SECONDS", 0.02)
    monkeypatch.setattr(standing, "KNOWN_SECONDS", 0.0)
    real = time.time

    def work(task: Task) -> Done:
        with task.progress() as update:
            for rows, jump in enumerate([0, -3600, 3600, -3600]):
                monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
                update(standing.Standing(rows=100 * rows, total=1000))
                time.sleep(0.05)
        return Done(outputs={"name": "a"}, rows=4)

    run(tmp_path, [Built(name="a", work=work, inputs={})])
    told = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    found = [event for event in told if event["event"] == "progress"]
    assert [event["rows"] for event in found] == [0, 100, 200, 300]
    assert all(0 < event["seconds_left"] < 60 for event in found[3:])
