"""A whole run that was moved, renamed or copied: nothing is done again, and the original stays as it was."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from benchmarks.recorded import recorded
from curation.cli import main
from curation.refs import TableRef, iter_table_refs
from curation.tables import io

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole_run]
NUM_SOURCE, NUM_POOL, N = 200, 200, 40


def curate(*words: object, code: int = 0) -> str:
    found = CliRunner().invoke(main, list(map(str, words)))
    assert found.exit_code == code, found.output
    return found.output


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def events(directory: Path, kind: str = "started") -> list[str]:
    lines = map(json.loads, (directory / "events.jsonl").read_text().splitlines())
    return [line["stage"] for line in lines if line["event"] == kind]


def keys(directory: Path) -> dict[str, str]:
    """The key of each stage but for versions of tables, which count commits, and the digests that name the versions."""
    stages = json.loads((directory / "manifest.json").read_text())["stages"]
    texts = {name: json.dumps(record["inputs"]) for name, record in stages.items()}
    changing = r'"(version|digest)": ("\w+"|\d+)|-[0-9a-f]{8}(?=[/"])'
    return {name: re.sub(changing, "", text) for name, text in texts.items()}


def selected(directory: Path) -> list[int]:
    table = recorded(directory)["gen-0/select"]["outputs"]["arms"]["trust"]["table"]
    ids: list[int] = io.read(TableRef.from_json(table), ["row_id"]).sort_by("row_id")["row_id"].to_pylist()
    return ids


@pytest.fixture(scope="module")
def made(local_ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over sums, half of whose labels are right, by a scripted teacher that logs what it is asked."""
    home = tmp_path_factory.mktemp("made")
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(NUM_SOURCE + NUM_POOL)]
    (home / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "name": "sums",
        "run_dir": str(home / "run"),
        "domain": "math",
        "sources": {"sums": {"path": str(home / "sums.jsonl")}},
        "splits": {"source": {"from": "sums", "rows": NUM_SOURCE}, "pool": {"from": "sums", "rows": NUM_POOL}},
        "teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
        "selection": {"budget": {"n": N}, "arms": ["naive", "internal_confidence", "trust"]},
    }
    (home / "sums.yaml").write_text(yaml.safe_dump(config))
    curate("run", home / "sums.yaml")
    curate("review", "draw", home / "run", "--num", 20)
    return home / "run"


def test_a_moved_run_goes_on(made: Path, tmp_path: Path) -> None:
    before, there = content(made), tmp_path / "runs" / "other"
    assert not any(str(made).encode() in before[name] for name in ("manifest.json", "review/trust/draw.json"))
    chosen = selected(made)
    shutil.copytree(made, tmp_path / "copy")
    (tmp_path / "runs").mkdir()
    (tmp_path / "copy").rename(there)
    held = made.rename(made.with_name("away"))  # nothing of the original can be read
    try:
        started = events(there)
        for place in (there, there / "config.yaml"):
            curate("run", place)
        assert events(there) == started and not made.exists()
        curate("verify", there)
        curate("clean", there, "--older-than", 0)
        curate("status", there)
        curate("report", there)
        curate("inspect", there)
        curate("review", "draw", there)
        curate("run", there, "--set", f"selection.budget.n={N // 2}")
        assert len(selected(there)) == N // 2 and set(selected(there)) < set(chosen)
        assert set(events(there)[len(started) :]) == {"gen-0/numbers", "gen-0/select", "gen-0/selected-shift"}
        refs = [
            ref for record in recorded(there).values() for ref in iter_table_refs([record["inputs"], record["outputs"]])
        ]
        assert refs and all(Path(ref.uri).is_relative_to(there) for ref in refs)
        curate("verify", there)
        package, pool = tmp_path / "package", tmp_path / "pool.jsonl"
        curate("export-trust", there, "-o", package)
        pool.write_text("\n".join(json.dumps({"problem": f"What is {n + 1} - {n}?"}) for n in range(500, 600)))
        keep = ("--keep", 10, "--set", "anyway=true", "--set", "on_shift=ignore")
        curate("filter", package, pool, "-o", tmp_path / "kept", *keep)
        curate("verify", package)
        kept = (tmp_path / "kept").rename(tmp_path / "kept-2")
        done = events(kept / "_curation")
        curate("verify", kept)
        curate("filter", package, pool, "-o", kept, *keep)
        curate("clean", kept, "--older-than", 0)
        assert events(kept / "_curation") == done and not (tmp_path / "kept").exists()
    finally:
        held.rename(made)
    assert content(made) == before
    curate("verify", made)
    assert selected(made) == chosen


def test_a_run_that_is_reached_by_a_link_is_the_same(made: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made)
    started, before = events(made), (made / "manifest.json").read_bytes()
    curate("run", tmp_path / "link")
    curate("run", tmp_path / "link" / "config.yaml")
    assert events(made) == started and json.loads((made / "manifest.json").read_bytes()) == json.loads(before)


def test_two_directories_of_one_configuration_have_equal_keys(made: Path, tmp_path: Path) -> None:
    curate("run", made.parent / "sums.yaml", "--set", f"run_dir={tmp_path / 'deeper' / 'twin'}")
    ours, theirs = (keys(directory) for directory in (made, tmp_path / "deeper" / "twin"))
    assert ours == theirs and len(ours) > 5
