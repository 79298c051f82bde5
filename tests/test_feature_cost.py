"""The files that name a feature, counted by docs/feature_cost.py in a repository with known ones."""

import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COST = runpy.run_path(str(ROOT / "docs" / "feature_cost.py"))


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One file names the endpoint at ``v1``, three files of two packages at ``v2``."""
    git(tmp_path, "init")
    files = [
        "curation/stages/label.py",
        "curation/teachers/endpoint/ask.py",
        "docs/endpoint.py",
        "curation/stages/a.md",
    ]
    for revision, named in (("v1", files), ("v2", ["curation/stages/grade.py", "train/sft/loop.py"])):
        for name in named:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("class EndpointConfig: ...\n")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", revision)
        git(tmp_path, "tag", revision)
    return tmp_path


def test_files_outside_the_features_folder_count_at_each_revision(repository: Path):
    rows = COST["draw"](repository, ["v1", "v2"]).splitlines()
    assert rows[0] == "| feature | v1 | v2 |"
    assert "| endpoint | 1 files of 1 packages | 3 files of 2 packages |" in rows
    assert "| judge | 0 files of 0 packages | 0 files of 0 packages |" in rows


def test_an_unknown_revision_is_refused(repository: Path):
    with pytest.raises(ValueError, match=r"--at v3: .*; give a commit or tag of this repository"):
        COST["draw"](repository, ["v3"])


def test_every_feature_is_found_in_the_code():
    """A pattern that a rename has made empty is a defect of the table."""
    unseen = [name for name, pattern in COST["FEATURES"].items() if not COST["find_files"](ROOT, pattern, "HEAD")]
    assert unseen == []
