"""``curate clean``: what nothing names goes, what is young, named or under way stays."""

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from object_store import object_store

from curation.cli import main
from curation.refs import TableRef, fingerprint
from curation.rundir.manifest import Manifest, sign_text
from curation.storage import lease
from curation.storage.paths import Place, to_place
from curation.tables import commits, io, schemas

SCHEMA = pa.schema([schemas.ROW_ID])
STAGE = "gen-0/label-pool"


def write(uri: str, first: int) -> dict[str, object]:
    """Ten rows as a fragment; without its commit an orphan."""
    (row,) = commits.write_fragment(pa.table({"row_id": np.arange(first, first + 10)}), uri, SCHEMA).to_pylist()
    return row


def commit(uri: str, first: int) -> TableRef:
    committer = commits.Committer(uri)
    row = write(uri, first)
    committer.add(row["fragments"], row["row_ids"])
    committer.flush()
    return io.find_latest(uri)


def directory_of(run: Place, inputs: dict[str, object]) -> Place:
    return run / f"{STAGE}-{fingerprint(inputs)[:8]}"


def label(run: Place, inputs: dict[str, object], *, done: bool = True) -> TableRef:
    """A stage with a table of three commits, the version of the second on record."""
    uri = str(directory_of(run, inputs) / "labels.lance")
    io.create(uri, SCHEMA)
    commit(uri, 0)
    ref = commit(uri, 10)
    commit(uri, 20)
    if done:
        Manifest.load(run).record(STAGE, inputs, {"labels": ref.to_json()}, rows=20, seconds=0.0)
    return ref


def age(directory: Path, hours: float) -> None:
    """Let files look older, for versions hold the time of their commit themselves."""
    for path in directory.rglob("*"):
        status = path.stat()
        os.utime(path, (status.st_atime, status.st_mtime - 3600 * hours))


def curate(*arguments: object) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, ["clean", *map(str, arguments)])
    return result.exit_code, result.output.splitlines()


def content(run: Path) -> dict[str, bytes]:
    found = (path for path in run.rglob("*") if path.is_file() and path.parent.name != "lease")
    return {str(path): path.read_bytes() for path in found}


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.mark.long
def test_a_dry_run_removes_nothing(run):
    label(run, {"seed": 0})
    time.sleep(1.1)  # the record of a stage tells the second at which it began
    label(run, {"seed": 1})
    before = content(run)
    code, dry = curate(run, "--older-than", 0, "--dry-run")
    assert (code, content(run)) == (0, before) and not (run / "lease").exists()
    assert dry[0].startswith(f"{directory_of(run, {'seed': 0})}: ") and dry[1].startswith("to be removed: ")
    code, told = curate(run, "--older-than", 0)
    assert code == 0 and told == [dry[0], dry[1].replace("to be removed", "removed")]
    assert curate(run, "--older-than", 0) == (0, ["removed: 0 files, 0 bytes"])


@pytest.mark.long
def test_results_of_other_settings_go_but_not_those_under_way_or_named(run):
    label(run, {"seed": 0})
    second = label(run, {"seed": 1})
    graded = {"grades": second.to_json()}  # a later stage that was not done again
    time.sleep(1.1)  # the record of a stage tells the second at which it began
    third = label(run, {"seed": 2})
    Manifest.load(run).record("gen-0/grade-pool", graded, {}, rows=20, seconds=0.0)
    time.sleep(1.1)
    under_way = label(run, {"seed": 3}, done=False)
    first = directory_of(run, {"seed": 0})
    size = sum(path.stat().st_size for path in first.rglob("*") if path.is_file())
    assert curate(run, "--older-than", 1)[1] == ["removed: 0 files, 0 bytes"]
    code, told = curate(run, "--older-than", 0)
    assert code == 0 and told[0].startswith(f"{first}: ") and f"{size / 1024:,.1f} KiB" in told[0]
    assert not first.exists()
    assert [io.count(ref) for ref in (second, third)] == [20, 20]
    assert io.count(io.find_latest(under_way.uri)) == 30


@pytest.mark.parametrize("made", [None, "folder", "damaged"])
def test_a_directory_that_is_no_run_is_refused(tmp_path, made):
    directory = tmp_path / "run"
    if made is not None:
        directory.mkdir()
    if made == "damaged":
        (directory / "manifest.json").write_text("{")
    code, told = curate(directory)
    assert code == 2 and len(told) == 1
    assert ("is not a manifest" if made == "damaged" else "is not a run directory (no manifest.json)") in told[0]


def test_a_run_at_work_is_left_alone(run):
    label(run, {"seed": 0})
    with lease.hold(run):
        code, told = curate(run, "--older-than", 0)
    assert code == 2 and "another run is using it" in told[0]


def test_a_run_of_an_earlier_format_is_left_alone(run):
    """Its records name tables by where it was made: after a move nothing would tell what of them is on record."""
    label(run, {"seed": 0})
    text = (run / "manifest.json").read_text().replace('"format": 6', '"format": 3')
    (run / "manifest.json").write_text(sign_text(text))
    before = content(run)
    code, told = curate(run, "--older-than", 0)
    assert code == 2 and "is of format 3" in told[0]
    assert {name: data for name, data in content(run).items() if not name.startswith("lease")} == before


@pytest.mark.long
def test_a_run_in_an_object_store_is_cleaned_alike():
    with object_store() as server:
        run = to_place(server.url("clean"))
        first, second = (label(run, {"seed": seed}) for seed in (0, 1))
        time.sleep(1.1)
        Manifest.load(run).record(STAGE, {"seed": 1}, {"labels": second.to_json()}, rows=20, seconds=0.0)
        assert curate(run, "--older-than", 1)[1] == ["removed: 0 files, 0 bytes"]
        code, told = curate(run, "--older-than", 0)
        assert code == 0 and told[0].startswith(f"{to_place(first.uri).parent}: ")
        assert io.count(second) == 20
        assert not to_place(first.uri).parent.exists()
        code, told = curate(f"{run}-other")
        assert code == 2 and "is not a run directory" in told[0]


def test_of_a_stage_whose_outputs_name_no_file_the_newest_directory_stays(run):
    for inputs in ({"seed": 0}, {"seed": 1}):
        folder = f"prepare-{fingerprint(inputs)[:8]}"
        (run / folder / "pool.lance" / "_versions").mkdir(parents=True)  # and a table of which there is no version
        (run / folder / "notes").write_text("of a stage")
        Manifest.load(run).record("prepare", inputs, {"n": 3}, rows=0, seconds=0.0)
    age(run, 2)
    left = str(run / folder / "notes")
    assert left in content(run) and curate(run, "--older-than", 1)[0] == 0
    assert content(run).keys() == {left, str(run / "manifest.json")}
