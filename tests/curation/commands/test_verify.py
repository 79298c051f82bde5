"""``curate verify``: every changed byte is found, and what to do about it is said and works."""

import json
import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.fuzz.sealed_run import NUM_LEFT, rows, run
from curation.cli import main
from curation.commands.verify import Checker, Verified, verify
from curation.refs import iter_table_refs
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import load
from curation.storage.digest import Content
from curation.tables import io
from curation.tables.files import write_file
from curation.tables.versions import list_version_files

NUM_FLIPS = 200


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("verified") / "run"
    run(directory)
    return directory


def checked(directory: Path):
    return verify(str(directory), lambda _: None)


def files(directory: Path) -> dict[str, list[Path]]:
    """The files that the records name, by kind."""
    found = defaultdict(set)
    for record in Manifest.load(directory).stages.values():
        found["digests"].add(directory / record.sealed["sums"])
        for name in load(directory, record.sealed):
            parts = {"data": "data", "_deletions": "deletions", "_versions": "versions", "net": "weights"}
            found[parts.get(Path(name).parent.name, "exports")].add(directory / name)
        for ref in iter_table_refs(record.outputs):
            assert {Path(ref.uri) / name for name in list_version_files(ref)} <= found["data"] | found["deletions"]
    found["manifest"] = {directory / "manifest.json"}
    return {kind: sorted(paths) for kind, paths in found.items()}


def test_a_run_that_nothing_happened_to_is_as_it_was_written(made: Path):
    found = checked(made)
    kinds = files(made)
    named = {path for paths in kinds.values() for path in paths}
    assert (found.damage, found.unsealed, found.files) == ([], [], len(named))
    assert found.rows == 2 * NUM_LEFT + 40, "of the stages"
    assert found.bytes == sum(path.stat().st_size for path in named - {*kinds["digests"], *kinds["manifest"]})
    result = CliRunner().invoke(main, ["verify", str(made)])
    assert result.exit_code == 0 and result.output.strip().endswith("rows/s: all as they were written")


@pytest.mark.long
def test_every_single_flipped_byte_is_found(made: Path):
    rng, kinds = random.Random(0), files(made)
    assert set(kinds) == {"data", "deletions", "versions", "digests", "weights", "exports", "manifest"}
    for index in range(NUM_FLIPS):
        kind = sorted(kinds)[index % len(kinds)]
        path = rng.choice(kinds[kind])
        content = path.read_bytes()
        place = rng.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ rng.randrange(1, 256)]) + content[place + 1 :])
        try:
            damage = checked(made).damage
        finally:
            path.write_bytes(content)
        assert str(path.relative_to(made)) in {item.path for item in damage}, (kind, path, place)
    assert checked(made).damage == []


def test_a_missing_and_a_cut_file_are_told_with_the_stages_to_redo(made: Path):
    kinds = files(made)
    data, export = kinds["data"][0], kinds["exports"][0]
    kept = [(path, path.read_bytes()) for path in (data, export)]
    data.unlink()
    export.write_bytes(kept[1][1][:-3])
    try:
        result = CliRunner().invoke(main, ["verify", str(made), "--json"])
        told = json.loads(result.stdout)
        page = CliRunner().invoke(main, ["verify", str(made)]).output
    finally:
        for path, content in kept:
            path.write_bytes(content)
    problems = {item["path"]: item for item in told["damage"]}
    assert result.exit_code == 1
    assert problems[str(data.relative_to(made))]["problem"] == "is missing"
    cut = problems[str(export.relative_to(made))]
    assert cut["problem"] == f"has {len(kept[1][1]) - 3:,} bytes, and had {len(kept[1][1]):,} when it was written"
    assert cut["stage"] == "gen-0/select" and cut["redo"] == f"curate run {made} --redo gen-0/select"
    assert f"or make it again: curate run {made} --redo gen-0/select" in page and "Traceback" not in page


def test_a_version_that_a_power_cut_tore_is_told_of_a_table_that_is_being_filled(tmp_path: Path):
    run(directory := tmp_path / "run")
    table = directory / "gen-0" / "label-pool-0123" / "labels.lance"
    schema = rows(np.arange(3)).schema
    io.create(str(table), schema)
    newest = min((table / "_versions").glob("*.manifest"))
    assert not checked(directory).damage
    newest.write_bytes(newest.read_bytes()[:-20])
    (damage,) = checked(directory).damage
    assert damage.path == str(newest.relative_to(directory)) and "was cut off while it was written" in damage.problem
    assert damage.redo == "`curate run` goes on from the version before it"
    io.create(str(table), schema)
    assert not checked(directory).damage


def test_files_whose_content_cannot_be_compared_are_not_said_to_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A copy on a disk of an object that was uploaded in parts: the store's tag is no digest of its content."""
    (tmp_path / "parts").write_bytes(b"abc")
    (tmp_path / "whole").write_bytes(b"abc")
    found = Verified(target=str(tmp_path))
    checker = Checker(home=tmp_path, found=found, redo=str)
    md5 = "900150983cd24fb0d6963f7d28e17f72"
    checker.add_files({"parts": Content(3, f'tag:"{md5}-2"'), "whole": Content(3, f'tag:"{md5}"')}, 2)
    checker.read(lambda _: None)
    assert not found.damage and found.only_sizes == 1
    monkeypatch.setattr("curation.commands.verify.verify", lambda *_: found)
    page = CliRunner().invoke(main, ["verify", str(tmp_path)]).output
    assert "compared by size alone, not verified: 1 file" in page and page.strip().endswith(
        "all else as it was written"
    )


def test_what_is_not_of_ours_is_refused_in_a_line(tmp_path: Path):
    result = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert result.exit_code == 2 and "is not a run directory (no manifest.json)" in result.output


def test_a_changed_manifest_is_refused_by_all_who_read_it(made: Path, tmp_path: Path):
    """It still parses, and one number of it is another."""
    copy = tmp_path / "run"
    shutil.copytree(made, copy)
    text = (copy / "manifest.json").read_text()
    changed = text.replace(f'"rows": {NUM_LEFT},', f'"rows": {NUM_LEFT - 1},', 1)
    assert changed != text and json.loads(changed)
    (copy / "manifest.json").write_text(changed)
    result = CliRunner().invoke(main, ["inspect", str(copy)])
    assert result.exit_code == 2 and "is damaged, its text does not match its digest" in result.output
    (damage,) = checked(copy).damage
    assert damage.path == "manifest.json"


def test_the_output_of_a_filter_is_read_with_its_own_run(tmp_path: Path):
    home = tmp_path / "out"
    run(home / "_curation")
    table = rows(np.arange(50))
    written = write_file(table.to_batches(), table.schema, home / "data" / "part-01234567-00000.parquet", "parquet")
    content = {"files": [{**written.to_json(), "path": f"data/{written.path}"}]}
    (home / "filter.json").write_text(json.dumps(content))
    assert checked(home).damage == []
    path = home / "data" / written.path
    path.write_bytes(path.read_bytes()[:-5] + b"?" + path.read_bytes()[-4:])
    (damage,) = checked(home).damage
    assert (damage.path, damage.problem) == (f"data/{written.path}", "its content changed")
    export = next((home / "_curation").glob("gen-0/select-*/trust.jsonl"))
    export.unlink()
    (damage,) = (item for item in checked(home).damage if item.problem == "is missing")
    assert damage.path == str(export.relative_to(home)) and damage.redo.startswith(
        "restore the file, or give `curate filter` another"
    )


def test_a_trust_package_is_read(tmp_path: Path):
    from tiny_package import tiny_package

    package = Path(tiny_package(tmp_path / "package").uri)
    assert checked(package).damage == [] and checked(package).files > 2
    weights = package / "trust" / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (damage,) = checked(package).damage
    assert "weights.safetensors has" in damage.problem and "copy it again" in damage.redo
