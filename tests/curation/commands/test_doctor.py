"""``curate doctor``: what each check says of a machine, a Ray and a storage that are fit, small or broken."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner, Result

from curation.cli import main
from curation.cluster.nodes import NodeAnswer
from curation.commands import doctor
from curation.errors import ConfigError
from curation.storage.conditional import NumberedFiles
from curation.teachers import vllm_names

GIB = 2**30
READ_ONLY = Path("/sys/kernel")
"""No folder can be made there, not even by root."""
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
from curation.commands.doctor import examine

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
for name, found in examine(sys.argv[1], address=cluster.address):
    print(f"{found.state:<5} {name:<16} {found.finding}")
cluster.shutdown()
"""


def curate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)], catch_exceptions=False)


def findings(output: str) -> dict[str, tuple[str, str]]:
    """State and text by the check's name."""
    return {
        line[6:22].strip(): (line[:5].strip(), line[23:])
        for line in output.splitlines()
        if line[5:6] == " " and line[22:23] == " "
    }


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    raw = {
        "name": "tiny",
        "sources": {"puzzles": {"path": "puzzles.parquet"}},
        "splits": {"source": {"from": "puzzles", "rows": 15}, "pool": {"from": "puzzles"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}, "arms": ["naive"]},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_machine_ray_and_storage_are_looked_at(local_ray, config: Path):
    result = curate(config)
    found = findings(result.stdout)
    assert list(found) == [
        "memory", "disk of Ray", "shared memory", "gpu", "vllm", "disk of the run", "files", "ray", "storage"
    ]  # fmt: skip
    failed = [check for check, (state, _) in found.items() if state == "fail"]
    assert result.exit_code == (1 if failed else 0) and not {"ray", "files", "storage"} & set(failed)
    assert found["ray"][1].startswith("starts on this machine, 1 node: 2 CPUs")
    assert str(config.parent / "runs" / "tiny") in found["files"][1] and "1 node wrote to it" in found["storage"][1]
    assert result.stdout.splitlines()[-1].endswith(f"{len(failed)} fail")
    assert [path.name for path in config.parent.iterdir()] == ["tiny.yaml"]


def test_a_configuration_that_does_not_load_is_refused(config: Path):
    result = curate(config, "--set", "selection.budgt=3")
    assert result.exit_code == 2 and "unknown key" in result.stderr and not result.stdout
    result = curate("--set", "seed=1")
    assert result.exit_code == 2 and "--set: needs a CONFIG" in result.stderr


@pytest.mark.long
def test_an_address_where_no_ray_answers_fails(config: Path):
    command = [str(Path(sys.executable).with_name("curate")), "doctor", str(config), "--address", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    found = findings(done.stdout)
    assert done.returncode == 1 and found["ray"][0] == "fail" and "no Ray answers at" in found["ray"][1]
    assert "storage" not in found


@pytest.mark.whole_run
def test_the_nodes_of_a_cluster_are_looked_at_one_by_one(config: Path):
    command = [sys.executable, "-c", CLUSTER, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = findings(done.stdout)
    assert "answers, 2 nodes: 1 CPUs, 0 GPUs; 1 CPUs, 0 GPUs" in found["ray"][1]
    assert found["storage"][0] == "ok" and "2 nodes wrote to it, as seen here" in found["storage"][1]
    assert list(config.parent.glob("**/.doctor-*")) == []


def raises(error: Exception) -> Callable[[], doctor.Finding]:
    def look() -> doctor.Finding:
        raise error

    return look


def test_a_check_that_crashes_is_a_finding():
    found = doctor.run_check(raises(ZeroDivisionError("by zero")))
    assert found.state == "fail" and "the check itself failed: ZeroDivisionError: by zero" in found.finding
    found = doctor.run_check(raises(ConfigError("seed: 'many' is no number; give one")))
    assert found == ("fail", "seed: 'many' is no number; give one", "")


def test_this_machine_says_what_it_is():
    assert f"{len(os.sched_getaffinity(0))} cores" in doctor.check_memory().finding
    assert doctor.check_gpu().state in ("ok", "warn")


@pytest.mark.parametrize(("free", "state"), [(0, "warn"), (5, "warn"), (10, "ok")])
def test_space_for_a_run(monkeypatch: pytest.MonkeyPatch, free: int, state: str):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free * GIB, total=100 * GIB))
    verdict = doctor.check_disk(Path("/data"))
    assert verdict.state == state and bool(verdict.fix) == (state != "ok")


@pytest.mark.parametrize(
    ("free", "total", "state"), [(5, 100, "warn"), (5, 10, "warn"), (50, 100, "ok"), (60, 1000, "warn")]
)
def test_rays_disk_is_small_where_ray_itself_soon_stops_writing(
    monkeypatch: pytest.MonkeyPatch, free: int, total: int, state: str
):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free * GIB, total=total * GIB))
    assert doctor.check_ray_disk().state == state


def test_shared_memory_is_measured_by_rays_own_share():
    assert doctor.rate_shared_memory(int(0.31 * 100 * GIB), 100 * GIB).state == "ok"
    small = doctor.rate_shared_memory(64 * 2**20, 100 * GIB)  # what Docker gives
    assert small.state == "warn" and "--shm-size=31g" in small.fix
    assert doctor.rate_shared_memory(200 * 10**9, 2000 * GIB).state == "ok"  # Ray takes no more


def test_the_disk_of_a_directory_that_is_not_there_yet_is_that_above_it(tmp_path: Path):
    assert doctor.find_existing(tmp_path / "a" / "b") == tmp_path
    assert doctor.find_existing(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("version", "state", "told"),
    [
        (None, "ok", "not installed; transformers label"),
        ("0.32.0+cpu", "ok", "0.32.0+cpu is installed"),
        ("0.31.0", "warn", "tested with 0.32.0"),
    ],
)
def test_the_version_of_vllm_is_judged(monkeypatch: pytest.MonkeyPatch, version: str | None, state: str, told: str):
    def find_version(package: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(importlib.metadata, "version", find_version)
    monkeypatch.setattr(vllm_names, "TESTED", ("0.32.0",))
    verdict = doctor.check_vllm()
    assert verdict.state == state and told in verdict.finding
    assert bool(verdict.fix) == (state != "ok")


def test_a_directory_that_can_be_used_is_left_as_it_was(tmp_path: Path):
    directory = tmp_path / "runs" / "x"
    assert doctor.check_writing(directory).state == "ok"
    assert list(tmp_path.iterdir()) == []
    directory.mkdir(parents=True)
    assert doctor.check_writing(directory).state == "ok"
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(not READ_ONLY.is_dir(), reason="no /sys here")
def test_a_directory_that_cannot_be_written_fails():
    verdict = doctor.check_writing(READ_ONLY / "run")
    assert verdict.state == "fail" and str(READ_ONLY / "run") in verdict.finding and "run_dir" in verdict.fix


def test_a_lease_that_two_drivers_get_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(NumberedFiles, "put_if_match", lambda self, text, token: "2")  # the token is not compared
    verdict = doctor.check_writing(tmp_path)
    assert verdict.state == "fail" and "two drivers can get the lease" in verdict.finding


def answered(number: int, has_lease: bool, problem: str | None = None) -> NodeAnswer:
    return NodeAnswer(node=f"10.0.0.{number} (node n{number})", value=has_lease, problem=problem)


def test_the_file_of_every_node_is_seen_and_one_node_gets_the_lease(tmp_path: Path):
    both = {"node-0", "node-1"}
    assert doctor.rate_storage(tmp_path, [answered(0, True), answered(1, False)], both).state == "ok"
    for leases in (0, 2):
        verdict = doctor.rate_storage(tmp_path, [answered(number, number < leases) for number in (0, 1)], both)
        assert verdict.state == "fail" and f"{leases} of 2 nodes got the same lease" in verdict.finding
        assert "If-Match" in verdict.fix
    verdict = doctor.rate_storage(tmp_path, [answered(0, True), answered(1, True)], {"node-0"})
    assert verdict.state == "fail" and "what 10.0.0.1 (node n1) wrote is not seen here" in verdict.finding
    silent = answered(9, False, "no answer within 180 seconds")
    verdict = doctor.rate_storage(tmp_path, [silent, answered(0, True)], both)
    assert verdict.state == "fail" and "10.0.0.9 (node n9): no answer within 180 seconds" in verdict.finding
    assert "all nodes mount" in verdict.fix


def test_a_node_with_a_disk_of_its_own_writes_nothing_to_it(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="which the driver wrote, is not there"):
        doctor.write_file(str(tmp_path / "none"), 0)
    assert not (tmp_path / "none").exists()
    (tmp_path / "driver").write_text("")
    assert doctor.write_file(str(tmp_path), 0) and not doctor.write_file(str(tmp_path), 1)
