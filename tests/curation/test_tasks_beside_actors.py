"""Tasks that run while idle actors hold all CPUs: off the head, one a CPU, and never in a wait for each other."""

import json
import subprocess
import sys

import pytest

from curation.tasks import keep_off_head

pytestmark = pytest.mark.long


def node(name: str, cpus: float, *, head: bool = False, alive: bool = True):
    return {
        "NodeID": name,
        "Alive": alive,
        "Resources": {"CPU": cpus} | ({"node:__internal_head__": 1} if head else {}),
    }


def test_the_head_computes_only_where_nobody_else_can():
    alone = [node("h", 4, head=True)]
    assert keep_off_head(alone) == (4, {})
    assert keep_off_head([*alone, node("w", 8, alive=False), node("gpu", 0)]) == (4, {})
    num_cpus, where = keep_off_head([*alone, node("w", 8), node("v", 2)])
    assert num_cpus == 10 and where["label_selector"] == {"ray.io/node-id": "!in(h)"}


CLUSTER = """
import json, time
import ray
from ray.cluster_utils import Cluster
from curation import tasks
from curation.tasks import run_in_tasks

cluster = Cluster()
head = cluster.add_node(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
worker = cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
ray.init(cluster.address)

@ray.remote(num_cpus=1)
class Holder:
    def hold(self):
        return True

def spent(number):
    begun = time.time()
    time.sleep(0.3)
    return ray.get_runtime_context().get_node_id(), begun, time.time()

holders = [Holder.remote() for _ in range(3)]
ray.get([holder.hold.remote() for holder in holders])
asks = ray.remote(spent).options(num_cpus=0.01).remote(0)
done = list(run_in_tasks(spent, ((number,) for number in range(8)), beside_actors=True))
waits = not ray.wait([asks], timeout=0)[0]
found = tasks.keep_off_head(ray.nodes())
cluster.remove_node(worker)
tasks.keep_off_head = lambda living: found  # as if the worker went at this moment
after = list(run_in_tasks(spent, [(0,)], beside_actors=True))
print(json.dumps({"head": head.node_id, "worker": worker.node_id, "done": done, "after": after, "waits": waits}))
ray.shutdown()
cluster.shutdown()
"""


def test_tasks_beside_actors_that_hold_all_cpus_end_off_the_head():
    done = subprocess.run([sys.executable, "-c", CLUSTER], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, _, _ in found["done"]} == {found["worker"]} and len(found["done"]) == 8
    spans = [(begun, end) for _, begun, end in found["done"]]
    assert max(sum(begun <= start < end for begun, end in spans) for start, _ in spans) <= 2
    assert [name for name, _, _ in found["after"]] == [found["head"]]
    assert found["waits"], "a task that asked for a part of a CPU ended first: tasks need not ask for none"
