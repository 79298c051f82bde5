"""Tasks that run while idle actors hold all CPUs: off the head, one a CPU, and never in a wait for each other."""

import os
import time

import pytest
import ray
from ray.cluster_utils import Cluster

from curation import tasks
from curation.tasks import _off_head, in_tasks


def node(name: str, cpus: float, *, head: bool = False, alive: bool = True):
    return {
        "NodeID": name,
        "Alive": alive,
        "Resources": {"CPU": cpus} | ({"node:__internal_head__": 1} if head else {}),
    }


def test_the_head_computes_only_where_nobody_else_can():
    alone = [node("h", 4, head=True)]
    assert _off_head(alone) == (4, {})
    assert _off_head([*alone, node("w", 8, alive=False), node("gpu", 0)]) == (4, {})
    num_cpus, where = _off_head([*alone, node("w", 8), node("v", 2)])
    assert num_cpus == 10 and where["label_selector"] == {"ray.io/node-id": "!in(h)"}


@ray.remote
class Holder:
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def cluster():
    assert not ray.is_initialized()
    nodes = Cluster()
    head = nodes.add_node(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
    worker = nodes.add_node(num_cpus=2, object_store_memory=80_000_000)
    ray.init(nodes.address)
    yield nodes, head.node_id, worker
    ray.shutdown()
    nodes.shutdown()


def test_tasks_beside_actors_that_hold_all_cpus_end_off_the_head(cluster, monkeypatch):
    nodes, head, worker = cluster

    def spent(_: int) -> tuple[str, float, float]:  # within the test: its module is not importable in a worker
        begun = time.time()
        time.sleep(0.3)
        return ray.get_runtime_context().get_node_id(), begun, time.time()

    holders = [Holder.options(num_cpus=1).remote() for _ in range(3)]
    ray.get([holder.pid.remote() for holder in holders])
    done = list(in_tasks(spent, ((number,) for number in range(8)), beside_actors=True))
    assert {name for name, _, _ in done} == {worker.node_id}
    at_once = max(sum(begun <= start < end for _, begun, end in done) for _, start, _ in done)
    assert at_once <= 2
    found = tasks._off_head(ray.nodes())
    nodes.remove_node(worker)
    monkeypatch.setattr(tasks, "_off_head", lambda _: found)  # as if the worker went at this moment
    assert {name for name, _, _ in in_tasks(spent, [(0,)], beside_actors=True)} == {head}
    del holders
