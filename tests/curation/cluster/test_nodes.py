import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation.cluster import nodes, versions
from curation.cluster.nodes import NodeAnswer, describe_differences, describe_differing_nodes
from curation.cluster.versions import find_versions
from curation.errors import ClusterError

pytestmark = pytest.mark.whole_run

HERE = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cpu", "trust-curation code": "0a1b2c3d"}

CLUSTER = """
import ray
from ray.cluster_utils import Cluster
from curation.cluster import nodes
from curation.config import RayConfig
from curation.cluster.session import local_or_cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
with local_or_cluster(RayConfig(address=cluster.address)):  # all agree: it is let in
    answers = nodes.ask(nodes.make_versions_question())
    print(len(answers), len({answer.node for answer in answers}))
    print(all(answer.problem is None and answer.value == nodes.make_versions_question()() for answer in answers))
    print(all(answer.value["python"] for answer in answers))
cluster.shutdown()
"""

OTHER_VERSION = """
import importlib.metadata, sys
from ray.cluster_utils import Cluster
from curation.cluster import nodes
from curation.config import RayConfig
from curation.errors import ClusterError
from curation.cluster.session import local_or_cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
# The driver, not the node, is the one that runs in a directory with another version of chess: to it the node differs.
sys.path.insert(0, sys.argv[1])
try:
    with local_or_cluster(RayConfig(address=cluster.address)):
        print("let in")
except ClusterError as error:
    print(error)
import ray
print(ray.is_initialized())
cluster.shutdown()
"""

OTHER_RAY = """
import ray
from ray.cluster_utils import Cluster
from curation.config import RayConfig
from curation.errors import ClusterError
from curation.cluster.session import local_or_cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
ray.__version__ = "2.59.0"  # what this process tells Ray that it has
try:
    with local_or_cluster(RayConfig(address=cluster.address)):
        print("let in")
except ClusterError as error:
    print(error)
cluster.shutdown()
"""


def test_equal_versions_do_not_differ():
    assert describe_differences(HERE, dict(HERE)) == []
    assert describe_differences({}, {}) == []


@pytest.mark.parametrize(
    ("package", "version", "told"),
    [
        ("ray", "2.59.0", ["ray 2.59.0 (here 2.60.0)"]),
        ("torch", "2.13.0+cu130", []),  # a head without a GPU, a worker with one
        ("torch", "2.13.1+cpu", ["torch 2.13.1+cpu (here 2.13.0+cpu)"]),
        ("python", "3.11.9", []),
        ("python", "3.12.7", ["python 3.12.7 (here 3.11.7)"]),
        ("trust-curation code", "not installed", ["trust-curation code not installed (here 0a1b2c3d)"]),
        ("new", "1.0", ["new 1.0 (here not installed)"]),
        ("new", "not installed", []),
    ],
)
def test_a_difference_names_both_versions(package: str, version: str, told: list[str]):
    assert describe_differences(HERE, HERE | {package: version}) == told


def test_a_missing_package_differs_in_either_direction():
    less = {name: version for name, version in HERE.items() if name != "ray"}
    assert describe_differences(HERE, less) == ["ray not installed (here 2.60.0)"]
    assert describe_differences(less, HERE) == ["ray 2.60.0 (here not installed)"]


def test_the_nodes_that_differ_are_named_and_silent_ones_are_not():
    answers = [
        NodeAnswer(node="10.0.0.1 (node aa)", value=HERE, problem=None),
        NodeAnswer(node="10.0.0.2 (node bb)", value=HERE | {"ray": "2.59.0", "torch": "2.12.0"}, problem=None),
        NodeAnswer(node="10.0.0.3 (node cc)", value=None, problem="no answer within 60 seconds"),
    ]
    assert list(describe_differing_nodes(HERE, answers)) == [
        "10.0.0.2 (node bb) has ray 2.59.0 (here 2.60.0), torch 2.12.0 (here 2.13.0+cpu)"
    ]


def test_what_is_installed_here_is_what_the_manifest_says_and_the_code():
    found = nodes.make_versions_question()()
    code = found.pop(versions.CODE)
    assert found == find_versions() and len(code) == 8
    int(code, 16)


def test_the_digest_is_of_this_projects_code_and_nothing_else(tmp_path: Path):
    def digest() -> str:
        command = [
            sys.executable,
            "-c",
            "from curation.cluster import versions; print(versions.make_versions_question()()[versions.CODE])",
        ]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    root = Path(nodes.__file__).parents[2]
    for part in ("curation", "train"):
        for path in (root / part).rglob("*.py"):
            copy = tmp_path / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    here = nodes.make_versions_question()()[versions.CODE]
    assert digest() == here
    (tmp_path / "other.py").write_text("x = 1\n")
    assert digest() == here
    for changed in ("curation/tables/commits.py", "train/sft.py"):
        with (tmp_path / changed).open("a") as file:
            file.write("\n")
        assert digest() != here
        (tmp_path / changed).write_bytes((root / changed).read_bytes())


def lines_of(code: str, *arguments: object) -> Iterator[str]:
    """What a process of its own prints: one Ray a process."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return iter(done.stdout.splitlines())


def test_a_cluster_of_two_nodes_that_agree_is_let_in():
    assert list(lines_of(CLUSTER)) == ["2 2", "True", "True"]


def test_a_node_with_another_version_is_refused_by_name(tmp_path: Path):
    metadata = tmp_path / "chess-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: chess\nVersion: 9.9.9\n")
    told, initialised = lines_of(OTHER_VERSION, tmp_path)
    assert f"chess {find_versions()['chess']} (here 9.9.9)" in told and "(node " in told and "constraints.txt" in told
    assert told.startswith("the nodes of the cluster must have the versions of this process: ")
    assert initialised == "False"


def test_a_cluster_of_another_ray_is_refused_with_both_versions():
    told = " ".join(lines_of(OTHER_RAY))
    assert "Ray: 2.59.0" in told and f"Ray: {find_versions()['ray']}" in told


def test_nodes_that_do_not_answer_say_why(local_ray):
    def broken() -> None:
        raise OSError("no such disk")

    def slow() -> None:
        import time

        time.sleep(30)

    (answer,) = nodes.ask(broken)
    assert answer.value is None and answer.problem is not None and "no such disk" in answer.problem
    (answer,) = nodes.ask(slow, seconds=0.5)
    assert answer.problem == "no answer within 0.5 seconds"
    nodes.require_same_versions()


def test_a_refusal_is_the_users_to_mend():
    assert issubclass(ClusterError, ValueError)


@pytest.mark.parametrize("resources", [{"CPU": 0.5}, {"CPU": 1, "memory": 3 * 2**20}, {}])
def test_ray_holds_what_a_task_needs(local_ray, resources):
    def holds() -> dict[str, float]:
        return local_ray.get_runtime_context().get_assigned_resources()

    assert local_ray.get(local_ray.remote(holds).options(**nodes.make_ray_options(resources)).remote()) == resources


def test_the_nodes_are_told_at_the_start_and_again_now_and_then(local_ray, monkeypatch):
    monkeypatch.setattr(nodes, "AGAIN_SECONDS", 0.1)
    told = []
    with nodes.follow(lambda **event: told.append(tuple(event.values())), seconds=0.02):
        assert told == [(1, [nodes.name(nodes.list_living()[0])], [])]
        end = time.monotonic() + 30
        while len(told) < 3 and time.monotonic() < end:
            time.sleep(0.02)
    assert told[1:3] == [(1, [], []), (1, [], [])]
    number = len(told)
    time.sleep(0.3)
    assert len(told) == number
