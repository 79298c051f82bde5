"""Joining a Ray cluster: who answers at the address, and is there room for what the run asks for."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import ray.train
import yaml

from curation.cluster import capacity
from curation.cluster.capacity import Need, describe_lacking, list_needs
from curation.config import ActorsConfig, AskConfig, RunConfig, TeacherConfig, TrustConfig
from curation.config.base import make_ray_resources
from curation.errors import ClusterError

pytestmark = pytest.mark.long

TOKEN = "0123456789abcdef" * 4
NODE_CPUS = 3
HOLD = """
import sys
import ray
from ray.cluster_utils import Cluster

cluster = Cluster()
cluster.add_node(num_cpus=0, include_dashboard=False)
cluster.add_node(num_cpus=int(sys.argv[1]))
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.readline()
ray.init(address=cluster.address, log_to_driver=False)
print(len(ray._private.state.jobs()), flush=True)
ray.shutdown()
cluster.shutdown()
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def config_of(**changes: object) -> dict:
    """A run over sums, of which the scripted teacher has about half right."""
    return {
        "name": "joined",
        "domain": "math",
        "sources": {"sums": {"path": "sums.jsonl"}},
        "splits": {"source": {"from": "sums", "rows": 100}, "pool": {"from": "sums", "rows": 200}},
        "teacher": {
            "backend": "scripted",
            "chunk_rows": 50,
            "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]},
        },
        "selection": {"budget": {"n": 50}, "arms": ["naive", "internal_confidence"]},
        **changes,
    }


class Held:
    """A cluster of a head without CPUs and a node, held by a process of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = {**os.environ, **environment}
        command = [sys.executable, "-c", HOLD, str(NODE_CPUS)]
        self._process = subprocess.Popen(
            command, env=self.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.address = self._line()

    def num_jobs(self) -> int:
        """End the cluster; the drivers that ever joined it, ours at the end left out."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._line()) - 1

    def _line(self) -> str:
        line = self._process.stdout.readline().strip()
        assert line, "the cluster did not come up"
        return line

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def held(**environment: str) -> Iterator[Held]:
    cluster_held = Held({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, **environment})
    try:
        yield cluster_held
    finally:
        cluster_held.end()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(300)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "joined.yaml"
    path.write_text(yaml.safe_dump(config_of(run_dir=str(tmp_path / "run"))))
    return path


def curate(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("curate")), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=300)


def mistake(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith("curate: ")]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def test_an_address_where_nobody_listens_is_said_at_once(config: Path):
    address = f"127.0.0.1:{free_port()}"
    start = time.monotonic()
    told = mistake(curate("run", config, "--address", address))
    assert "no Ray answers" in told and address.rpartition(":")[2] in told
    assert time.monotonic() - start < capacity.CONNECT_SECONDS + 30  # the imports
    assert not (config.parent / "run" / "gen-0").exists()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1:8265", "ray job submit"),
        ("ray://127.0.0.1:10001", "ray job submit"),
        ("head", "HOST:PORT"),
        ("no-such-host.invalid:6379", "no Ray answers at"),
    ],
)
def test_what_is_no_address(address: str, told: str):
    with pytest.raises(ClusterError, match=told) as error:
        capacity.check_answers(address)
    assert "ray.address" in str(error.value) and address in str(error.value)


def test_what_listens_and_is_no_ray_is_said(monkeypatch: pytest.MonkeyPatch):
    """Ray would wait minutes for it, and not hear Ctrl-C."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        with pytest.raises(ClusterError, match=r"no Ray answers at 127.*is no Ray.*6379.*dashboard"):
            capacity.check_answers(f"127.0.0.1:{web.server_port}")
        web.shutdown()
    monkeypatch.setattr(capacity, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"no Ray answers at 127.*timed out"):
            capacity.check_answers(address)
        monkeypatch.setenv("RAY_USE_TLS", "1")  # a Ray with TLS says nothing to those without
        capacity.check_answers(address)


def test_auto_that_means_a_ray_which_has_ended_is_said(monkeypatch: pytest.MonkeyPatch):
    """Ray goes by ``RAY_ADDRESS``, or by a file that a killed head leaves behind."""
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match="no Ray answers at") as error:
        capacity.check_answers("auto")
    assert address.rpartition(":")[2] in str(error.value)


@pytest.mark.slow
def test_a_run_joins_the_cluster_that_is_named_or_in_the_environment(config: Path):
    with held() as there:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        assert "token" in mistake(curate("run", config, "--address", there.address, RAY_AUTH_MODE="disabled"))

        told = mistake(curate("run", config, "--address", there.address, "--set", "teacher.actors.num_gpus=1", **token))
        assert "teacher.actors asks for a worker of 1 CPU and 1 GPU" in told and f"{NODE_CPUS} CPU and 0 GPU" in told

        # In a job of Ray the address stands in the environment; ray.num_cpus is for a Ray of one's own.
        command = ("run", config, "--set", "ray.num_cpus=1")
        first = curate(*command, **token, RAY_ADDRESS=there.address)
        assert first.returncode == 0, first.stderr
        again = curate(*command, "--address", there.address, **token)
        assert again.returncode == 0 and "label-pool" not in again.stderr, again.stderr
        assert there.num_jobs() == 2, "the refused run and the first: nothing was left to do for the last"


@pytest.mark.slow
def test_a_cluster_that_can_grow_is_waited_for(config: Path):
    # `ray up` and KubeRay say so of each node that they start.
    with held(RAY_NODE_TYPE_NAME="gpu-teacher", RAY_CLOUD_INSTANCE_ID="i-1") as there:
        command = [Path(sys.executable).with_name("curate"), "run", config, "--address", there.address]
        errors = config.parent / "stderr.log"
        with errors.open("w") as stderr:
            run = subprocess.Popen(
                [*map(str, command), "--set", "teacher.actors.num_gpus=1"],
                env=there.environment,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        try:
            end = time.monotonic() + 120
            while "prepare: 300 rows" not in errors.read_text() and time.monotonic() < end:
                time.sleep(0.2)
            assert run.poll() is None, errors.read_text()
            told = errors.read_text()
            assert "1 CPU and 1 GPU" in told and "waiting for the cluster's autoscaler" in told
        finally:
            run.kill()
            run.wait()


ONE = {"CPU": 1.0}
GPU = {"CPU": 4.0, "GPU": 1.0}
LARGE = {"CPU": 1.0, "memory": 12e9}


@pytest.mark.parametrize(
    ("need", "nodes", "fits"),
    [
        (Need(key="a", count=1, resources=ONE), [{"CPU": 1.0}], True),
        (Need(key="a", count=1, resources=ONE), [{"CPU": 0.0}, {"memory": 1e9}], False),
        (Need(key="a", count=1, resources={"CPU": 0.5}), [{"CPU": 1.0}], True),
        (Need(key="a", count=2, resources={"CPU": 0.5}), [{"CPU": 1.0}], True),
        (Need(key="a", count=3, resources={"CPU": 0.5}), [{"CPU": 1.0}], False),
        # No node has both, though the cluster has: a worker stands on one node.
        (Need(key="a", count=1, resources=GPU), [{"CPU": 8.0}, {"CPU": 1.0, "GPU": 8.0}], False),
        (Need(key="a", count=2, resources=GPU), [{"CPU": 4.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 1.0}], True),
        (Need(key="a", count=2, resources=GPU), [{"CPU": 7.0, "GPU": 4.0}], False),
        (Need(key="a", count=1, resources=ONE), [], False),
        (Need(key="a", count=2, resources=LARGE), [{"CPU": 8.0, "memory": 25e9}], True),
        (Need(key="a", count=3, resources=LARGE), [{"CPU": 8.0, "memory": 25e9}], False),
        (Need(key="a", count=1, resources=LARGE), [{"CPU": 8.0}], False),
        (Need(key="a", count=9, resources={"CPU": 0.0, "GPU": 0.0}), [{"CPU": 1.0}], True),
    ],
)
def test_room_is_counted_node_by_node(need: Need, nodes: list[dict[str, float]], fits: bool):
    assert (describe_lacking([need], nodes) == []) is fits


def test_memory_is_told_in_gibibytes():
    need = Need(key="student", count=1, resources={"CPU": 2, "memory": 40 * 2**30})
    (told,) = describe_lacking([need], [{"CPU": 4, "memory": 12.5 * 2**30}])
    assert told == (
        "student asks for a worker of 2 CPU and 40.0 GiB of memory, and there is room for 0 "
        "(nodes: 4 CPU and 12.5 GiB of memory)"
    )


def test_an_accelerator_is_a_resource_of_its_node():
    need = Need(key="teacher.actors", count=2, resources=make_ray_resources(1, 1, 0, "A100"))
    fast, slow = {"CPU": 8.0, "GPU": 8.0, "accelerator_type:A100": 1.0}, {"GPU": 8.0, "accelerator_type:T4": 1.0}
    assert describe_lacking([need], [slow, fast]) == []
    (told,) = describe_lacking([need], [slow | {"CPU": 8.0}, {"CPU": 2.0}])
    assert told == (
        "teacher.actors asks for 2 workers of 1 CPU and 1 GPU and accelerator type A100, and there is room for 0 "
        "(nodes: 2 CPU and 0 GPU and no accelerator type A100; 8 CPU and 8 GPU and no accelerator type A100)"
    )


def test_an_accelerator_is_asked_for_as_by_ray_and_is_in_no_key():
    actors, recipe = ActorsConfig(num_gpus=1, accelerator_type="A100"), TrustConfig(accelerator_type="A100")
    plain = TrustConfig()
    rays = ray.train.ScalingConfig(num_workers=1, resources_per_worker=plain.per_worker, accelerator_type="A100")
    ours = ray.train.ScalingConfig(num_workers=1, resources_per_worker=recipe.per_worker)
    assert ours._resources_per_worker_not_none == rays._resources_per_worker_not_none
    assert recipe.without(recipe.RESOURCES) == plain.without(plain.RESOURCES)
    assert "accelerator_type" not in ActorsConfig(num_gpus=1).to_key()  # nothing changes for runs without
    asked = TeacherConfig(backend="scripted", actors=actors)
    dumps = [config.without(AskConfig.SPREAD) for config in (asked, TeacherConfig(backend="scripted"))]
    assert dumps[0] == dumps[1]


PLACED = """
import json
import ray
from ray.cluster_utils import Cluster
from curation.cluster import nodes
from curation.config import ActorsConfig

cluster = Cluster()
cluster.add_node(num_cpus=4, include_dashboard=False)
there = cluster.add_node(num_cpus=4, resources={"accelerator_type:A100": 1}).node_id
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
options = nodes.make_ray_options(ActorsConfig(accelerator_type="A100").each)
held = {name: n for name, n in options.items() if n is not None}

class Where:
    def __call__(self, batch):
        return {"node": [ray.get_runtime_context().get_node_id()]}

pool = ray.data.ActorPoolStrategy(size=3)
rows = ray.data.range(12, override_num_blocks=12).map_batches(Where, compute=pool, **held).take_all()
task = ray.remote(lambda: ray.get_runtime_context().get_node_id()).options(**held)
found = json.dumps([there, [row["node"] for row in rows], ray.get([task.remote() for _ in range(4)])])
ray.shutdown()
cluster.shutdown()
print(found)
"""


def test_actors_are_where_their_accelerator_is():
    ran = subprocess.run([sys.executable, "-c", PLACED], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    there, actors, tasks = json.loads(ran.stdout.splitlines()[-1])
    assert {*actors, *tasks} == {there}
    assert len(actors) == 12


def test_the_configuration_says_what_is_needed():
    raw = config_of()
    raw["teacher"]["actors"] = {"num_cpus": 2, "num_gpus": 0.5, "memory_gib": 1.5, "min": 1, "max": 8}
    assert [need.key for need in list_needs(RunConfig.model_validate(raw))] == ["teacher.actors", "trust"]
    raw["splits"]["test"] = {"from": "sums", "rows": 10}
    raw["generations"] = [{"student": {"path": "base"}}]
    raw["student"] = {"num_workers": 2, "cpus_per_worker": 3, "gpus_per_worker": 1, "memory_gib_per_worker": 2}
    asked = {need.key: need for need in list_needs(RunConfig.model_validate(raw))}
    assert set(asked) == {"teacher.actors", "trust", "student"}
    assert asked["teacher.actors"] == Need(
        key="teacher.actors", count=1, resources={"CPU": 2, "GPU": 0.5, "memory": 1.5 * 2**30}
    )
    assert asked["student"] == Need(key="student", count=2, resources={"CPU": 3, "GPU": 1, "memory": 2 * 2**30})
