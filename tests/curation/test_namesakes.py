"""A user's ``train.py`` or ``datasets.py`` in the working directory: it hides no package, or is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
STRAY = "raise SystemExit('the module of the user was imported')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with modules whose names are taken, and one whose name is not."""
    for name in ("train", "tune", "datasets"):
        (tmp_path / f"{name}.py").write_text(STRAY)
    (tmp_path / "own.py").write_text("VALUE = 3\n")
    return tmp_path


def python(folder: Path, *arguments: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    given = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=given, capture_output=True, text=True, timeout=180, check=False
    )


def test_packages_of_this_project_come_first(folder: Path) -> None:
    found = "import train, tune.space; print(train.__file__, tune.space.__file__)"
    program = f"from curation.namesakes import claim; claim(); claim(); {found}"
    done = python(folder, "-c", program, path=f"{folder}{os.pathsep}{ROOT}")
    assert done.stdout.split() == [str(ROOT / "train" / "__init__.py"), str(ROOT / "tune" / "space.py")], done.stderr


def test_a_command_beside_a_train_py_works(folder: Path) -> None:
    problems = [f'{{"problem": "1 + {n} = ?", "answer": {n + 1}}}' for n in range(40)]
    (folder / "sums.jsonl").write_text("\n".join(problems))
    config = {
        "name": "x",
        "domain": "math",
        "sources": {"sums": {"path": "sums.jsonl"}},
        "splits": {"source": {"from": "sums", "rows": 10}, "pool": {"from": "sums"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}},
        "ray": {"num_cpus": 1},
    }
    (folder / "x.json.yaml").write_text(json.dumps(config))
    (folder / "datasets.py").unlink()  # on PYTHONPATH it does hide the library: so its user asked
    done = python(folder, "-m", "curation.cli", "plan", "--no-probe", "x.json.yaml", path=f".{os.pathsep}{ROOT}")
    assert done.returncode == 0 and "imported" not in done.stderr, done.stderr


def test_a_program_that_imported_its_own_train_is_told_in_a_line(folder: Path) -> None:
    (folder / "train.py").write_text("VALUE = 3\n")
    program = (
        "import train, curation\ntry: curation.run('x.yaml')\nexcept Exception as error: print(type(error), error)"
    )
    for call in ("curation.run('x.yaml')", "curation.session()"):
        done = python(folder, "-c", program.replace("curation.run('x.yaml')", call))
        words = f"train: this program has imported {folder / 'train.py'} by that name"
        assert "ConfigError" in done.stdout and words in done.stdout and "my_train.py" in done.stdout, done.stderr


def test_workers_of_ray_take_our_packages_and_no_library_is_hidden(folder: Path) -> None:
    """Ray puts the working directory first: there ``train`` and ``datasets`` would be the user's."""
    program = """
import sys; sys.path.remove("")
import ray
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig
@ray.remote
def found():
    import importlib.util as util
    return [util.find_spec(name).origin for name in ("train", "tune", "own")]
with local_or_cluster(RayConfig(num_cpus=1)):
    print(*ray.get(found.remote()))
"""
    refused = python(folder, "-c", program)
    assert f"{folder / 'datasets'}: a module in the working directory takes the place of" in refused.stderr
    (folder / "datasets.py").unlink()
    done = python(folder, "-c", program)
    assert done.returncode == 0, done.stderr
    train, tune, own = done.stdout.split()[-3:]
    assert (train, tune) == (str(ROOT / "train" / "__init__.py"), str(ROOT / "tune" / "__init__.py"))
    assert own == str(folder / "own.py")


def test_workers_start_as_ever_where_nothing_is_hidden(folder: Path) -> None:
    program = "from curation import namesakes; namesakes.claim(); print(namesakes.check_folder())"
    (folder / "datasets.py").unlink()
    assert python(folder, "-c", program).stdout.strip() == "curation.namesakes.claim"
    for name in ("train", "tune"):
        (folder / f"{name}.py").unlink()
    (folder / "train").mkdir()  # a folder of rows is no module
    done = python(folder, "-c", program)
    assert done.stdout.strip() == "None", done.stderr
    assert python(ROOT, "-c", program).stdout.strip() == "None"  # a checkout's own packages
