"""License: the standard text, in the metadata and in the wheel, and a notice for each file that others made."""

import hashlib
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt."""


def test_the_license_is_the_standard_text_and_the_metadata_names_it():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and set(project["license-files"]) == {"LICENSE", "NOTICE"}


def test_the_notice_names_every_data_file_and_model_of_the_examples():
    notice = (ROOT / "NOTICE").read_text()
    tracked = subprocess.run(
        ["git", "ls-files", "examples/data", "examples/own_data/*.csv", "examples/bases"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    names = {"/".join(path.split("/")[:3]) for path in tracked}
    assert not tracked or len(names) > 8  # a checkout without git has no list
    assert [name for name in sorted(names) if name not in notice] == []
    assert "CC0" in notice and "database.lichess.org" in notice and "KubeRay" in notice


@pytest.mark.long
def test_the_wheel_carries_license_and_notice(tmp_path: Path):
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "curation").mkdir()  # what is in the wheel beside this is none of this test
    (tmp_path / "curation" / "__init__.py").touch()
    subprocess.run([*wheel, "-w", str(tmp_path / "dist"), str(tmp_path)], check=True, timeout=120)
    (path,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as file:
        held = {name.rpartition("/")[2]: name for name in file.namelist() if ".dist-info/" in name}
        metadata = message_from_string(file.read(held["METADATA"]).decode())
        assert metadata["License-Expression"] == "Apache-2.0"
        assert set(metadata.get_all("License-File", [])) == {"LICENSE", "NOTICE"}
        assert hashlib.sha256(file.read(held["LICENSE"])).hexdigest() == APACHE
