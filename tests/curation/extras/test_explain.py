"""``curate explain``: a row of a run by its id, with hostile texts, unparsed and failed labels; what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from review_run import FIRST_ID, ReviewedRun, make_run, selected

from curation.cli import main
from curation.commands.export.run import RecordedRun
from curation.errors import TableError
from curation.refs import TableRef
from curation.rundir.graph import Position
from curation.rundir.manifest import Manifest
from curation.tables import io

NUM = 120


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReviewedRun:
    """A finished selection, with the records of the stages before it."""
    found = make_run(tmp_path_factory.mktemp("explain") / "run", num_rows=NUM, budget={"n": 20})
    source = {"path": "rows.jsonl", "id_column": "number"}
    config = {
        "name": "explained",
        "domain": "math",
        "sources": {"rows": source, "more": {"path": "more.csv"}},
        "splits": {"source": {"from": "more"}, "pool": {"from": "rows"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 20}, "arms": ["naive", "trust"]},
    }
    (found.directory / "config.yaml").write_text(yaml.safe_dump(config))
    manifest = Manifest.load(found.directory)
    kept = {"format": "jsonl", "index": 0, "num_rows": NUM, "size": 1, "modified": "1", "schema": {}, "marks": []}
    files = {"rows": [{"path": "/data/rows.jsonl", **kept}], "more": [{"path": "/data/more.csv", **kept, "index": 3}]}
    manifest.identify({"seed": 0}, files)
    manifest.save()
    choice = manifest.stages["gen-0/select"].inputs["choice"]
    tables = {"pool": choice["pool"], "source": choice["pool"]}
    teacher = {"base": "/models/weak", "revision": "0123abcd", "adapter": None}
    at = Position(generation=0, split="pool")
    records: tuple[tuple[str, str, Any, Any], ...] = (
        ("Label", "gen-0/label-pool", {"model": teacher}, {"labels": choice["labels"]}),
        ("Score", "gen-0/score-pool", {}, {"labels": choice["labels"]}),
    )
    manifest.record("prepare", {}, {"tables": tables}, rows=NUM, seconds=1.0, kind="Prepare")
    for kind, name, inputs, outputs in records:
        manifest.record(name, inputs, outputs, rows=NUM, seconds=1.0, kind=kind, at=at)
    return found


def explain(*arguments: object) -> str:
    found = CliRunner().invoke(main, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def refused(*arguments: object) -> str:
    found = CliRunner().invoke(main, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1, found.output
    return found.stderr


def test_a_row_is_told_with_trust_rank_and_cut(run: ReviewedRun) -> None:
    best = selected(run, "trust")[3]
    assert (
        f"row                  {best} of the split pool\nthe same id          of other files, in source: see"
        in explain(run.directory, best)
    )
    assert json.loads(explain(run.directory, best, "--split", "source", "--json"))["origin"]["source"] == "more"
    told = json.loads(explain(run.directory, best, "--json"))
    readable = {row_id: raw for row_id, raw in run.raw.items() if row_id not in run.unparsed | run.failed}
    ranking = sorted(readable, key=lambda row_id: -readable[row_id])
    assert ranking[3] == best
    (generation,) = told["generations"]
    arm = generation["arms"]["trust"]
    assert (arm["selected"], arm["rank"], arm["num_selected"]) == (True, 3, 20)
    assert arm["raw"] == pytest.approx(run.raw[best]) and arm["threshold"] == pytest.approx(readable[ranking[19]])
    assert generation["trust"]["trust"]["raw"] == pytest.approx(run.raw[best])
    assert generation["teacher"] == {"base": "/models/weak", "revision": "0123abcd", "adapter": None}
    assert generation["weak"]["label"] == arm["label"] and generation["correct"] is None
    origin = {"source": "rows", "file": "/data/rows.jsonl", "row": None, "id_column": "number"}
    assert told["origin"] == origin and told["split"] == "pool" and not told["has_audit"]
    text = explain(run.directory, best)
    assert "/models/weak, fingerprint 0123abcd" in text and f"/data/rows.jsonl, where number is {best}" in text
    assert "selected, rank 3 (of 20 selected, cut at raw score" in text and "; its raw score " in text
    assert "gold                 not known (the run has no audit set)" in text


def test_rows_that_were_not_selected_unparsed_or_failed(run: ReviewedRun) -> None:
    worst = min(set(run.raw) - run.unparsed - run.failed, key=lambda row_id: run.raw[row_id])
    assert "trust                not selected (of 20 selected, cut at raw score" in explain(run.directory, worst)
    text = explain(run.directory, min(run.unparsed))
    assert "weak label           unparsed" in text and "trust                not selected" in text
    failed = explain(run.directory, min(run.failed))
    assert "error                teacher_failed: x" in failed and "weak label" not in failed


def test_what_acts_in_a_terminal_is_escaped(run: ReviewedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    one = RecordedRun.one

    def hostile(self: RecordedRun, ref: TableRef, row_id: int, columns: list[str] | None = None) -> Any:
        row = one(self, ref, row_id, columns)
        return row and {**row, **({"completion": "\x1b[2J\u202e"} if "completion" in row else {})}

    monkeypatch.setattr(RecordedRun, "one", hostile)
    text = explain(run.directory, min(set(run.raw) - run.unparsed - run.failed))
    assert "\x1b" not in text and "\u202e" not in text and "[2J" in text


def test_a_row_by_position_is_found_in_its_file(run: ReviewedRun) -> None:
    found = RecordedRun.of(run.directory)
    assert found.origin((3 << 40) + 17, "source") == {
        "source": "more",
        "file": "/data/more.csv",
        "row": 17,
        "id_column": None,
    }
    assert found.origin((4 << 40) + 17, "source")["file"] is None


def test_what_cannot_be_told_is_refused_in_one_line(run: ReviewedRun, tmp_path: Path) -> None:
    assert f"no split of the run has a row {FIRST_ID + NUM}" in refused(run.directory, FIRST_ID + NUM)
    assert f"the split source has no row {FIRST_ID + NUM}" in refused(
        run.directory, FIRST_ID + NUM, "--split", "source"
    )
    assert "--split none: the run has the splits pool, source" in refused(run.directory, 3, "--split", "none")
    assert "'ten' is not a row id, a whole number" in refused(run.directory, "ten")
    assert "is not a row id" in refused(run.directory, 2**63) and "is not a row id" in refused(run.directory, "\u00b2")
    assert "is not a run directory" in refused(tmp_path, 3)
    (tmp_path / "config.yaml").write_text((run.directory / "config.yaml").read_text())
    manifest = Manifest.load(tmp_path)
    manifest.identify({"seed": 0}, {})
    manifest.save()
    with pytest.raises(TableError, match="has no rows yet, its stage prepare is not done"):
        RecordedRun.of(tmp_path)


def test_an_unfinished_run_says_what_is_missing(run: ReviewedRun, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run.directory / "config.yaml").read_text())
    before, manifest = Manifest.load(run.directory), Manifest.load(tmp_path)
    manifest.identify(before.identity, before.files)
    manifest.save()
    row_id = selected(run, "trust")[0]
    for name, words in (("prepare", "no stage has labelled rows"), ("gen-0/label-pool", "gen-0/select is not done")):
        record = before.stages[name]
        at = Position(**record.at)
        manifest.record(name, record.inputs, record.outputs, rows=1, seconds=1.0, kind=record.kind, at=at)
        assert words in explain(tmp_path, row_id)
    assert io.count(TableRef.from_json(before.stages["prepare"].outputs["tables"]["pool"])) == NUM
