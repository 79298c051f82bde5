"""Rows that a training left out: named on the terminal, listed in a table that ``curate inspect`` shows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from curation.cli import main
from curation.config import DomainConfig, SftConfig
from curation.refs import ModelRef
from curation.rundir.manifest import Manifest
from curation.stages import training
from curation.stages.training import Adapt
from curation.tables import io, schemas

ROWS = [("What is 1 + 1?", "2"), (None, None), ("What is 2 + 2?", "4"), ("What is 3 + 3?", "6"), (None, None)]
ERRORS = [None, "null_field: problem is null", None, None, "no_gold: answer \x1b[31m" + "x" * 200]
KNOWN = {12: "max_length: prompt and answer have more than 9 tokens", 11: ERRORS[1], 14: ERRORS[4]}


def test_rows_that_a_teacher_is_not_adapted_on_are_listed_with_their_reasons(tmp_path: Path, monkeypatch: Any):
    columns = {
        "row_id": list(range(10, 15)),
        "problem": [problem for problem, _ in ROWS],
        "gold": [gold for _, gold in ROWS],
        "error": ERRORS,
    }
    schema = schemas.make_examples_schema(pa.schema([pa.field("problem", pa.string())]), gold=True)
    table = pa.table([columns.get(field.name, [None] * 5) for field in schema], schema=schema)
    examples = io.write(table, str(tmp_path / "adapt.lance"))
    manifest = Manifest.load(tmp_path / "run")
    said: list[str] = []
    task = SimpleNamespace(
        name="gen-0/teacher",
        directory=manifest.directory / "gen-0" / "teacher-12345678",
        manifest=manifest,
        say=said.append,
    )
    given: list[list[int]] = []

    def train(self: Any, task: Any, trained_by: str, rows: Any, read: Any, left_out: dict[int, str]) -> Any:
        given.append(io.read(rows)["row_id"].to_pylist())
        return training.list_left_out(task, {**left_out, 12: KNOWN[12]}, num_given=5)

    monkeypatch.setattr(training.Training, "_train", train)
    domain = DomainConfig.model_validate({"name": "math", "instruction": ""})
    recipe = SftConfig(max_length=9)
    stage = Adapt(name=task.name, base=ModelRef(base="x"), examples=examples, domain=domain, recipe=recipe, seed=0)
    ref = stage.run(task)
    assert given == [[10, 12, 13]]
    (line,) = said
    assert line.startswith("3 of 5 rows are left out: row 11 (null_field: problem is null), row 12 (max_length: prompt")
    assert "\x1b" not in line and f"`curate inspect {manifest.directory} gen-0/teacher` lists them" in line
    manifest.record("gen-0/teacher", {}, {"left_out": ref.to_json()}, rows=3, seconds=1.0)
    sample = io.read(ref).to_pylist()
    assert {row["row_id"]: row["error"] for row in sample} == dict(sorted(KNOWN.items()))
    text = CliRunner().invoke(main, ["inspect", str(manifest.directory), "gen-0/teacher"]).stdout
    assert "max_length" in text and "null_field" in text and "no_gold" in text
