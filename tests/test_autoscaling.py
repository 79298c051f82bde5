"""Nodes from none to four and back: Ray's own autoscaler, version 2, over a provider that starts nodes on this machine.

``ray.cluster_utils.AutoscalingCluster`` cannot be used: the wheel of Ray 2.60 lacks its ``example.yaml``, and it ends
every Ray of the machine. As a provider of type ``external`` the same fake needs no such file. Version 1 would know the
nodes by their address, which they share here, and never find one idle.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import ray.util
import yaml
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FAKE_HEAD_NODE_TYPE
from sums_run import SumsRun

MOST = 4
HEAD_CPUS = 8  # room for all that is not the teacher's, so that no node is kept for its sake
IDLE_SECONDS = 6
STORE = {"object_store_memory": 80_000_000}


class FakeCloud:
    """A head and its autoscaler; what it starts is in the head's process group."""

    def __init__(self, directory: Path, node_types: dict[str, dict[str, float]]) -> None:
        self._directory = directory
        with socket.socket() as taken, socket.socket() as also_taken:
            taken.bind(("", 0))
            also_taken.bind(("", 0))
            port, metrics_port = taken.getsockname()[1], also_taken.getsockname()[1]
        self.address = f"{ray.util.get_node_ip_address()}:{port}"
        config = directory / "autoscaling.yaml"
        config.write_text(yaml.safe_dump(self._config(node_types)))
        command = [
            "start",
            "--head",
            "--block",
            f"--num-cpus={HEAD_CPUS}",
            f"--port={port}",
            f"--temp-dir={directory}/ray",
        ]
        command += [f"--autoscaling-config={config}", "--include-dashboard=false", "--disable-usage-stats"]
        command += [f"--object-store-memory={STORE['object_store_memory']}"]
        environment = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
            "RAY_NODE_TYPE_NAME": FAKE_HEAD_NODE_TYPE,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "AUTOSCALER_METRIC_PORT": str(metrics_port),
        }
        with (directory / "head.log").open("w") as log:
            self._head = subprocess.Popen(
                [str(Path(sys.executable).with_name("ray")), *command],
                env={**os.environ, **environment},
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def _config(self, node_types: dict[str, dict[str, float]]) -> dict[str, Any]:
        kinds: dict[str, Any] = {
            name: {"resources": {**resources, **STORE}, "node_config": {}, "max_workers": MOST}
            for name, resources in node_types.items()
        }
        kinds[FAKE_HEAD_NODE_TYPE] = {"resources": {"CPU": HEAD_CPUS}, "node_config": {}, "max_workers": 0}
        fake = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
        commands = ("setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands")
        commands += ("head_start_ray_commands", "worker_start_ray_commands")
        files = ("cluster_synced_files", "rsync_exclude", "rsync_filter")
        return {
            "cluster_name": "fake",
            "max_workers": len(node_types) * MOST,
            "idle_timeout_minutes": IDLE_SECONDS / 60,
            "upscaling_speed": 2 * MOST,
            "provider": {
                "type": "external",
                "module": fake,
                "gcs_address": self.address,
                "head_node_id": FAKE_HEAD_NODE_ID,
                "launch_multiple": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            "available_node_types": kinds,
            "head_node_type": FAKE_HEAD_NODE_TYPE,
            "auth": {},
            "file_mounts": {},
            "file_mounts_sync_continuously": False,
            **{name: [] for name in (*commands, *files)},
        }

    def wait(self) -> None:
        """Return when the head is up."""
        end = time.monotonic() + 120
        while "Ray runtime started" not in (told := (self._directory / "head.log").read_text()):
            assert self._head.poll() is None and time.monotonic() < end, told
            time.sleep(0.2)

    def decisions(self) -> list[tuple[float, str, str, int]]:
        """What the autoscaler did: second, Adding or Removing, type and number of nodes."""
        (log,) = self._directory.glob("ray/session_2*/logs/monitor.log")
        told = r"(\S+ \S+),\d+\tINFO event_logger.*(Adding|Removing) (\d+) nodes?(?:\(s\))? of type (\w+)"
        return [
            (datetime.fromisoformat(at).timestamp(), verb, kind, int(count))
            for at, verb, count, kind in re.findall(told, log.read_text())
        ]

    def end(self) -> None:
        """End the head and its nodes, and nobody else's."""
        os.killpg(self._head.pid, signal.SIGTERM)
        try:
            self._head.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._head.pid, signal.SIGKILL)
            self._head.wait()


@contextmanager
def fake_cloud(**node_types: dict[str, float]) -> Iterator[FakeCloud]:
    with tempfile.TemporaryDirectory(
        prefix="cloud-", ignore_cleanup_errors=True
    ) as directory:  # a socket's path: short
        cloud = FakeCloud(Path(directory), node_types)
        try:
            cloud.wait()
            yield cloud
        finally:
            cloud.end()


@pytest.mark.slow
@pytest.mark.parametrize("initial", [None, MOST])
def test_gpu_nodes_come_from_none_while_rows_are_labelled_and_go_when_idle(tmp_path: Path, initial: int | None):
    actors = {"min": 1, "max": MOST, "initial": initial, "num_gpus": 1}
    run = SumsRun(tmp_path, num_pool=3000, actors=actors, seconds_per_row=0.05, chunk_rows=100)
    with fake_cloud(gpu_teacher={"CPU": 1, "GPU": 1}, cpu_data={"CPU": 2}) as cloud:
        driver = run.start("--address", cloud.address, RAY_AUTH_MODE="disabled")
        try:
            assert driver.wait(300) == 0, run.errors()
        finally:
            driver.kill()
        decisions = cloud.decisions()
    assert "waiting for the cluster's autoscaler" in run.errors()
    assert run.committed() == run.pool()

    events = [(event["time"], event["num"]) for event in run.events("nodes")]
    print(events, decisions)
    numbers = [number for _, number in events]
    peak = numbers.index(1 + MOST)
    assert numbers[0] == 1 and numbers[-1] == 1
    assert numbers[: peak + 1] == sorted(numbers[: peak + 1]) and numbers[peak:] == sorted(numbers[peak:], reverse=True)
    began, done = (
        next(event["time"] for event in run.events(kind) if event["stage"] == "gen-0/label-pool")
        for kind in ("started", "finished")
    )
    assert events[peak][0] < done < events[peak + 1][0] < done + IDLE_SECONDS + 10

    counts: Counter[tuple[str, str]] = Counter()
    for _, verb, kind, number in decisions:
        counts[verb, kind] += number
    assert counts == {("Adding", "gpu_teacher"): MOST, ("Removing", "gpu_teacher"): MOST}  # no CPU node for nothing
    asked = [second for second, verb, _, _ in decisions if verb == "Adding" and second >= began - 1]
    # More are asked for once those before have come; the actors that are asked for at once need no such round.
    assert (asked[-1] - asked[0] < 5) is (initial is not None)
