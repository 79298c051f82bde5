"""What fuzzing of run directories has found: each was a traceback, or a refusal whose advice did not help."""

import json
import logging
import os
import shutil
from pathlib import Path

import lance
import pytest
from click.testing import CliRunner

from benchmarks.fuzz.sealed_run import break_off, outputs, run, started
from benchmarks.fuzz.subjects import sealed
from curation.cli import main
from curation.config.load import load_config
from curation.errors import CommitError, ConfigError, RunDirError, RunFailedError, describe_lance_error
from curation.pipeline.work import files_of
from curation.rundir.events import EventLog, compute_spent, parse_events
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run
from curation.storage import lease
from curation.storage.json_files import read_json
from curation.storage.paths import write_atomically
from curation.tables import commits, io
from curation.tables.row_ids import RowIds
from curation.tables.versions import set_torn_aside
from curation.telemetry.standing import Spent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("damaged") / "run"
    run(directory)
    return directory


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A copy under the same path: the records name it."""
    kept = shutil.copytree(made, tmp_path / "kept")
    yield made
    shutil.rmtree(made)
    shutil.copytree(kept, made)


def in_place_of(path: Path) -> Path:
    """A folder."""
    if path.exists():
        path.unlink()
    path.mkdir(parents=True)
    return path


def test_a_folder_in_place_of_the_manifest_is_refused_in_a_line(copy: Path):
    in_place_of(copy / "manifest.json")
    with pytest.raises(RunDirError, match=r"manifest\.json: cannot be read \(Is a directory\); move it away"):
        Manifest.load(copy)
    told = CliRunner().invoke(sealed, ["run", str(copy)])
    assert told.exit_code == 2 and told.stderr.count("\n") == 1


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path):
    for name in ("manifest.json", "config.yaml", "events.jsonl"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(RunDirError, match=r"manifest\.json: cannot be read \(Is a pipe or a device\); move it away"):
        Manifest.load(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read \(Is a pipe or a device\)"):
        load_config(tmp_path / "config.yaml")
    assert EventLog(tmp_path).last(100) == []


def test_json_that_nests_without_end_is_refused_in_a_line(copy: Path):
    (copy / "manifest.json").write_text('{"stages": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(RunDirError, match=r"manifest\.json: is not a manifest \(its values are nested"):
        Manifest.load(copy)
    (copy / "report.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested"):  # and the report is written again
        read_json(copy / "report.json")


def test_events_are_not_written_through_a_link(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "mine")
    events = EventLog(tmp_path)
    events.add("{}", can_wait=False)
    assert (tmp_path / "mine").read_text() == "mine" and events.last(100) == []
    assert "events are not written" in caplog.text and "events are not read" in caplog.text


def test_a_folder_in_place_of_ids_is_no_trouble(tmp_path: Path):
    break_off(tmp_path)
    (labels,) = tmp_path.glob("gen-0/label-*/labels.lance")
    in_place_of(labels.with_name("labels.lance.ids"))
    assert len(RowIds(str(labels)).ids) == 0
    run(tmp_path)


@pytest.mark.parametrize("content", [b'{"expires": "never"}', b"\xff", b"null", None])
def test_a_lease_that_is_none_is_refused_with_what_to_remove(tmp_path: Path, content: bytes | None):
    path = tmp_path / "lease" / "3.json"
    in_place_of(path)
    if content is not None:
        path.rmdir()
        path.write_bytes(content)
    with pytest.raises(RunDirError, match="remove it if no driver is running"):
        lease.find_holder(tmp_path)


def test_lines_of_events_that_are_damaged_are_left_out(tmp_path: Path):
    good = {"time": 5.0, "event": "started", "stage": "a"}
    progress = {"time": 6.0, "event": "progress", "stage": "a", "rows": 1, "total": 2}
    bad = [
        {**good, "stage": None},
        {**good, "time": "5"},
        {"time": 5.0, "event": "started"},
        {**progress, "rows": None},
        {**progress, "work": {"actors": 3}},
        {"time": 5.0, "event": "nodes", "num": 1, "came": None, "left": []},
        [],
        7,
    ]
    lines = [json.dumps(good), *map(json.dumps, bad), '{"time": 5.0, "eve', "[" * 100_000, json.dumps(progress)]
    assert list(parse_events(lines)) == [good, progress]
    assert compute_spent(lines) == {"a": Spent()}
    in_place_of(tmp_path / "events.jsonl")
    assert EventLog(tmp_path).last(100) == []


def test_what_lance_says_in_the_log_has_no_paths_of_its_compiler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A version that is there twice, as a file system may restore it: no commit fits it."""
    monkeypatch.setattr(commits, "RETRY_SECONDS", 1e-3)
    break_off(tmp_path)
    (labels,) = tmp_path.glob("gen-0/label-*/labels.lance")
    newest = min((labels / "_versions").glob("*.manifest"))
    first = max((labels / "_versions").glob("*.manifest"))
    shutil.copyfile(first, newest.with_name(f"{int(newest.stem) - 1}.manifest"))
    with caplog.at_level(logging.WARNING), pytest.raises((RunFailedError, CommitError)):
        run(tmp_path)
    assert "commit 1 failed" in caplog.text and ".rs:" not in caplog.text


def test_a_file_that_cannot_be_read_is_told_in_a_line(copy: Path):
    """Whatever command meets it."""
    in_place_of(copy / "config.yaml")
    told = CliRunner().invoke(main, ["status", str(copy)])
    assert told.exit_code in (1, 2) and told.stderr.startswith("curate: ") and told.stderr.count("\n") == 1
    assert io.count(io.find_latest(outputs(copy, "gen-0/label")["labels"]["uri"])) and started(copy)


def test_an_error_names_the_stage_whose_table_it_is_about(made: Path):
    """A stage that adds columns to the table of another one fails again and again where that table cannot be used."""
    missing = f"{outputs(made, 'gen-0/label')['labels']['uri']}/_versions/5.manifest".lstrip("/")
    error = OSError(f"LanceError(IO): Object at location {missing} not found: x, rust/lance-io/src/local.rs:12:3")
    stages = Run("test", Manifest.load(made), room=lambda: {"CPU": 1.0}, redo="curate run X --redo")
    assert "`curate run X --redo gen-0/label` does that stage anew" in str(stages._make_failure("gen-0/select", error))
    assert "`curate run X --redo gen-0/select` does" in str(stages._make_failure("gen-0/select", OSError("full")))


def test_a_panic_of_lance_is_told_in_a_line(copy: Path):
    """Its columns' types are read late, and what they say is believed."""
    uri = Path(outputs(copy, "gen-0/label")["labels"]["uri"])
    newest = min((uri / "_versions").glob("*.manifest"))
    content = newest.read_bytes()
    newest.write_bytes(content.replace(b"fixed_size_list:", b"fixed_size_list\x06"))
    assert newest.read_bytes() != content
    told = CliRunner().invoke(main, ["inspect", str(uri)])
    assert told.exit_code in (1, 2) and "damaged" in told.stderr and ".rs" not in told.stderr
    ended = RuntimeError("its work ended by PanicException: called `Result::unwrap()` in /home/x/rust/lance/src/a.rs")
    assert describe_lance_error(ended) == "a file of a table is damaged, and cannot be read"


def test_a_compaction_hides_no_changed_byte(tmp_path: Path):
    """It would write what it reads with digests of its own, before the stage is recorded."""
    break_off(tmp_path)
    data = next(tmp_path.glob("gen-0/label-*/labels.lance/data/*"))
    content = data.read_bytes()
    assert b"row" in content
    data.write_bytes(content.replace(b"row", b"raw", 1))
    with pytest.raises(RunFailedError, match=rf"of its files changed \(data/{data.name}\).* --redo gen-0/label`"):
        run(tmp_path)


def test_a_folder_in_place_of_a_written_file_is_named_and_not_the_temporary_one(tmp_path: Path):
    path = in_place_of(tmp_path / "report.html")
    with pytest.raises(RunFailedError, match=rf"^{path}: Is a directory; mend it, or move it away"), files_of(tmp_path):
        write_atomically(path, "page")


@pytest.mark.parametrize("how", [*range(0, 1000, 100), "folder", None])
def test_a_damaged_version_in_the_table_of_another_stage_is_out_of_the_way_of_the_next(
    tmp_path: Path, how: int | str | None
):
    """As scores are added to labels: no version could follow one that cannot be read."""
    run(tmp_path / "run")
    manifest = Manifest.load(tmp_path / "run")
    before = io.find_latest(outputs(manifest.directory, "gen-0/label")["labels"]["uri"])
    lance.dataset(before.uri).add_columns({"score": "1.5"})
    after = {"labels": io.find_latest(before.uri).to_json()}
    manifest.record("gen-0/score", {}, after, rows=1, seconds=1.0, sealed=manifest.seal("gen-0/score", {}, after))
    path = min(Path(before.uri, "_versions").glob("*.manifest"))
    content = bytearray(path.read_bytes())
    if isinstance(how, int):
        content[how] ^= 0xFF
        path.write_bytes(content)
    elif how == "folder":
        in_place_of(path)
    lost = Manifest.load(manifest.directory).lost
    assert set(lost) == (set() if how is None else {"gen-0/score"})
    set_torn_aside(before.uri, after=before.version)
    if io.find_latest(before.uri).version != before.version:
        io.open_table(before).restore()
    lance.dataset(before.uri).add_columns({"again": "2.5"})
    assert io.read(io.find_latest(before.uri)).drop(["again"]).equals(io.read(before))
