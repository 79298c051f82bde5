"""What is left to pyarrow in an object store: sources, and the folder in which Ray keeps checkpoints."""

import os

import pyarrow.fs
import pytest
from google_store import google_store
from object_store import object_store

from curation.sources.paths import find
from curation.storage.paths import Remote
from train import launch


@pytest.fixture(scope="module", params=[object_store, google_store], ids=["s3", "gs"])
def server(request):
    with request.param() as server:
        yield server


@pytest.mark.long
def test_sources_are_found(server):
    folder = Remote(server.url("data"))
    for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl", "d.txt"):
        (folder / name).put(b"12345")
    found, _ = find(f"{folder}/*.jsonl")
    assert [item.path for item in found] == [f"{folder}/a.jsonl", f"{folder}/b.jsonl"]
    assert {item.size for item in found} == {5}
    filesystem, path = pyarrow.fs.FileSystem.from_uri(found[0].path)
    with filesystem.open_input_file(path) as file:
        assert file.read_at(2, 3) == b"45" and file.read() == b"12345"


@pytest.mark.long
def test_checkpoints_are_put_got_and_removed(server, tmp_path):
    storage = Remote(server.url("fit"))
    weights = os.urandom(20 << 20)
    (tmp_path / "up" / "sub").mkdir(parents=True)
    (tmp_path / "up" / "sub" / "config.json").write_text("{}")
    (tmp_path / "up" / "weights").write_bytes(weights)
    filesystem, path = pyarrow.fs.FileSystem.from_uri(str(storage))
    filesystem.create_dir(f"{path}/checkpoint")
    pyarrow.fs.copy_files(
        str(tmp_path / "up"), f"{path}/checkpoint", destination_filesystem=filesystem, use_threads=False
    )
    assert (storage / "checkpoint" / "weights").read_bytes() == weights
    assert [entry.path for entry in storage.entries()] == ["checkpoint/sub/config.json", "checkpoint/weights"]
    listed = filesystem.get_file_info(pyarrow.fs.FileSelector(f"{path}/checkpoint"))
    assert sorted(info.base_name for info in listed) == ["sub", "weights"]
    (tmp_path / "down").mkdir()
    pyarrow.fs.copy_files(f"{path}/checkpoint", str(tmp_path / "down"), source_filesystem=filesystem)
    assert (tmp_path / "down" / "weights").read_bytes() == weights
    for _ in range(2):
        launch.remove(storage)
    assert not storage.exists()
