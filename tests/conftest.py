import os
import runpy
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # most of many short clusters never use them
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}  # no profile of who tests
os.environ.pop("AWS_PROFILE", None)
# Hundreds of processes import the package: only the first of them is to compile it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).parents[1]
STARTUP = Path(__file__).parent / "startup"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))
runpy.run_path(str(STARTUP / "sitecustomize.py"))  # here too: this process has started without it
PUZZLES = ROOT / "examples" / "data" / "puzzles.parquet"


def pytest_addoption(parser):
    parser.addoption("--shard", metavar="K/N", help="of the files marked whole_run or long every N-th, from K on")


def pytest_itemcollected(item):
    """What waits for Ray is of the second tier."""
    if "local_ray" in item.fixturenames:
        item.add_marker("long")


@pytest.hookimpl(trylast=True)  # when `-m` has chosen
def pytest_collection_modifyitems(config, items):
    """Whole runs first, then training: these files take longest, and two processes then end together."""
    here = Path(__file__).parent
    items.sort(key=lambda item: (item.path.parent != here, here / "curation" in item.path.parents))
    if shard := config.getoption("--shard"):
        number, of = map(int, shard.split("/"))
        sharded = [item for item in items if any(map(item.get_closest_marker, ("whole_run", "long")))]
        mine = set(sorted({item.path for item in sharded})[number % of :: of])
        others = {item for item in sharded if item.path not in mine}
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def puzzles():
    """The first thousand shipped puzzles, as raw rows."""
    return pq.read_table(PUZZLES).slice(0, 1000).to_pylist()


@pytest.fixture(scope="session")
def puzzle_file():
    """The shipped puzzles."""
    return PUZZLES


@pytest.fixture(scope="session")
def local_ray():
    """One local Ray for all tests of a process; their runs share warm processes too."""
    import ray

    from curation import session
    from curation.cluster.session import local_or_cluster
    from curation.config import RayConfig

    with local_or_cluster(RayConfig(num_cpus=2)), session():
        yield ray


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random Qwen3-shaped model with the chess vocabulary."""
    from benchmarks.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", params=("qwen3", "olmo2", "gemma3_text", "llama"))
def family(request):
    """Each of ``tests.families`` in turn."""
    from tests.families import FAMILIES

    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def family_model(family, tmp_path_factory):
    """A small random model of the family with a tokenizer of its kind."""
    from tests.families import make_model

    return make_model(family, tmp_path_factory.mktemp("families") / family.name)
