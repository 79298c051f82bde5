"""A run directory that was moved, copied or renamed is a run of its own: it goes on there and touches no other."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from click.testing import CliRunner
from object_store import object_store

from benchmarks.fuzz.sealed_run import LABEL_KEY, NUM_FRAGMENTS, break_off, outputs, run, started
from curation.cli import main
from curation.commands.verify import verify
from curation.errors import RunDirError
from curation.rundir.manifest import Manifest
from curation.storage import lease
from curation.storage.inside import from_record, run_around, to_record
from curation.storage.paths import Place, Remote, to_place
from curation.trust import saved


@pytest.fixture
def made(tmp_path: Path) -> Path:
    run(tmp_path / "original")
    return tmp_path / "original"


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def damage(directory: Place) -> list[object]:
    return list(verify(str(directory), lambda _: None).damage)


def linked(directory: Path, there: Path) -> None:
    there.symlink_to(directory)


def moved_below(directory: Path, there: Path) -> None:
    """Move it into a folder that is reached by a link."""
    (there.parent / "real").mkdir()
    there.parent.joinpath("link").symlink_to("real")
    shutil.move(directory, there.parent / "real" / "run")
    there.symlink_to(there.parent / "link" / "run")


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree, Path.rename, linked, moved_below])
def test_a_run_goes_on_wherever_it_is(made: Path, tmp_path: Path, how: Callable[[Path, Path], object]) -> None:
    before, events = outputs(made, "gen-0/label")["labels"]["version"], started(made)
    assert str(tmp_path) not in (made / "manifest.json").read_text()
    how(made, there := tmp_path / "there")
    assert damage(there) == []
    known = run(there)
    assert started(there) == events  # nothing was to do
    assert known["gen-0/label"]["labels"] == outputs(there, "gen-0/label")["labels"]
    assert Path(known["gen-0/label"]["labels"]["uri"]).is_relative_to(there)
    kept = content(there)
    told = CliRunner().invoke(main, ["clean", str(there), "--older-than", "0"])
    assert told.exit_code == 0 and before in {item["version"] for item in lance.dataset(labels_of(there)).versions()}
    assert {name for name in set(kept) - set(content(there)) if ".lance/" not in name} == set()
    assert damage(there) == []


def labels_of(directory: Path) -> str:
    return str(outputs(directory, "gen-0/label")["labels"]["uri"])


def test_a_copy_that_is_driven_on_leaves_the_original_as_it_is(made: Path, tmp_path: Path) -> None:
    before, new = content(made), shutil.copytree(made, tmp_path / "new")
    Manifest.load(new).redo(["gen-0/trust", "gen-0/select"])
    run(new)
    lance.dataset(labels_of(new)).delete("row_id = 8")
    assert content(made) == before and damage(made) == [] and damage(new) == []
    assert outputs(new, "gen-0/trust") != outputs(made, "gen-0/trust")
    shutil.rmtree(made)
    assert damage(new) == []
    events = started(new)
    run(new)
    assert started(new) == events


def test_unfinished_work_goes_on_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curation.rundir.run.remove_older", lambda ref, pinned: None)  # the small fragments stay
    break_off(original := tmp_path / "original")
    before, new = content(original), tmp_path / "new"
    shutil.copytree(original, new)
    folder = Path(str(Manifest.load(new).directory_of("gen-0/label", LABEL_KEY)))
    files = set(content(folder))
    run(new)
    assert files - set(content(folder)) == set() and len(files) > NUM_FRAGMENTS // 2
    assert damage(new) == [] and content(original) == before


def test_a_key_does_not_depend_on_where_the_directory_is(tmp_path: Path) -> None:
    names = []
    for home in (tmp_path / "one", tmp_path / "another" / "two"):
        manifest = Manifest.load(home)
        key = {"labels": {"uri": f"{home}/gen-0/labels.lance", "version": 3}, "text": f"{home}-2", "model": "./hub"}
        manifest.record("gen-0/trust", key, {"at": str(home)}, rows=1, seconds=0)
        names.append(manifest.directory_of("gen-0/trust", {"model": f"{home}/m"}).name)
        again = Manifest.load(home).stages["gen-0/trust"]
        assert again.inputs == key and again.outputs == {"at": str(home)}
    assert names[0] == names[1]


@pytest.mark.parametrize("home", [Path("/runs/a"), to_place("s3://bucket/runs/a")])
def test_a_text_that_looks_like_a_relative_path_is_read_as_it_was(home: Place) -> None:
    texts = ["./x", "././x", ".", "", "./", "x/./y", f"{home}", f"{home}/x", f"{home}x", f"{home}/x/", f"see {home}/x"]
    value = {"list": texts, "./key": 1, "deep": {"none": None, "n": 1.5, "same": [*texts, [True]]}}
    kept = to_record(value, home)
    assert from_record(json.loads(json.dumps(kept)), home)["deep"]["same"][:9] == [*texts[:9]]
    assert from_record(kept, home)["./key"] == 1 and kept["list"][7] == "./x" and kept["list"][10] == texts[10]
    assert from_record(kept, to_place("/elsewhere"))["list"][6:8] == ["/elsewhere", "/elsewhere/x"]


def test_the_run_around_a_path(made: Path, tmp_path: Path) -> None:
    assert run_around(made / "gen-0" / "trust-0a1b2c3d" / "net") == made
    assert run_around(tmp_path / "model") == tmp_path / "model" and run_around(Path("model")) == Path("model")


def test_a_fit_has_the_same_digest_in_every_copy(tmp_path: Path) -> None:
    import torch

    ref = saved.save(tmp_path / "net", {"w": torch.zeros(17 << 20)}, {"kind": "large"})  # above 64 MiB
    shutil.copytree(tmp_path / "net", tmp_path / "copy", copy_function=shutil.copyfile)  # with other times, as cp -r
    assert saved.pin(tmp_path / "copy").digest == ref.digest
    with (tmp_path / "copy" / saved.WEIGHTS).open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    assert saved.pin(tmp_path / "copy").digest != ref.digest


@pytest.mark.long
def test_the_lease_of_the_original_does_not_lock_its_copy_for_good(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was made under a driver has its lease, which nobody renews: it is taken over once it ran out."""
    monkeypatch.setattr(lease, "MARGIN_SECONDS", 0.5)
    with lease.hold(made, seconds=3.0) as held:
        copy = shutil.copytree(made, tmp_path / "copy")
        with pytest.raises(RunDirError, match="another run is using it"), lease.hold(copy, seconds=3.0):
            pass
        begun = time.monotonic()
        with lease.hold(copy, wait=True, seconds=3.0):
            held.still_held()
            assert time.monotonic() - begun < 30
            run(copy)
        assert held.loss is None
    assert damage(copy) == []


@pytest.mark.long
def test_a_run_goes_on_in_an_object_store_and_back(made: Path, tmp_path: Path) -> None:
    events = started(made)
    with object_store() as server:
        there = Remote(server.url("runs/synchronised"))
        for name, data in content(made).items():
            (there / name).put(data)  # as `aws s3 sync` does
        run(there)
        assert damage(there) == []
        Manifest.load(there).redo(["gen-0/select"])
        run(there)
        assert damage(there) == []
        back = tmp_path / "back"
        for entry in there.entries():
            (back / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (back / entry.path).write_bytes((there / entry.path).read_bytes())
    assert damage(back) == [] and damage(made) == []
    known = Manifest.load(back).stages
    assert known["gen-0/label"].fingerprint == Manifest.load(made).stages["gen-0/label"].fingerprint
    run(back)
    assert started(made) == events and str(server.url("")) not in (back / "manifest.json").read_text()
    parquet = Path(outputs(back, "gen-0/select")["parquet"])
    parquet.write_bytes(parquet.read_bytes()[:-1] + b"\0")
    assert [item.path for item in verify(str(back), lambda _: None).damage] == [str(parquet.relative_to(back))]
