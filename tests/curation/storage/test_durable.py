"""What is waited for until it is on the disk."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.fuzz.sealed_run import run
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import load
from curation.storage import files
from curation.storage.paths import write_atomically
from curation.tables.files import write_file
from train.callbacks import Partial


@pytest.fixture
def waited_for(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were waited for."""
    found: list[Path] = []
    fsync = os.fsync

    def wait(number: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    monkeypatch.setattr(os, "fsync", wait)
    return found


def test_a_file_is_waited_for_before_its_folder_and_a_new_folder_with_those_above_it(tmp_path, waited_for):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "file").write_text("text")
    files.sync([folder / "file"])
    assert waited_for == [folder / "file", folder]
    waited_for.clear()
    files.sync_names(folder)
    assert waited_for[:3] == [folder, tmp_path / "a", tmp_path]


def test_a_file_that_is_replaced_is_on_the_disk_under_its_name(tmp_path, waited_for):
    write_atomically(tmp_path / "file", "text")
    assert waited_for[-1] == tmp_path and waited_for[0].parent == tmp_path


def test_what_a_record_names_is_waited_for_before_it_is_written(tmp_path, waited_for):
    run(tmp_path / "run")
    saved = max(number for number, path in enumerate(waited_for) if "manifest.json" in path.name)
    waited, named = set(waited_for[:saved]), set[Path]()
    for record in Manifest.load(tmp_path / "run").stages.values():
        files = load(tmp_path / "run", record.sealed)
        assert files
        named |= {tmp_path / "run" / name for name in files}
        sums = tmp_path / "run" / record.sealed["sums"]
        assert sums.parent in waited and any(path.name.startswith(f".{sums.name}.") for path in waited)
    assert any("_versions" in path.parts for path in named) and any("data" in path.parts for path in named)
    assert not named - waited and not {path.parent for path in named} - waited


def test_a_checkpoint_is_sealed_once_its_files_are_on_the_disk(tmp_path, waited_for):
    partial = Partial(tmp_path / "model", "stamp")
    partial.prepare()
    checkpoint = partial.checkpoints / "checkpoint-1"
    (checkpoint / "deep").mkdir(parents=True)
    for name in ("weights", "deep/state"):
        (checkpoint / name).write_text("numbers")
    waited_for.clear()
    partial.seal(checkpoint)
    sealed = next(number for number, path in enumerate(waited_for) if "sealed.json" in path.name)
    assert {checkpoint / "weights", checkpoint / "deep/state", checkpoint / "deep"} <= set(waited_for[:sealed])


def test_a_filters_file_is_on_the_disk_before_it_is_named(tmp_path, waited_for):
    rows = pa.record_batch({"row_id": [1, 2]})
    write_file([rows], rows.schema, tmp_path / "out" / "part.parquet", "parquet")
    assert waited_for[0].name.startswith(".part.parquet") and waited_for[1:3] == [tmp_path / "out", tmp_path]


def test_lines_of_json_have_null_for_numbers_that_json_has_not(tmp_path):
    rows = pa.record_batch({"x": [1.5, float("nan")], "of": [[1.0], [float("-inf"), 2.0]], "text": ["NaN", "ä"]})
    write_file([rows], rows.schema, tmp_path / "rows.jsonl", "jsonl")
    lines = [
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "rows.jsonl").read_text().splitlines()
    ]
    assert lines == [{"x": 1.5, "of": [1.0], "text": "NaN"}, {"x": None, "of": [None, 2.0], "text": "ä"}]


def test_a_training_is_on_the_disk_before_its_checkpoints_go(tmp_path, waited_for):
    partial = Partial(tmp_path / "student", "stamp")
    partial.prepare()

    def save(path: Path) -> None:
        path.mkdir()
        (path / "weights").write_text("weights")

    partial.finish(save)
    assert waited_for[:2] == [partial.folder / "result" / "weights", partial.folder / "result"]
    assert tmp_path in waited_for[2:] and not partial.folder.exists()
