import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built import Built

from curation.cluster.versions import find_versions
from curation.errors import RunDirError
from curation.refs import TableRef
from curation.rundir.graph import Done, Position
from curation.rundir.manifest import Manifest, sign_text
from curation.rundir.status import Status, find_status
from curation.stages.label import Label
from curation.stages.signal import Judge
from curation.storage.paths import write_atomically

IDENTITY = {"seed": 0, "domain": "chess", "splits": {"pool": {"source": "puzzles", "rows": 20}}}
FILES = {"puzzles": [{"path": "a.parquet", "num_rows": 40}]}
INPUTS = {"pool": TableRef(uri="pool.lance", version=3).to_json(), "trust": {"width": 512, "states": ["output_last"]}}

TOO_LARGE = """
import resource, sys
from pathlib import Path
from curation.storage.paths import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # the disk is full after the first page
write_atomically(Path(sys.argv[1]), "new" * 100_000)
"""
REWRITE = """
import sys
from pathlib import Path
from curation.storage.paths import write_atomically
print("writing", flush=True)
while True:
    for letter in "ab":
        write_atomically(Path(sys.argv[1]), letter * 1_000_000)
"""


def child(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_write_makes_folders_replaces_and_leaves_nothing_behind(tmp_path: Path):
    path = tmp_path / "a" / "b" / "m.json"
    for text in ("first", "", "é\n"):
        write_atomically(path, text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_in_the_middle_leaves_the_old_content(tmp_path: Path):
    path = tmp_path / "m.json"
    write_atomically(path, "old")
    process = child(TOO_LARGE, path)
    _, problem = process.communicate()
    assert process.returncode == 1 and "File too large" in problem
    assert path.read_text() == "old"


def test_readers_and_killed_writers_see_whole_files_only(tmp_path: Path):
    path = tmp_path / "m.json"
    for seconds in (0.05, 0.11):
        write_atomically(path, "b" * 1_000_000)
        process = child(REWRITE, path)
        assert process.stdout.readline() == "writing\n"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = path.read_text()
            assert len(text) == 1_000_000 and text.strip(text[0]) == ""
        kill(process)
        text = path.read_text()
        assert len(text) == 1_000_000 and text.strip(text[0]) == ""


def status(manifest: Manifest, inputs: dict[str, Any]) -> Status:
    """Where the stage ``select`` of these inputs stands."""
    return find_status(Built(name="select", work=lambda task: Done(outputs={}, rows=0), inputs=inputs), {}, manifest)


def key(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"revision": 1, **inputs}


def test_a_stage_on_record_is_found_by_its_inputs_in_the_next_process_too(tmp_path: Path):
    manifest = Manifest.load(tmp_path)
    assert status(manifest, INPUTS).words == "not done yet"
    manifest.identify(IDENTITY, FILES)
    manifest.save()
    record = manifest.record("select", key(INPUTS), {"n": 5}, rows=5, seconds=1.23456)
    again = Manifest.load(tmp_path)
    assert status(again, json.loads(json.dumps(INPUTS))).state == status(manifest, INPUTS).state == "done"
    assert again.stages["select"] == record and (again.identity, again.files) == (IDENTITY, FILES)
    assert (record.name, record.outputs, record.rows, record.seconds) == ("select", {"n": 5}, 5, 1.235)


def test_a_changed_input_is_told_leaf_by_leaf(tmp_path: Path):
    manifest = Manifest.load(tmp_path)
    manifest.record("select", key(INPUTS), {}, rows=5, seconds=1)
    changed = {"pool": INPUTS["pool"] | {"version": 4}, "trust": {"width": 256, "states": ["output_last"]}, "new": 1}
    manifest = Manifest.load(tmp_path)
    assert status(manifest, changed).words == (
        "changed: new was not set, is 1; pool.version was 3, is 4; trust.width was 512, is 256"
    )
    manifest.record("select", key(changed), {}, rows=5, seconds=1)
    assert status(manifest, changed).state == "done" and status(manifest, INPUTS).state == "changed"


def test_outputs_that_are_no_json_are_refused(tmp_path: Path):
    manifest = Manifest.load(tmp_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        manifest.record("select", key(INPUTS), {"path": tmp_path}, rows=5, seconds=1)
    assert not manifest.stages


def test_the_file_names_the_versions_that_made_it(tmp_path: Path):
    Manifest.load(tmp_path).record("select", INPUTS, {}, rows=5, seconds=1)
    raw = json.loads((tmp_path / "manifest.json").read_text())
    assert raw["versions"] == find_versions() and re.match(r"3\.\d+\.", raw["versions"]["python"])
    assert {"ray", "torch", "transformers", "pylance"} <= set(raw["versions"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"stages": {',
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b'{"identity": {}, "files": {}, "stages": {"select": {"name": "select"}}}',
        b'{"identity": {}, "files": {}, "stages": {"select": 3}}',
        pytest.param(
            b'{"identity": {}, "files": {}, "stages": []}',
        ),
    ],
)
def test_a_damaged_manifest_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(RunDirError, match="is not a manifest") as caught:
        Manifest.load(tmp_path)
    assert str(path) in str(caught.value) and path.read_bytes() == content


def test_new_files_are_welcome_and_a_dry_run_writes_nothing(tmp_path: Path):
    Manifest.load(tmp_path).identify(IDENTITY, FILES)
    assert list(tmp_path.iterdir()) == []
    manifest = Manifest.load(tmp_path)
    manifest.identify(IDENTITY, FILES)
    manifest.save()
    more = {"puzzles": [*FILES["puzzles"], {"path": "b.parquet", "num_rows": 3}]}
    manifest = Manifest.load(tmp_path)
    manifest.identify(IDENTITY, more)
    manifest.save()
    assert Manifest.load(tmp_path).files == more


def test_events_are_appended_a_line_each(tmp_path: Path):
    for index in range(2):
        Manifest.load(tmp_path).event("finished", stage=f"gen-{index}/select", path=Path("x"))
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["gen-0/select", "gen-1/select"]
    assert all(line["event"] == "finished" and line["path"] == "x" for line in lines)
    assert lines[0]["time"] <= lines[1]["time"] <= time.time() + 0.001  # the log keeps milliseconds


@pytest.mark.parametrize("where", range(0, 240, 5))
def test_any_changed_byte_of_a_manifest_is_found(tmp_path: Path, where: int):
    """Also in the names of the format and of the digest, and between line ends."""
    Manifest.load(tmp_path).record("select", INPUTS, {"n": 5}, rows=5, seconds=1)
    path = tmp_path / "manifest.json"
    content = path.read_bytes()
    for place in range(where, where + 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 7]) + content[place + 1 :])
        with pytest.raises(RunDirError, match=r"manifest\.json: is (damaged|not a manifest)"):
            Manifest.load(tmp_path)


def test_a_record_is_found_by_class_and_position_however_its_stage_is_called(tmp_path: Path):
    at, manifest = Position(generation=1, split="pool"), Manifest.load(tmp_path)
    manifest.record("any name", {}, {"n": 1}, rows=1, seconds=1, kind="Label", at=at)
    manifest.record("gen-1/label-source", {}, {}, rows=1, seconds=1, kind="Label", at=replace(at, split="source"))
    manifest.record("gen-1/judge-pool", {}, {"n": 2}, rows=1, seconds=1, kind="Judge", at=at)
    again = Manifest.load(tmp_path)
    assert again.find(at, Label).outputs == {"n": 1} and again.find(at, Judge, Label).outputs == {"n": 2}
    assert again.find(replace(at, generation=0), Label) is None and again.find(replace(at, of="x"), Label) is None


def test_a_directory_of_an_earlier_format_is_read_and_not_gone_on_with(tmp_path: Path):
    manifest = Manifest.load(tmp_path)
    manifest.require_current()  # there is none yet
    manifest.record("select", key(INPUTS), {"n": 5}, rows=5, seconds=1)
    Manifest.load(tmp_path).require_current()
    path = tmp_path / "manifest.json"
    text = path.read_text().replace('"format": 6', '"format": 3')
    path.write_text(sign_text(text.replace('"rows": 5', '"rows": 5,\n   "released": false')))
    old = Manifest.load(tmp_path)
    assert old.stages["select"].outputs == {"n": 5}
    with pytest.raises(RunDirError, match=r"is of format 3, .* goes on with format 6 alone; give another name"):
        old.require_current()
