"""Each undocumented interface of Ray, called against a real Ray: what a release changes fails here, with its number."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

import curation
import train
from curation.cluster import capacity, ray_private
from curation.commands.doctor import check_ray_disk

pytestmark = pytest.mark.long

PRIVATE = ("ray.autoscaler", "ray.core", "ray.experimental", "ray.train.v2")
"""Packages of Ray that its documentation does not name; besides, every name with a leading underscore."""


@contextmanager
def interface(name: str) -> Iterator[None]:
    """Fail with the release of Ray where an interface is not there, takes other arguments or answers otherwise."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, KeyError, ValueError, AssertionError) as error:
        pytest.fail(f"Ray {ray.__version__} has changed {name}, which curation/cluster/ray_private.py uses: {error!r}")


def soon(question: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not question():
        assert time.monotonic() < end, "Ray does not say so"
        time.sleep(0.1)


@ray.remote(num_cpus=0)
class Worker:
    def pid(self) -> int:
        return os.getpid()

    def end(self) -> None:
        os._exit(1)

    def refer(self) -> str:
        return ray.get_runtime_context().get_actor_id()


def test_the_head_is_found_and_answers(local_ray):
    with interface("ray._private.services.canonicalize_bootstrap_address"):
        assert ray_private.find_head_address("local") is None
        assert ray_private.find_head_address("10.0.0.1:6379") == "10.0.0.1:6379"
    capacity.check_answers(ray.get_runtime_context().gcs_address)


def test_a_node_that_no_autoscaler_started_has_no_type(local_ray):
    """``test_autoscaling`` has one that does."""
    assert capacity.NODE_TYPE not in ray.nodes()[0]["Labels"] and not capacity.can_autoscale()


def test_rays_temporary_directory(local_ray):
    found = check_ray_disk().finding.partition(":")[0]
    assert ray.get_runtime_context().get_session_name() in os.listdir(found)


LIMITED = """
import ray
from curation import memory
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig
memory.read_usable_memory = lambda: memory.Memory(3 * 2**30, 2 * 2**30)
with local_or_cluster(RayConfig(num_cpus=1)):
    found = ray.cluster_resources()
    print(int(found["memory"]), int(found["object_store_memory"]))
"""


@pytest.mark.slow
def test_a_node_has_the_memory_that_it_is_given():
    store = int(0.3 * 2 * 2**30)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=200, env=environment)
    with interface("ray.init(_memory=)"):
        assert list(map(int, done.stdout.split())) == [2 * 2**30 - store, store], done.stderr


def private_names(path: Path) -> list[str]:
    """Names of Ray that a module imports, or reads by their full path, and that are not documented."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    return [name for name in found if is_private(name)]


def is_private(name: str) -> bool:
    words = name.split(".")
    if words[0] != "ray":
        return False
    hidden = any(word.startswith("_") and not word.startswith("__") for word in words)
    return hidden or any(f"{name}.".startswith(f"{package}.") for package in PRIVATE)


def test_what_counts_as_private(tmp_path: Path):
    module = tmp_path / "module.py"
    module.write_text(
        "import ray\nimport ray.data\nfrom ray.util import metrics\nimport rayon._private\n"
        "from ray import _private\nimport ray.core.generated\n"
        "def f():\n    from ray.train.v2.api import exceptions\n    return ray._private.state, ray.__version__\n"
    )
    assert sorted(private_names(module)) == [
        "ray._private",
        "ray._private",
        "ray._private.state",
        "ray.core.generated",
        "ray.train.v2.api.exceptions",
    ]


def test_no_other_module_uses_a_private_name_of_ray():
    root = Path(curation.__file__).parents[1]
    modules = [path for package in (curation, train) for path in Path(package.__file__).parent.rglob("*.py")]
    users = {str(path.relative_to(root)) for path in modules if private_names(path)}
    assert len(modules) > 100
    assert users == {"curation/cluster/ray_private.py"}
