"""A run directory from a stranger: nothing that its files name is removed, replaced or written outside of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from object_store import object_store

from benchmarks.fuzz.sealed_run import run as run_stages
from curation.cli import main
from curation.errors import RunDirError
from curation.extras.hub.exports import write_model
from curation.filter.output import check_home, load_content, publish
from curation.refs import TableRef
from curation.rundir.manifest import Manifest, sign_text
from curation.rundir.sealed import find_lost, load
from curation.storage import lease
from curation.storage.digest import compute_content
from curation.storage.inside import resolve_inside
from curation.storage.paths import to_place
from curation.tables import io

STAGE = "gen-0/label-pool"
OUTSIDE = ["../victim", "gen-0/../../victim", "/victim", "..", "", "gen-0//x", "gen-0\\..\\victim", "./x", "a\nb", None]


def make_table(path: Path) -> TableRef:
    return io.write(pa.table({"row_id": np.arange(10)}), str(path))


def tell_tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def record_stage(home: Path, name: str = STAGE, inputs: Any = None) -> Manifest:
    manifest = Manifest.load(home)
    manifest.record(name, inputs or {"seed": 0}, {}, rows=1, seconds=0.0)
    return manifest


def rewrite(home: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest, with the digest that fits: anyone can compute it."""
    content = json.loads((home / "manifest.json").read_text())
    change(content)
    (home / "manifest.json").write_text(sign_text(json.dumps(content, indent=1)))


def rename_stage(content: Any, name: Any) -> None:
    record = content["stages"].pop(STAGE)
    content["stages"][str(name)] = record | {"name": name}


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "stage": rename_stage,
    "list": lambda content, name: content["stages"][STAGE].update(sealed={"sums": name, "content": [1, ""]}),
    "attempts": lambda content, name: content.update(attempts={str(name): 1}),
    "made": lambda content, name: content.update(made=[name]),
}


@pytest.mark.parametrize("where", CHANGES)
def test_a_manifest_that_names_a_path_outside_is_refused_when_it_is_read(tmp_path: Path, where: str) -> None:
    record_stage(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    for name in OUTSIDE:
        (tmp_path / "manifest.json").write_text(text)
        if name is None and where != "list":
            continue  # it becomes a text
        rewrite(tmp_path, lambda content, name=name: CHANGES[where](content, name))
        with pytest.raises(RunDirError, match=r"manifest\.json|must lie in the directory") as refused:
            Manifest.load(tmp_path)
        assert str(tmp_path) in str(refused.value)


def test_the_refusal_names_the_record_and_the_path(tmp_path: Path) -> None:
    record_stage(tmp_path)
    rewrite(tmp_path, lambda content: CHANGES["list"](content, "../victim"))
    with pytest.raises(RunDirError, match=f"record of stage {STAGE} in manifest.json names '../victim', and a path"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("attempt", ["../../victim", 1.5, True, None])
def test_an_attempt_that_is_no_number_is_refused(tmp_path: Path, attempt: object) -> None:
    record_stage(tmp_path)
    rewrite(tmp_path, lambda content: content.update(attempts={STAGE: attempt}))
    with pytest.raises(RunDirError, match="attempts are whole numbers"):
        Manifest.load(tmp_path)


def test_a_record_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    record_stage(tmp_path)
    rewrite(tmp_path, lambda content: content["stages"][STAGE].update(name="../victim"))
    with pytest.raises(RunDirError, match=r"is of '\.\./victim'"):
        Manifest.load(tmp_path)


def test_clean_removes_nothing_outside(tmp_path: Path) -> None:
    """As it did: a record of this name made every folder beside it one of an earlier setting."""
    victim = tmp_path / "victim" / "gen-0" / "label-pool-0a1b2c3d"
    victim.mkdir(parents=True)
    (victim / "mine").write_text("mine")
    (tmp_path / "victim" / "gen-0" / "backup-20261101").mkdir()
    before = tell_tree(tmp_path / "victim")
    for name in ("../victim/gen-0/label-pool", "../victim/gen-0/backup"):
        record_stage(tmp_path / "run")
        rewrite(tmp_path / "run", lambda content, name=name: rename_stage(content, name))
        told = CliRunner().invoke(main, ["clean", str(tmp_path / "run"), "--older-than", "0"])
        assert told.exit_code == 2 and name in told.output and told.output.count("\n") == 1
        assert tell_tree(tmp_path / "victim") == before
        (tmp_path / "run" / "manifest.json").unlink()


def test_clean_leaves_a_folder_of_ones_own_whatever_its_name(tmp_path: Path) -> None:
    manifest = record_stage(tmp_path)
    mine = [tmp_path / "gen-0" / f"label-pool-{end}" for end in ("20261101", "0a1b2c3d", "0a1b2c3d.1")]
    for folder in (*mine, manifest.directory_of(STAGE, {"seed": 0})):
        folder.mkdir(parents=True)
        (folder / "notes").write_text("notes")
        os.utime(folder / "notes", (0, 0))
    record_stage(tmp_path, inputs={"seed": 1})
    told = CliRunner().invoke(main, ["clean", str(tmp_path), "--older-than", "0"])
    assert told.exit_code == 0 and [folder.is_dir() for folder in mine] == [True] * 3
    assert not manifest.directory_of(STAGE, {"seed": 0}).exists()


@pytest.mark.parametrize("link", ["gen-0", "gen-0/label-pool", "lease", "labels.lance/data", "labels.lance.ids"])
def test_a_link_that_leads_out_stops_whoever_would_work_there(tmp_path: Path, link: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "1.json").write_text("mine")
    home = tmp_path / "run"
    manifest = record_stage(home)
    path = manifest.directory_of(STAGE, {"seed": 0}) if link == "gen-0/label-pool" else home / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(tmp_path / "victim")
    before = tell_tree(tmp_path / "victim")
    with pytest.raises(RunDirError, match=f"leads by a link to {tmp_path}/victim"), lease.hold(home):
        pass
    told = CliRunner().invoke(main, ["clean", str(home), "--older-than", "0"])
    assert told.exit_code == 2 and "leads by a link to" in told.output
    assert tell_tree(tmp_path / "victim") == before
    if link.startswith("gen-0"):
        with pytest.raises(RunDirError, match=f"{STAGE}.* leads by a link to"):
            Manifest.load(home)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.yaml", "gen-0/labels.lance.suspects", "gen-0/x.sums.json", "draw.json"])
def test_a_pipe_in_a_run_directory_stops_whoever_would_read_it(tmp_path: Path, name: str) -> None:
    record_stage(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(RunDirError, match=f"{name}: is a pipe, a socket or a device"), lease.hold(tmp_path):
        pass


def test_a_run_directory_that_is_reached_by_a_link_and_links_within_it_are_taken(tmp_path: Path) -> None:
    record_stage(tmp_path / "run")
    (tmp_path / "run" / "latest").symlink_to(tmp_path / "run" / "gen-0")
    (tmp_path / "other").symlink_to(tmp_path / "run")
    with lease.hold(tmp_path / "other"):
        assert list(Manifest.load(tmp_path / "other").stages) == [STAGE]


def test_a_stage_is_begun_only_inside(tmp_path: Path) -> None:
    """Names of stages follow also from a filter's rounds, which are read from its manifest."""
    manifest = Manifest.load(tmp_path / "run")
    for name in ("../victim", "/victim", "gen-0/../../victim"):
        with pytest.raises(RunDirError, match="must lie in the directory"):
            manifest.directory_of(name, {})
    manifest.begin({STAGE: {}})
    assert Manifest.load(tmp_path / "run").made == [f"{STAGE}-{manifest.directory_of(STAGE, {}).name[-8:]}"]


def test_a_list_that_names_files_outside_is_not_what_a_stage_wrote(tmp_path: Path) -> None:
    """Anyone can compute its digest; nothing outside is read."""
    os.mkfifo(tmp_path / "victim")
    manifest = record_stage(tmp_path / "run")
    for name in OUTSIDE:
        text = json.dumps({str(name): [0, "xxh3:"]})
        (tmp_path / "run" / "sums.json").write_text(text)
        found = {"sums": "sums.json", "content": compute_content(text.encode())}
        listed = load(tmp_path / "run", found)
        assert listed is None or name in (None, "gen-0\\..\\victim", "a\nb"), name
        assert find_lost(tmp_path / "run", {STAGE: found}).keys() == {STAGE}
    for content in (None, [1], [1, 2, 3], "x"):
        assert load(manifest.directory, {"sums": "sums.json", "content": content}) is None


def test_a_table_on_record_is_resolved_before_it_is_taken_as_the_runs_own(tmp_path: Path) -> None:
    """A path that begins with the run directory may leave it later."""
    home = tmp_path / "run"
    make_table(tmp_path / "victim.lance")
    record_stage(home)
    for uri in (
        f"{home}/../victim.lance",
        f"file://{home}/../victim.lance",
        "./../victim.lance",
        str(tmp_path / "run-2" / "t.lance"),
    ):
        output = {"labels": {"uri": uri, "version": 1}}
        rewrite(home, lambda content, output=output: content["stages"][STAGE].update(outputs=output))
        with pytest.raises(RunDirError, match=rf"stage {STAGE} in manifest\.json names the table .*lies outside"):
            Manifest.load(home).require_own_tables()
    told = CliRunner().invoke(main, ["clean", str(home), "--older-than", "0"])
    assert told.exit_code == 2 and len(lance.dataset(str(tmp_path / "victim.lance")).versions()) == 1


def test_a_run_that_a_link_leads_out_of_does_no_stage(tmp_path: Path) -> None:
    home = tmp_path / "run"
    (tmp_path / "victim").mkdir()
    home.mkdir()
    (home / "gen-0").symlink_to(tmp_path / "victim")
    with pytest.raises(RunDirError, match="leads by a link to"):
        run_stages(home)
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_filter_removes_no_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "part-0a1b2c3d-00000.parquet").write_text("mine")
    home = tmp_path / "out"
    (home / "_curation").mkdir(parents=True)
    (home / "_curation" / "manifest.json").write_text("{}")
    (home / "data").symlink_to(tmp_path / "victim")
    with pytest.raises(RunDirError, match="data: it leads by a link to"):
        check_home(home)
    assert (tmp_path / "victim" / "part-0a1b2c3d-00000.parquet").exists()


def test_a_filter_whose_list_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    content = {"files": [{"path": "data/part-0a1b2c3d-00000.parquet"}]}
    publish(tmp_path, content, None, lambda: None)
    assert load_content(tmp_path) == content
    (tmp_path / "filter.json").write_text(json.dumps({"files": [{"path": "../victim.parquet"}]}))
    with pytest.raises(RunDirError, match=r"filter\.json names '\.\./victim\.parquet'"):
        load_content(tmp_path)


def test_an_export_copies_no_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    student = tmp_path / "run" / "student"
    student.mkdir(parents=True)
    (student / "model.safetensors").symlink_to(tmp_path / "secret")

    class Student:
        folder = student
        model = type("Model", (), {"adapter": None})()

    with pytest.raises(RunDirError, match="leads by a link to"):
        write_model(Student(), tmp_path / "export", tmp_path / "export")  # type: ignore[arg-type]
    assert not (tmp_path / "export").exists()


def test_in_an_object_store_names_are_held_to_the_same() -> None:
    with object_store() as server:
        home = to_place(server.url("runs/mine"))
        victim = to_place(server.url("runs/victim/label-pool-0a1b2c3d/mine"))
        victim.put(b"mine")
        manifest = Manifest.load(home)
        manifest.record(STAGE, {"seed": 0}, {}, rows=1, seconds=0.0)
        path = home / "manifest.json"
        content = json.loads(path.read_text())
        rename_stage(content, "../victim/label-pool")
        path.put(sign_text(json.dumps(content, indent=1)).encode())
        told = CliRunner().invoke(main, ["clean", str(home), "--older-than", "0"])
        assert told.exit_code == 2 and "../victim/label-pool" in told.output and victim.read_bytes() == b"mine"
        with pytest.raises(RunDirError, match="must lie in the directory"):
            resolve_inside(home, "../victim", "a test")
        with pytest.raises(RunDirError, match=r"without parts \. and \.\."):
            to_place(f"{home}/../victim")
