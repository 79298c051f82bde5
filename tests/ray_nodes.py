"""A cluster of several nodes on this machine, whose nodes can be killed while a run works on it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sums_run import SumsRun

HOLD = """
import sys
from ray.cluster_utils import Cluster

cluster, nodes = Cluster(), []
cluster.add_node(num_cpus=0, object_store_memory=80_000_000, include_dashboard=False)
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "add\\n":
        nodes.append(cluster.add_node(num_cpus=int(sys.argv[1]), object_store_memory=80_000_000))
    else:
        cluster.remove_node(nodes.pop(int(line)), allow_graceful=False)
    print(len(nodes), flush=True)
cluster.shutdown()
"""


class Nodes:
    """A cluster of a head without CPUs and nodes of so many CPUs each, held by a process of its own."""

    def __init__(self, num_cpus: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(num_cpus)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.address = self._line()
        self.number = 0

    def add(self) -> None:
        self._say("add")

    def kill(self, place: int) -> None:
        """Kill all processes of a node, counted from the oldest; the head is none of them."""
        self._say(str(place))

    def _say(self, text: str) -> None:
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        self.number = int(self._line())

    def _line(self) -> str:
        line = self._process.stdout.readline().strip()
        assert line, "the cluster is gone"
        return line

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def cluster_of(number: int, monkeypatch: pytest.MonkeyPatch, *, num_cpus: int = 1) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    nodes = Nodes(num_cpus)
    try:
        for _ in range(number):
            nodes.add()
        yield nodes
    finally:
        nodes.end()


def wait_until(reached: Callable[[], bool], driver: subprocess.Popen[bytes], run: SumsRun) -> None:
    end = time.monotonic() + 200
    while not reached():
        assert driver.poll() is None and time.monotonic() < end, run.errors()
        time.sleep(0.05)
