"""``curate copy``: a copy is a run of its own, whatever becomes of the original, and whenever the copying ends."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pytest
from click.testing import CliRunner

from benchmarks.fuzz.sealed_run import NUM_ROWS, break_off, outputs, run, started
from curation.cli import main
from curation.commands import copy as copying
from curation.commands.verify.kinds import verify
from curation.errors import RunDirError
from curation.rundir.manifest import Manifest
from curation.storage import lease


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "original"
    run(directory)
    return directory


def copy(*arguments: Path) -> str:
    result = CliRunner().invoke(main, ["copy", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: Path) -> str:
    result = CliRunner().invoke(main, ["copy", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.output


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def damage(directory: Path) -> list[object]:
    return list(verify(str(directory), lambda _: None).damage)


def test_a_copy_is_whole_and_finished_without_its_original(made: Path, tmp_path: Path):
    before, new = content(made), tmp_path / "new"
    copy(made, new)
    assert content(made) == before
    shutil.move(made, tmp_path / "away")
    assert damage(new) == [] and not (new / "lease").exists() and not (new / copying.MARK).exists()
    assert str(made) not in (new / "manifest.json").read_text()
    events = started(new)
    run(new)
    assert started(new) == events  # nothing was to do


def test_neither_writes_into_the_other(made: Path, tmp_path: Path):
    copy(made, new := tmp_path / "new")
    before = content(made)
    lance.dataset(outputs(new, "gen-0/label")["labels"]["uri"]).delete("row_id = 8")
    assert content(made) == before and damage(made) == [] and damage(new) == []
    Manifest.load(new).redo(["gen-0/trust", "gen-0/select"])
    run(new)
    assert content(made) == before and damage(new) == []


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_a_refusal_names_the_command_which_mends(made: Path, tmp_path: Path, how):
    how(made, there := tmp_path / "there")
    told = CliRunner().invoke(main, ["verify", str(there)]).output
    assert f"`curate copy {there} NEW` makes a copy that is whole" in " ".join(told.split())
    copy(there, new := tmp_path / "new")
    assert damage(new) == [] and str(made) not in (new / "manifest.json").read_text()


def test_unfinished_work_is_left_and_begun_anew(tmp_path: Path):
    break_off(original := tmp_path / "original")
    new = tmp_path / "new"
    assert "not copied, no finished stage names it: gen-0/label-" in copy(original, new)
    assert not list(new.glob("gen-0/label-*"))
    run(new)
    assert damage(new) == []


def test_a_run_under_way_is_refused_and_no_lease_is_taken_along(made: Path, tmp_path: Path):
    new = tmp_path / "new"
    with lease.hold(made):
        assert "a run is using it" in refused(made, new) and not new.exists()
    assert (made / "lease").exists()
    copy(made, new)
    with lease.hold(made), lease.hold(new):
        pass


def test_a_run_that_began_meanwhile_is_refused(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = copying._write_config

    def redone(*arguments):
        Manifest.load(made).redo(["gen-0/select"])
        whole(*arguments)

    monkeypatch.setattr(copying, "_write_config", redone)
    new = tmp_path / "new"
    assert "a driver wrote into it while it was copied" in refused(made, new)
    assert not new.exists()
    monkeypatch.undo()
    assert "remove it and give the same command" in refused(made, new)
    shutil.rmtree(tmp_path / "new.copying")
    copy(made, new)


def test_interrupted_copies_go_on_from_every_file(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, left, copied = copying._copy_file, [0], []

    def one(path: Path, to: Path, size: int) -> None:
        is_there = to.exists()
        if not left[0] and not is_there:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.with_name(f".{to.name}.{'0' * 32}").write_bytes(path.read_bytes()[:3])  # as a kill leaves it
            raise KeyboardInterrupt
        left[0] -= not is_there
        copied.extend([] if is_there else [path])
        whole(path, to, size)

    monkeypatch.setattr(copying, "_copy_file", one)
    new = tmp_path / "new"
    for _ in range(1000):
        left[0] = 5
        try:
            copying.copy(made, new, lambda _: None)
            break
        except KeyboardInterrupt:
            assert not new.exists()
    assert len(copied) == len(set(copied)) > 50 and damage(new) == []
    assert not list(new.rglob(".*")) and not (tmp_path / "new.copying").exists()


def test_a_damaged_run_is_no_copy(made: Path, tmp_path: Path):
    table = Path(outputs(made, "gen-0/select")["parquet"])
    table.write_bytes(table.read_bytes()[:-1])
    new = tmp_path / "new"
    assert "is damaged (gen-0/select: 1 of its files is missing or cut off" in refused(made, new)
    assert not new.exists()


def test_places_that_make_no_sense_are_refused(made: Path, tmp_path: Path):
    assert "is the run directory itself" in refused(made, made)
    assert "lies in the run directory" in refused(made, made / "gen-0" / "new")
    (there := tmp_path / "there").mkdir()
    assert "exists already" in refused(made, there)
    assert "is not a run directory" in refused(there, tmp_path / "new")
    assert "between folders of this machine" in refused(made, "s3://bucket/new")
    (out := tmp_path / "out" / "_curation").mkdir(parents=True)
    assert "is the output of `curate filter`" in refused(out.parent, tmp_path / "new")


def test_the_configuration_and_times_go_along(made: Path, tmp_path: Path):
    (made / "config.yaml").write_text(json.dumps({"name": "x", "run_dir": str(made)}))
    os.utime(file := Path(outputs(made, "gen-0/trust")["trust"]["uri"]) / "weights.safetensors", ns=(1, 10**18 + 1))
    copy(made, new := tmp_path / "new")
    assert f"run_dir: {new}" in (new / "config.yaml").read_text()
    assert (new / file.relative_to(made)).stat().st_mtime_ns == 10**18 + 1


def test_a_configuration_that_grows_without_end_is_refused(made: Path, tmp_path: Path):
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)]
    (made / "config.yaml").write_text("a0: &a0 x\n" + "".join(levels))
    assert "config.yaml: line 6: holds more than 100,000 values" in refused(made, tmp_path / "new")


def test_an_original_and_its_copy_may_be_driven_at_once(made: Path, tmp_path: Path):
    copy(made, new := tmp_path / "new")
    twin = shutil.copytree(made, tmp_path / "twin")  # by cp: its records name the original's files
    text = (twin / "manifest.json").read_bytes()
    for directory in (made, new):
        Manifest.load(directory).redo(["gen-0/label", "gen-0/trust", "gen-0/select"])
    with ThreadPoolExecutor() as pool:
        drivers = [pool.submit(run, directory) for directory in (made, new)]
    assert [driver.exception() for driver in drivers] == [None, None]
    for directory in (made, new):
        ids = lance.dataset(outputs(directory, "gen-0/label")["labels"]["uri"]).to_table(columns=["row_id"])["row_id"]
        assert sorted(ids.to_pylist()) == [n for n in range(NUM_ROWS) if n != 7] and damage(directory) == []
    with pytest.raises(RunDirError, match="curate copy"):
        Manifest.load(twin).require_here()  # as every driver does first
    assert (twin / "manifest.json").read_bytes() == text and damage(made) == []


@pytest.mark.parametrize("target", ["secret", "folder"])
def test_what_a_link_leads_to_outside_is_not_copied(tmp_path: Path, target: str) -> None:
    run(tmp_path / "run")
    (tmp_path / "secret").write_text("key")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "secret").write_text("key")
    (tmp_path / "run" / "notes").symlink_to(tmp_path / target)
    told = CliRunner().invoke(main, ["copy", str(tmp_path / "run"), str(tmp_path / "new")])
    assert told.exit_code == 2 and f"run/notes: it leads by a link to {tmp_path / target}" in told.output
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.copying").exists()
