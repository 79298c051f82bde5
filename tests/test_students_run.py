"""A whole run with several students of one selection, and a further one that is added to it when it is finished."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from benchmarks.recorded import planned
from curation import run
from curation.cli import main
from curation.commands.validate import check
from curation.config.load import load_config
from curation.domains.grading import read_grades
from curation.extras.plan.planning import make_plan
from curation.extras.tracking.publish import make_entry
from curation.refs import TableRef

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
ARMS = ["naive", "trust"]
NUM_TEST = 40
CONFIG: dict[str, Any] = {
    "name": "several",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "source": {"from": "puzzles", "rows": 600},
        "test": {"from": "puzzles", "rows": NUM_TEST},
        "pool": {"from": "puzzles", "rows": 300},
        "overlap": "drop",
        "audit": True,
    },
    "teacher": {
        "model": {"path": str(ROOT / "examples/bases/teacher")},
        "states": ["output_last"],
        "decoding": {"max_tokens": 4},
    },
    "trust": {"kind": "linear_probe"},
    "selection": {"budget": {"n": 20}, "arms": ARMS},
    "student": {"preset": "scratch", "epochs": 1, "learning_rate": 1e-4},
    "generations": [
        {
            "student": {"path": str(ROOT / "examples/bases/student")},
            "students": {"tiny": {"model": {"init": {"hidden_size": 32, "num_layers": 1}}}},
        }
    ],
    "evaluation": {"decoding": {"max_tokens": 4}},
}
TINY = {
    "gen-0-tiny/student-base",
    *(f"gen-0-tiny/student-{arm}" for arm in ARMS),
    *(f"gen-0-tiny/{kind}-{model}" for kind in ("test", "grade-test") for model in ("base", *ARMS)),
}
FAST = {name.replace("tiny", "fast") for name in TINY if not name.endswith("-base")}  # its base is tested already


def curate(*arguments: object, code: int = 0) -> str:
    found = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == code, found.output
    return found.output


def right(stage: dict[str, Any]) -> float:
    return float(read_grades(TableRef.from_json(stage["outputs"]["grades"])).correct_N.mean())


@pytest.mark.timeout(1200)
def test_students_of_one_selection_and_one_that_is_added(local_ray: Any, tmp_path: Path) -> None:
    directory, path = tmp_path / "run", tmp_path / "several.yaml"

    given = copy.deepcopy(CONFIG)

    def written() -> Path:
        path.write_text(yaml.safe_dump(given | {"run_dir": str(directory)}))
        return path

    def stages() -> dict[str, dict[str, Any]]:
        return planned(directory)

    config = load_config(written())
    assert "student 0 tiny: qwen3 from scratch, 1 layers of 32" in [line.text for line in check(config)]
    assert {stage.name for stage in make_plan(config, probe=False).stages} > TINY
    report = run(config)
    before = stages()
    assert before.keys() > TINY and not before.keys() & FAST
    (tiny,) = report["students"]
    assert tiny["name"] == "tiny" and list(tiny["training"]) == ARMS
    # Every number is the further student's own, counted here from its graded answers.
    assert tiny["base"]["value"] == right(before["gen-0-tiny/grade-test-base"])
    for arm, first in zip(tiny["arms"], report["arms"], strict=True):
        own = right(before[f"gen-0-tiny/grade-test-{arm['name']}"])
        assert arm["accuracy"]["value"] == own and arm["accuracy"]["n"] == NUM_TEST
        assert first["accuracy"]["value"] == right(before[f"gen-0/grade-test-{first['name']}"])
        assert arm["num_selected"] == first["num_selected"] and arm["purity"] == first["purity"]
        pair = tiny["against_first"][arm["name"]]
        assert pair["difference"] == pytest.approx(own - first["accuracy"]["value"]) and pair["n"] == NUM_TEST
        against_base = own - tiny["base"]["value"]
        assert arm["against_base"]["difference"] == pytest.approx(against_base)
    page = (directory / "report.html").read_text()
    assert "<h3>Students</h3>" in page and "tiny minus the one that teaches" in page
    assert any("On the same rows the student tiny answers" in sentence for sentence in report["headline"])
    numbers = make_entry(report, str(directory), {}).numbers
    assert numbers["gen-0/students/tiny/trust/accuracy"] == tiny["arms"][1]["accuracy"]["value"]
    assert "gen-0/students/tiny/base/accuracy" in numbers

    # It is exported by its name, beside the one that teaches.
    written_ = curate("export-student", directory, "--student", "tiny", "--arm", "naive", "-o", tmp_path / "tiny")
    assert "full model of gen-0-tiny/student-naive" in written_
    lineage = json.loads((tmp_path / "tiny" / "lineage.json").read_text())
    assert lineage["student"]["name"] == "tiny" and lineage["selection"]["num_rows"] == 20
    assert lineage["numbers"]["accuracy"]["base"] == tiny["base"]
    assert lineage["numbers"]["accuracy"]["student"] == tiny["arms"][0]["accuracy"]
    assert "# several: student tiny of the arm naive" in (tmp_path / "tiny" / "README.md").read_text()
    missing = curate("export-student", directory, "--student", "huge", "-o", tmp_path / "huge", code=2)
    assert "--student huge: the students of generation 0 that do not teach are tiny" in missing

    # A third one, on the base of the first by a recipe of its own: nothing but its students is done.
    (generation,) = given["generations"]
    generation["students"]["fast"] = {"model": generation["student"], "recipe": {"learning_rate": 1e-2}}
    grown = load_config(written())
    left = {stage.name for stage in make_plan(grown, probe=False).stages if stage.state != "done"}
    assert left == FAST
    report = run(grown)
    after = stages()
    assert {name: after[name] for name in before} == before and after.keys() - before.keys() == FAST
    assert [student["name"] for student in report["students"]] == ["fast", "tiny"]  # as the file is dumped, sorted
    fast, again = report["students"]
    assert again == tiny and fast["base"] == report["base"]
