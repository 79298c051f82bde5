"""A Ray that does not start: the message gives Ray's reason, and asks about load where the start took too long."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from curation import activity
from curation.cluster import session
from curation.config import RayConfig
from curation.errors import RunFailedError


def test_a_refused_start_does_not_ask_about_load(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[str | None] = []

    def init(**settings: Any) -> None:
        under_way.append(activity.get_current_activity())
        raise ValueError("the object store needs at least 75 MiB")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RunFailedError) as refused:
        session._start_ray(RayConfig(num_cpus=1))
    assert str(refused.value) == "Ray did not start: ValueError: the object store needs at least 75 MiB"
    assert under_way == ["starting Ray"] and activity.get_current_activity() is None


def test_a_slow_start_is_tried_again_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**settings: Any) -> None:
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RunFailedError) as failed:
        session._start_ray(RayConfig(num_cpus=1))
    assert "timed out during startup; is the machine busy" in str(failed.value)
    assert "lower ray.num_cpus" in str(failed.value)
    tries = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert tries == [f"Ray did not start in time, attempt {number} of 3; trying again" for number in (1, 2)]


def test_settings_of_a_local_ray_are_those_of_the_user_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    niceness = "RAY_worker_niceness"
    monkeypatch.setenv(niceness, "7")
    with session._alone():
        assert (os.environ["RAY_USAGE_STATS_ENABLED"], os.environ[niceness]) == ("0", "7")
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ and os.environ[niceness] == "7"


FAILING = """
import subprocess
from ray._private.node import Node
from curation.cluster import session
from curation.config import RayConfig
from curation.errors import RunFailedError

begun = []
def fail(node):
    begun.extend(info.process.pid for infos in node.all_processes.values() for info in infos)
    raise Exception("The current node timed out during startup")
Node.start_ray_processes = fail
session.RAY_ATTEMPTS = 2
try:
    session._start_ray(RayConfig(num_cpus=1))
except RunFailedError as error:
    print(error)
print(len(begun))
pids = ",".join(map(str, begun))
print(subprocess.run(["ps", "-o", "stat=,args=", "-p", pids], capture_output=True, text=True).stdout)
"""


@pytest.mark.long
def test_a_start_that_fails_leaves_no_process(tmp_path: Path) -> None:
    """As each try did, for as long as the driver lived."""
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=120)
    said, num_begun, *left = done.stdout.splitlines()
    assert said.startswith("Ray did not start: The current node timed out during startup; is the machine")
    assert int(num_begun) >= 2 and [line for line in left if line and not line.startswith("Z")] == [], done.stdout
