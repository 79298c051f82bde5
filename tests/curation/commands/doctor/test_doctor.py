import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from curation.cli import main

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
from curation.commands.doctor import examine

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
for finding in examine(sys.argv[1], sys.argv[2:], address=cluster.address):
    print(finding.line)
cluster.shutdown()
"""


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)], catch_exceptions=False)


def findings(output: str) -> dict[str, tuple[str, str]]:
    """State and text by the check's name."""
    return {line[6:22].strip(): (line[:5].strip(), line[23:]) for line in output.splitlines() if line[5:6] == " "}


@pytest.fixture
def config(tmp_path: Path, puzzles: list[dict], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.Table.from_pylist(puzzles[:40]), tmp_path / "puzzles.parquet")
    raw = {
        "name": "tiny",
        "sources": {"puzzles": {"path": "puzzles.parquet"}},
        "splits": {"source": {"from": "puzzles", "rows": 15}, "test": {"from": "puzzles", "rows": 5}}
        | {"pool": {"from": "puzzles"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}, "arms": ["naive", "trust"]},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_without_a_configuration_the_machine_is_looked_at(local_ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = doctor()
    found = findings(result.stdout)
    local = ["machine", "disk of Ray", "shared memory", "gpu", "files", "disk of the run", "vllm"]
    assert list(found) == [*local, "ray", "versions", "store"]
    failed = [check for check, (state, _) in found.items() if state == "fail"]
    assert result.exit_code == (1 if failed else 0) and not {"ray", "versions", "files", "store"} & set(failed)
    assert found["ray"][1].startswith("starts on this machine") and "2 CPUs" in found["ray"][1]
    assert result.stdout.splitlines()[-1].endswith(f"{len(failed)} fail")
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_is_checked_with_all_that_it_asks_for(local_ray, config: Path):
    found = findings(doctor(config).stdout)
    assert found["config"][0] == "ok" and str(config.parent / "runs" / "tiny") in found["config"][1]
    assert "split pool: 20 rows" in found["inputs"][1]
    assert found["room"][0] == "ok"
    assert not (config.parent / "runs").exists()
    result = doctor(config, "--set", "teacher.actors.num_gpus=64", "--set", "sources.puzzles.path=none.parquet")
    found = findings(result.stdout)
    assert result.exit_code == 1
    assert found["gpu"][0] == "fail" and "asks for 64" in found["gpu"][1]
    assert found["room"][0] == "fail" and "teacher.actors" in found["room"][1]
    assert found["inputs"][0] == "fail" and "no such file" in found["inputs"][1]


@pytest.mark.parametrize(
    ("override", "told"), [("selection.budgt=3", "unknown key"), ("seed=many", "'many'"), ("name=-", "name")]
)
def test_a_configuration_that_does_not_load_fails_and_the_machine_is_looked_at_all_the_same(
    local_ray, config: Path, override: str, told: str
):
    result = doctor(config, "--set", override)
    found = findings(result.stdout)
    assert result.exit_code == 1 and found["config"][0] == "fail" and told in found["config"][1]
    assert "inputs" not in found and found["ray"][0] == "ok"


def test_what_cannot_be_looked_at_is_said(local_ray, config: Path):
    result = doctor(config.parent / "none.yaml")
    assert result.exit_code == 1 and "none.yaml: cannot be read" in findings(result.stdout)["config"][1]
    result = doctor("--set", "seed=1")
    assert result.exit_code == 2 and "--set: needs a CONFIG" in result.stderr


@pytest.mark.long
def test_an_address_where_no_ray_answers_fails(config: Path):
    command = [str(Path(sys.executable).with_name("curate")), "doctor", str(config), "--address", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    found = findings(done.stdout)
    assert done.returncode == 1 and found["ray"][0] == "fail" and "no Ray answers at" in found["ray"][1]
    assert "versions" not in found


def test_a_row_goes_through_a_local_ray_too(local_ray, config: Path):
    found = findings(doctor(config).stdout)
    assert found["store"][0] == "ok" and "a row from each of 1 node, committed, read back once" in found["store"][1]
    assert not (config.parent / "runs").exists() and list(config.parent.glob("**/.doctor-*")) == []


@pytest.mark.whole_run
def test_the_nodes_of_a_cluster_are_looked_at_one_by_one(config: Path):
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(config), "teacher.actors.num_gpus=1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = findings(done.stdout)
    assert "2 nodes: 2 with 1 CPUs, 0 GPUs" in found["ray"][1]
    assert found["versions"] == ("ok", "the same on 2 nodes as here")
    assert found["room"][0] == "fail" and "1 GPU" in found["room"][1]
    assert found["gpu"][0] != "fail"  # those of this machine are not what a cluster's run takes
    assert found["vllm"][0] == "warn" and "no node has the resources of a teacher actor" in found["vllm"][1]
    assert found["store"][0] == "ok" and "a row from each of 2 nodes, one of which got the lease" in found["store"][1]
    assert list(config.parent.glob("**/.doctor-*")) == []
