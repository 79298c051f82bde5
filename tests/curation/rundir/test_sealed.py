"""A stage is done only where its files are: what is missing is made again, or refused with what to do."""

import json
import shutil
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from object_store import object_store

from benchmarks.fuzz.sealed_run import NUM_FRAGMENTS, outputs, run, stages, started
from curation.commands.verify import verify
from curation.errors import RunDirError, TableError, describe_lance_error
from curation.refs import TableRef
from curation.rundir.graph import find_dependents
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import list_of, load
from curation.rundir.status import iter_statuses
from curation.storage.digest import compute_quick_content
from curation.storage.paths import to_place
from curation.tables import columns, commits, io
from curation.tables.versions import digest_in, find_changed, list_version_files, make_manifest_names


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sealed") / "run"
    run(directory)
    return directory


@pytest.fixture
def copy(made: Path) -> Path:
    """The run, moved away after the test, so that the paths in its manifest are right."""
    kept = made.with_name("kept")
    shutil.copytree(made, kept)
    yield made
    shutil.rmtree(made)
    kept.rename(made)


def states(directory: Path) -> dict[str, str]:
    return {status.stage.name: status.state for status in iter_statuses(stages(), Manifest.load(directory))}


def labels(directory: Path) -> Path:
    return Path(outputs(directory, "gen-0/label")["labels"]["uri"])


def test_nothing_is_done_again_where_all_is_there(copy: Path):
    before = started(copy)
    run(copy)
    assert started(copy) == before and set(states(copy).values()) == {"done"}


@pytest.mark.parametrize("name", ["trust.jsonl", "trust.parquet", "trust.lance"])
def test_a_lost_export_is_made_again_with_a_word(copy: Path, name: str):
    path = Path(outputs(copy, "gen-0/select")["jsonl"]).with_name(name)
    content = path.read_bytes() if path.is_file() else None
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert states(copy)["gen-0/select"] == "lost"
    before = len(started(copy))
    run(copy)
    assert path.exists() and (content is None or path.read_bytes() == content)
    (word,) = started(copy)[before:]
    lost = "2 of its files are" if content is None else "1 of its files is"
    assert word.startswith(f"gen-0/select: to be made again: {lost} missing or cut off (gen-0/select-")
    assert set(states(copy).values()) == {"done"} and not verify(str(copy), lambda _: None).damage


def test_weights_that_were_cut_off_are_fitted_again(copy: Path):
    path = Path(outputs(copy, "gen-0/trust")["trust"]["uri"]) / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    run(copy)
    assert len(path.read_bytes()) == len(content) and path.read_bytes() != content
    assert not verify(str(copy), lambda _: None).damage


def test_a_whole_table_that_is_gone_is_made_again(copy: Path):
    shutil.rmtree(labels(copy))
    run(copy)
    assert io.count(io.find_latest(str(labels(copy)))) and not verify(str(copy), lambda _: None).damage


@pytest.mark.parametrize("lost", ["data", "_versions"])
def test_a_table_that_lost_rows_is_refused_with_the_command_that_redoes_it(copy: Path, lost: str):
    ref = io.find_latest(str(labels(copy)))
    named = next(iter(list_version_files(ref))) if lost == "data" else make_manifest_names(ref.version)[0]
    (labels(copy) / named).unlink()
    with pytest.raises(
        RunDirError, match="stage gen-0/label is damaged: 1 of its files is missing or cut off"
    ) as caught:
        run(copy)
    assert f"`curate run {copy} --redo gen-0/label` makes it anew" in str(caught.value)
    assert states(copy) == {"gen-0/label": "damaged", "gen-0/trust": "waits", "gen-0/select": "waits"}
    # what the command does
    before, place_before = len(started(copy)), labels(copy)
    Manifest.load(copy).redo(find_dependents(["gen-0/label"], stages()))
    run(copy)
    assert [line.partition(":")[0] for line in started(copy)[before:]] == ["gen-0/label", "gen-0/trust", "gen-0/select"]
    assert labels(copy).parent == place_before.parent.with_name(f"{place_before.parent.name}.1")
    assert set(states(copy).values()) == {"done"} and not verify(str(copy), lambda _: None).damage


def test_without_that_command_the_folder_to_remove_is_named_and_removing_it_helps(copy: Path):
    from curation.rundir.run import Run

    (labels(copy) / next(iter(list_version_files(io.find_latest(str(labels(copy))))))).unlink()
    with pytest.raises(RunDirError, match=f"or remove {labels(copy).parent}: the same command then makes it again"):
        Run("test", Manifest.load(copy), room=lambda: {"CPU": 1.0}).do(stages())
    shutil.rmtree(labels(copy).parent)
    run(copy)
    assert set(states(copy).values()) == {"done"}


def test_only_what_depends_on_a_stage_is_done_again():
    assert find_dependents(["gen-0/trust"], stages()) == ["gen-0/trust", "gen-0/select"]
    assert find_dependents(["gen-0/select"], stages()) == ["gen-0/select"]


def test_digests_are_taken_by_the_writers_and_the_records_stay_small(made: Path):
    """A record holds the digest of a list, however many files there are."""
    ref = io.find_latest(str(labels(made)))
    record = Manifest.load(made).stages["gen-0/label"]
    listed = {made / path: content for path, content in (load(made, record.sealed) or {}).items()}
    named = list_version_files(ref)
    assert named and {labels(made) / name for name in named} < listed.keys()
    assert all(content == compute_quick_content(path) for path, content in listed.items())
    data = list((labels(made) / "data").iterdir())
    assert 0 < len(data) < NUM_FRAGMENTS and all(
        digest_in(path.name) == compute_quick_content(path).digest for path in data
    )
    assert len(json.dumps(record.sealed)) < 200
    folder = Path(outputs(made, "gen-0/trust")["trust"]["uri"]).parent
    assert [path.name for path in folder.iterdir()] == ["net"], "a list in it would change the digest of a model there"


@pytest.mark.parametrize("how", ["flip", "delete", "folder"])
def test_a_list_that_is_not_what_was_written_is_told_and_made_again(copy: Path, how: str):
    path = list_of(labels(copy).parent)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"xxh3", b"xxh4", 1)) if how == "flip" else path.unlink()
    if how == "folder":
        path.mkdir()
    (damage,) = verify(str(copy), lambda _: None).damage
    assert (damage.path, damage.stage) == (str(path.relative_to(copy)), "gen-0/label")
    assert damage.problem == "the list of the stage's files is missing, or its content changed"
    assert states(copy)["gen-0/label"] == "lost"
    if how == "folder":
        path.rmdir()
    data = set((labels(copy) / "data").iterdir())
    run(copy)
    assert data <= set((labels(copy) / "data").iterdir()), "no row is made again"
    assert not verify(str(copy), lambda _: None).damage and set(states(copy).values()) == {"done"}


def test_a_byte_that_changes_between_its_writing_and_the_record_is_found(tmp_path: Path):
    """What the record holds is the writer's digest, not one that is taken later."""
    uri, schema = str(tmp_path / "run" / "t.lance"), pa.schema([("row_id", pa.int64())])
    io.create(uri, schema)
    committer = commits.Committer(uri)
    (row,) = commits.write_fragment(pa.table({"row_id": np.arange(100)}), uri, schema).to_pylist()
    committer.add(row["fragments"], row["row_ids"])
    committer.flush()
    (path,) = (tmp_path / "run" / "t.lance" / "data").iterdir()
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    fragments = [fragment.metadata for fragment in lance.dataset(uri).get_fragments()]
    assert find_changed(uri, fragments) == [f"data/{path.name}"]
    manifest, made = Manifest.load(tmp_path / "run"), {"table": io.find_latest(uri).to_json()}
    manifest.record("label", {}, made, rows=100, seconds=1.0, sealed=manifest.seal("label", {}, made))
    assert [(item.path, item.problem) for item in verify(str(tmp_path / "run"), lambda _: None).damage] == [
        (f"t.lance/data/{path.name}", "its content changed")
    ]


def test_what_is_made_again_in_its_folder_gets_its_own_digest(tmp_path: Path):
    """Another stage's record holds the digest of what was there before."""
    manifest, path = Manifest.load(tmp_path), tmp_path / "fit-0" / "net"
    path.parent.mkdir()
    inputs: dict[str, object] = {}
    path = Path(manifest.directory_of("fit", inputs)) / "net"
    path.parent.mkdir()
    for text in ("first", "other"):
        path.write_text(text)
        for name in ("fit", "copy") if text == "first" else ("fit",):
            made = {"net": str(path)}
            manifest.record(name, inputs, made, rows=1, seconds=1.0, sealed=manifest.seal(name, inputs, made))
    listed = load(tmp_path, manifest.stages["fit"].sealed)
    assert listed == {str(path.relative_to(tmp_path)): compute_quick_content(path)}


def test_added_columns_have_digests(tmp_path: Path, local_ray):
    ids_N = np.arange(100)
    ref = io.write(pa.table({"row_id": ids_N}, schema=pa.schema([("row_id", pa.int64())])), str(tmp_path / "t.lance"))
    added = pa.schema([("twice", pa.int64())])

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:  # here, so that a worker need not import this file
        return pa.record_batch([pa.array(2 * batch["row_id"].to_numpy())], schema=added)

    after = columns.add_columns(ref, ["row_id"], added, twice)
    (new,) = list_version_files(after).keys() - list_version_files(ref).keys()
    assert digest_in(new) == compute_quick_content(tmp_path / "t.lance" / new).digest
    assert list_version_files(ref).keys() < list_version_files(after).keys() and io.read(after, ["row_id"]).equals(
        io.read(ref)
    )
    again = columns.add_columns(after, ["row_id"], added, twice)
    assert io.read(again).equals(io.read(after)) and again != after
    newest = tmp_path / "t.lance" / make_manifest_names(again.version)[0]
    newest.write_bytes(newest.read_bytes()[:-5])  # no version follows it
    mended = columns.add_columns(after, ["row_id"], added, twice)
    assert io.read(mended).equals(io.read(after)) and newest.with_name(f"{newest.name}.torn").exists()


@pytest.mark.long
def test_in_an_object_store_one_listing_tells_what_is_there(tmp_path: Path):
    with object_store() as store:
        home = to_place(store.url("sealed/run"))
        run(home)
        assert not verify(str(home), lambda _: None).damage
        manifest = Manifest.load(home)
        before = store.counts()["GET"]
        assert not manifest.lost
        assert store.counts()["GET"] - before <= 1 + len(manifest.stages)
        export = to_place(outputs(home, "gen-0/select")["jsonl"])
        content = export.read_bytes()
        export.unlink()
        run(home)
        assert export.read_bytes() == content
        export.put(content.replace(b"row 1", b"row X", 1))
        (damage,) = verify(str(home), lambda _: None).damage
        assert damage.path.endswith("trust.jsonl") and damage.problem == "its content changed"


def test_a_version_that_cannot_be_read_says_what_is_wrong_with_it(tmp_path: Path):
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"row_id": [1, 2, 3]}), uri)
    with pytest.raises(TableError, match=r"version 3: a file of a table is missing \(\S+3\.manifest\)$"):
        list_version_files(TableRef(uri=uri, version=3))
    (version,) = (tmp_path / "t.lance" / "_versions").glob("*.manifest")
    version.write_bytes(version.read_bytes()[:-20])
    with pytest.raises(TableError, match=r"version 1: a file of a table is damaged, and cannot be read$"):
        list_version_files(TableRef(uri=uri, version=1))


def test_an_error_of_lance_is_put_into_our_words(tmp_path: Path):
    ref = io.write(pa.table({"row_id": np.arange(10)}), str(tmp_path / "t.lance"))
    with pytest.raises(ValueError, match="rust") as version:
        lance.dataset(ref.uri, version=9)
    assert describe_lance_error(version.value).startswith(
        "a file of a table is missing ("
    ) and ".rs" not in describe_lance_error(version.value)
    (data,) = (tmp_path / "t.lance" / "data").iterdir()
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with pytest.raises((OSError, ValueError)) as cut:
        io.read(ref)
    assert describe_lance_error(cut.value) == "a file of a table is damaged, and cannot be read"
    assert describe_lance_error(ValueError("x")) is None
    full = OSError("LanceError(IO): No space left on device (os error 28), rust/lance-io/src/local.rs:12:3")
    assert describe_lance_error(full) == "LanceError(IO): No space left on device (os error 28)"
