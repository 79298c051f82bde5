"""Hosts: one start serves several stages, and is given back where nobody needs it or others need its room."""

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from built import Built

from curation.errors import RunFailedError
from curation.rundir.graph import Done, Stage, order_stages
from curation.rundir.hosts import Host, Hosts
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run, Task
from curation.stopping import wait_for_call

ONE = {"CPU": 1.0}


class Thing:
    """A host that counts its users."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.closed, self._lock, self._now, self.most = log, False, threading.Lock(), 0, 0
        log.append("start")

    def work(self, seconds: float) -> None:
        assert not self.closed
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        wait_for_call(lambda: time.sleep(seconds))
        with self._lock:
            self._now -= 1

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.log.append("close")


class Works:
    """Stages that work by hosts."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.things: list[Thing] = []

    def start(self) -> Thing:
        self.things.append(Thing(self.log))
        return self.things[-1]

    def stage(
        self, name: str, host: Host | None, *, cpus: float = 1.0, fails: bool = False, idle: float = 60, **inputs: Any
    ) -> Stage:
        def work(task: Task, **read: Any) -> Done:
            if host is None:
                self.log.append(name)
                return Done(outputs={"name": name}, rows=1)
            with task.hosted(self.start, max_idle_seconds=idle) as thing:
                thing.work(0.2)
                self.log.append(name)
                if fails:
                    raise RunFailedError("as asked")
            return Done(outputs={"name": name}, rows=1)

        return Built(name=name, work=work, inputs=inputs, takes={"CPU": cpus}, host=host)


def do(directory: Path, stages: list[Stage], *, cpus: float, hold_cpus: bool = True) -> None:
    with closing(Hosts(hold_cpus=hold_cpus)) as hosts:
        made = Run("test", Manifest.load(directory), room=lambda: {"CPU": cpus}, hosts=hosts)
        made.do(order_stages([stage.value("name") for stage in stages]))


def model(name: str, *, kind: str | None = None, shared: bool = True) -> Host:
    return Host(name=name, kind=kind or name, shared=shared)


def test_stages_of_one_model_share_one_start_side_by_side_and_take_its_room_once(tmp_path):
    works = Works()
    do(tmp_path, [works.stage(name, model("teacher"), cpus=2, seed=name) for name in ("a", "b", "c")], cpus=2)
    assert works.log.count("start") == works.log.count("close") == 1
    assert works.things[0].most == 3


def test_a_host_is_kept_for_a_later_stage_and_another_model_of_the_kind_uses_it(tmp_path):
    works = Works()
    first = works.stage("first", model("teacher", kind="small"))
    second = works.stage("second", model("student", kind="small"), first=first.value("name"))
    do(tmp_path, [second], cpus=1)
    assert works.log == ["start", "first", "second", "close"]


def test_one_that_trains_serves_one_stage_at_a_time(tmp_path):
    works = Works()
    host = model("train", shared=False)
    do(tmp_path, [works.stage(name, host, seed=name) for name in ("a", "b")], cpus=2)
    assert works.log.count("start") == 2 and {thing.most for thing in works.things} == {1}
    works = Works()
    do(tmp_path / "one", [works.stage(name, host, seed=name) for name in ("a", "b")], cpus=1)
    assert works.log == ["start", "a", "b", "close"]


def test_room_that_another_stage_needs_is_given_back_first(tmp_path):
    works = Works()
    first = works.stage("first", model("teacher"), cpus=2)
    light = works.stage("light", None, first=first.value("name"))
    again = works.stage("again", model("teacher"), cpus=2, light=light.value("name"))
    do(tmp_path / "small", [again], cpus=2)
    assert works.log == ["start", "first", "close", "light", "start", "again", "close"]
    works = Works()
    first = works.stage("first", model("teacher"), cpus=2)
    light = works.stage("light", None, first=first.value("name"))
    again = works.stage("again", model("teacher"), cpus=2, light=light.value("name"))
    do(tmp_path / "large", [again], cpus=3)
    assert works.log == ["start", "first", "light", "again", "close"]


def test_on_one_machine_an_idle_host_stays_beside_a_stage_that_needs_its_room(tmp_path):
    works = Works()
    first = works.stage("first", model("teacher"), cpus=2)
    trained = works.stage("trained", model("train", shared=False), cpus=2, first=first.value("name"))
    again = works.stage("again", model("teacher"), cpus=2, trained=trained.value("name"))
    do(tmp_path, [again], cpus=2, hold_cpus=False)
    assert works.log == ["start", "first", "start", "trained", "close", "again", "close"]


@pytest.mark.long
def test_where_no_later_stage_asks_or_for_too_long_it_is_given_back(tmp_path):
    works = Works()
    first = works.stage("first", model("teacher"))
    after = works.stage("after", None, first=first.value("name"))
    do(tmp_path / "done", [after], cpus=4)
    assert works.log == ["start", "first", "close", "after"]
    works = Works()
    first = works.stage("first", model("teacher"), idle=0.0)
    slow = Built(
        name="slow",
        work=lambda task, first: (time.sleep(2.5), Done(outputs={"name": "slow"}, rows=0))[1],
        inputs={"first": first.value("name")},
    )
    again = works.stage("again", model("teacher"), slow=slow.value("name"))
    do(tmp_path / "idle", [again], cpus=4)
    assert works.log == ["start", "first", "close", "start", "again", "close"]


def test_one_that_fails_does_not_end_what_others_work_by(tmp_path):
    works = Works()
    stages = [works.stage(name, model("teacher"), seed=name, fails=name == "bad") for name in ("a", "bad", "c")]
    with pytest.raises(RunFailedError, match="stage bad failed: as asked"):
        do(tmp_path, stages, cpus=1)
    assert works.log.count("start") == works.log.count("close") == 1
    assert sorted(Manifest.load(tmp_path).stages) == ["a", "c"]


def test_after_an_error_nobody_is_served_anew():
    log: list[str] = []
    hosts = Hosts()
    with pytest.raises(ValueError), hosts.use(model("x"), ONE, 60, lambda: Thing(log)):
        raise ValueError
    with hosts.use(model("x"), ONE, 60, lambda: Thing(log)):
        assert log == ["start", "close", "start"]
    hosts.close()
    assert log == ["start", "close", "start", "close"]


def test_what_nobody_asks_any_more_goes_before_what_a_later_stage_needs(tmp_path):
    works = Works()
    first = works.stage("first", model("teacher"))
    fit = works.stage("fit", model("train"), first=first.value("name"))
    light = works.stage("light", None, fit=fit.value("name"))
    again = works.stage("again", model("teacher"), light=light.value("name"))
    do(tmp_path, [again], cpus=2)
    assert works.log == ["start", "first", "start", "fit", "close", "light", "again", "close"]
    assert len(works.things) == 2


def test_a_host_that_a_stage_is_about_to_take_is_not_given_back_for_one_that_begins_with_it(tmp_path):
    works = Works()
    first = works.stage("first", model("teacher"))
    again = works.stage("again", model("teacher"), first=first.value("name"))
    light = works.stage("light", None, first=first.value("name"))
    do(tmp_path, [light, again], cpus=2)
    assert sorted(works.log) == ["again", "close", "first", "light", "start"]


def test_hosts_that_outlive_a_run_serve_the_next_one(tmp_path):
    works = Works()
    with closing(Hosts(outlive_runs=True)) as hosts:
        for name in ("one", "two"):
            run = Run(name, Manifest.load(tmp_path / name), room=lambda: {"CPU": 1.0}, hosts=hosts)
            run.do(order_stages([works.stage(name, model("teacher")).value("name")]))
        assert works.log == ["start", "one", "two"]
    assert works.log == ["start", "one", "two", "close"]
