"""Modules beside a configuration file: what is found, what is not, and that workers need no folder for it."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click
import pytest
from click.testing import CliRunner

from curation import own_modules
from curation.cli import main
from curation.errors import PackageError
from curation.filter.package.description import refuse_code
from curation.registry import find_installed, load_code

pytestmark = pytest.mark.long

FILES = {
    "own_part.py": "import own_helper\nLATER = 'own_later:VALUE'\nVALUE = own_helper.VALUE + 1\n",
    "own_helper.py": "import json\nfrom own_folder import deep\nVALUE = deep.VALUE + 1\n",
    "own_later.py": "VALUE = 7\n",
    "own_folder/__init__.py": "",
    "own_folder/deep.py": "VALUE = 40\n",
    "own_stray.py": "raise SystemExit('nobody named it')\n",
    "json.py": "raise SystemExit('in the place of an installed module')\n",
    "train.py": "raise SystemExit('in the place of an installed module')\n",
}
OWN = tuple(sorted(name.removesuffix(".py").replace("/", ".") for name in FILES if name.startswith("own_")))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a configuration and modules; nothing of it is known afterwards."""
    known = set(sys.modules)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run.yaml").write_text("name: x\n")
    yield tmp_path
    own_modules.search_beside(str(tmp_path / "run.yaml"))
    own_modules._folder = None
    for name in {*sys.modules} - known:
        if name.startswith("own_"):
            del sys.modules[name]


def test_a_named_module_is_found_with_what_it_imports_and_nothing_else_is(folder: Path) -> None:
    with pytest.raises(ImportError):
        load_code("own_part:VALUE")
    own_modules.search_beside(str(folder / "run.yaml"))
    with pytest.raises(ImportError):  # not named yet
        importlib.import_module("own_part")
    assert load_code("own_part:VALUE") == 42
    assert importlib.import_module("own_part").__file__ == str(folder / "own_part.py")
    assert importlib.import_module("own_later").VALUE == 7
    with pytest.raises(ImportError):
        importlib.import_module("own_stray")
    for name in ("json", "train"):
        assert not str(load_code(f"{name}:__file__")).startswith(str(folder))
    fresh = subprocess.run(  # in a process that has imported neither
        [sys.executable, "-c", f"from curation import own_modules as o; o.search_beside({str(folder / 'run.yaml')!r}); "
         "o.import_own_module('json'); o.import_own_module('train'); o.import_own_module('own_helper')"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert fresh.returncode == 0, fresh.stderr


def test_what_is_beside_another_configuration_takes_the_place(folder: Path) -> None:
    own_modules.search_beside(str(folder / "run.yaml"))
    assert load_code("own_later:VALUE") == 7
    (folder / "other").mkdir()
    (folder / "other" / "own_later.py").write_text("VALUE = 8\n")
    own_modules.search_beside(str(folder / "other" / "run.yaml"))
    assert load_code("own_later:VALUE") == 8


def test_faults_of_a_module_are_told_in_a_line(folder: Path) -> None:
    own_modules.search_beside(str(folder / "run.yaml"))
    (folder / "own_broken.py").write_text("x = 1\nif x\n")
    with pytest.raises(ImportError, match=r"own_broken\.py: line 2: expected ':'"):
        load_code("own_broken:X")
    (folder / "own_broken.py").write_text("X = 1\nraise RuntimeError('in the middle')\n")
    for _ in range(2):  # the second attempt does not find what the first one left
        with pytest.raises(RuntimeError, match="in the middle"):
            load_code("own_broken:X")
    (folder / "own_broken.py").write_text("X = 2\n")
    assert load_code("own_broken:X") == 2


def test_modules_may_import_each_other(folder: Path) -> None:
    (folder / "own_first.py").write_text("A = 1\nimport own_second\nB = own_second.B\n")
    (folder / "own_second.py").write_text(
        "import own_first, own_folder.deep\nB = own_first.A + own_folder.deep.VALUE\n"
    )
    own_modules.search_beside(str(folder / "run.yaml"))
    before = list(sys.meta_path), list(sys.path)
    assert load_code("own_first:B") == 41
    assert (sys.meta_path, sys.path) == before


def test_a_module_that_is_named_but_not_imported_is_not_executed(folder: Path) -> None:
    (folder / "own_script.py").write_text("raise SystemExit('nobody imported it')\n")
    (folder / "own_part.py").write_text("def draw():\n    import own_script\n")
    own_modules.search_beside(str(folder / "run.yaml"))
    load_code("own_part:draw")
    assert str(folder / "own_script.py") in own_modules.list_sent_files()
    assert all(hasattr(module, "__name__") for module in list(sys.modules.values()))  # as inspect.getmodule looks


def test_an_import_that_fails_does_so_each_time_and_says_why(folder: Path) -> None:
    (folder / "own_helper.py").write_text("import own_nowhere\n")
    (folder / "own_later.py").write_text("import json\nVALUE = json.no_such\n")
    again = "try:\n    import own_helper\nexcept ImportError:\n    pass\nimport own_helper\nVALUE = 1\n"
    (folder / "own_part.py").write_text(again)
    (folder / "own_first.py").write_text("from own_later import VALUE\n")
    own_modules.search_beside(str(folder / "run.yaml"))
    with pytest.raises(ModuleNotFoundError, match="own_nowhere"):
        load_code("own_part:VALUE")
    with pytest.raises(AttributeError, match="no_such"):
        load_code("own_first:VALUE")


def test_a_module_that_a_script_has_imported_stays_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    own_modules.search_beside(str(folder / "run.yaml"))
    before = importlib.import_module("own_later")
    load_code("own_later:VALUE")
    assert sys.modules["own_later"] is before


def test_metadata_beside_it_is_no_installed_package_and_a_package_gains_nothing(folder: Path) -> None:
    metadata = folder / "own_evil-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own_evil\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[curation.domains]\nevil = own_stray:Domain\n")
    own_modules.search_beside(str(folder / "run.yaml"))
    find_installed.cache_clear()
    for name in ("evil", "own_stray:Domain"):
        with pytest.raises(PackageError, match="nothing of it was imported"):
            refuse_code("package", {"domain": {"name": name}}, ())
    assert "own_stray" not in sys.modules


def test_what_was_named_is_sent_to_workers_and_nothing_else(folder: Path) -> None:
    own_modules.search_beside(str(folder / "run.yaml"))
    assert own_modules.list_sent_files() == []  # nothing was named: workers start as ever
    assert load_code("own_part:VALUE") == 42
    sent = {"own_part.py", "own_helper.py", "own_later.py", "own_folder"}
    assert sorted(own_modules.list_sent_files()) == sorted(str(folder / name) for name in sent)


PROGRAM = dedent(
    """
    import json, shutil, sys
    from pathlib import Path
    import ray
    from curation import own_modules
    from curation.cluster.session import local_or_cluster
    from curation.config import RayConfig
    from curation.registry import load_code

    folder = Path(sys.argv[1])
    own_modules.search_beside(str(folder / "run.yaml"))
    load_code("own_part:VALUE")

    @ray.remote(num_cpus=0)
    class Actor:
        def value(self):
            return load_code("own_part:VALUE"), load_code("own_later:VALUE")

    with local_or_cluster(RayConfig(num_cpus=1)):
        shutil.rmtree(folder)
        found = [Actor.remote(), Actor.options(runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}).remote()]
        print(json.dumps(ray.get([actor.value.remote() for actor in found])))
    """
)


def test_workers_of_a_node_without_the_folder_find_the_modules(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[42, 7], [42, 7]]


DOMAIN = """
import pyarrow as pa
from curation.domains import Domain

class Words(Domain):
    name = "words"
    columns = pa.schema([("text", pa.string())])
    def prompt(self, example, *, shots=()): return example["text"]
    def options(self, example): return (" a", " b")
"""


def test_a_command_finds_the_domain_beside_its_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own_words.py").write_text(DOMAIN)
    for name, header in (("labelled", "text,label"), ("pool", "text")):
        rows = [f"{name} {n}" + (f",{'ab'[n % 2]}" if name == "labelled" else "") for n in range(20)]
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]))
    (folder / "run.yaml").write_text(
        dedent(
            """
            name: words
            domain: own_words:Words
            sources: {labelled: {path: labelled.csv}, pool: {path: pool.csv}}
            splits: {source: {from: labelled}, pool: {from: pool}}
            teacher: {backend: scripted}
            selection: {budget: {n: 1}, arms: [naive]}
            """
        )
    )
    monkeypatch.chdir(os.sep)
    found = CliRunner().invoke(main, ["validate", str(folder / "run.yaml")])
    assert found.exit_code == 0 and "is valid" in found.output, found.output
    lost = CliRunner().invoke(main, ["validate", str(folder / "run.yaml"), "--set", "domain=own_word:Words"])
    assert lost.exit_code == 2 and f"put own_word.py beside the configuration, in {folder}" in lost.output
    wrong = CliRunner().invoke(main, ["validate", str(folder / "run.yaml"), "--set", "domain=own_words:Word"])
    assert wrong.exit_code == 2 and "has no attribute 'Word'" in wrong.output and "beside" not in wrong.output


@pytest.mark.parametrize("name", ["validate", "run", "plan", "tune", "ablate", "analyze", "status", "report", "filter"])
def test_every_command_that_takes_a_configuration_looks_beside_it(folder: Path, name: str) -> None:
    from curation.commands.options import with_own_modules

    command = main.get_command(click.Context(main), name)
    assert command is not None
    (argument,) = [item for item in command.params if isinstance(item, click.Argument)]
    value: object = (str(folder / "run.yaml"),) if argument.nargs == -1 else str(folder / "run.yaml")
    assert argument.process_value(click.Context(command), value) == value
    assert argument.callback is with_own_modules and own_modules._folder == str(folder)


def test_a_run_directory_brings_no_modules(folder: Path) -> None:
    from curation.commands.options import with_own_modules

    with_own_modules(click.Context(main), click.Option(["--x"]), str(folder))
    assert own_modules._folder is None
