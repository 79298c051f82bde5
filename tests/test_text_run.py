"""Free text, graded by a program: the configuration of docs/data-forms.md, to a report by a scripted teacher."""

import json
import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from test_docs import DOCS, blocks

from benchmarks.recorded import recorded
from curation.cli import main
from curation.extras.checker import launch

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole_run, pytest.mark.quick]

NUM_LABELLED, NUM_POOL = 90, 150
ANSWERS = ["10", "It is 11.", "ten"]
"""Of the teacher, by row id; the program crashes on the last."""


def curate(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def done(*arguments: str) -> str:
    result = curate(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def page() -> tuple[str, str]:
    """The program and the configuration of the page."""
    text = (DOCS / "data-forms.md").read_text().split("## Free text, checked by a program")[1].split("\n## ")[0]
    (program,) = (text for language, text in blocks_of(text) if language == "python")
    (config,) = (text for language, text in blocks_of(text) if language == "yaml")
    return program, config


def blocks_of(text: str) -> list[tuple[str, str]]:
    return [found for found in blocks(DOCS / "data-forms.md") if found[1] in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    program, config = page()
    for name, num in (("labelled", NUM_LABELLED), ("unlabelled", NUM_POOL)):
        is_labelled = name == "labelled"
        a_N, sum_N = np.arange(num) + 1_000 * is_labelled, rng.integers(10, 12, num)
        lines = [f"{a},{sum_ - a}" + f",{sum_}" * is_labelled for a, sum_ in zip(a_N, sum_N, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,sum" if is_labelled else "a,b", *lines]) + "\n")
    (folder / "check.py").write_text(program)
    made: dict[str, Any] = yaml.safe_load(config)
    made["run_dir"] = str(folder / "run")
    made["teacher"] = {"backend": "scripted", "scripted": {"completions": ANSWERS}}
    made["selection"]["arms"] = ["naive", "internal_confidence", "trust"]
    (folder / "sums.yaml").write_text(yaml.safe_dump(made))
    done("validate", str(folder / "sums.yaml"))
    done("run", str(folder / "sums.yaml"))
    return folder


def table(folder: Path, stage: str, name: str) -> list[dict[str, Any]]:
    (newest,) = sorted(
        (folder / "run" / "gen-0").glob(f"{stage}-*/{name}.lance"), key=lambda path: path.stat().st_mtime
    )[-1:]
    return lance.dataset(str(newest)).to_table().sort_by("row_id").to_pylist()


def outputs(folder: Path, stage: str) -> Any:
    return recorded(folder / "run")[f"gen-0/{stage}"]["outputs"]


def test_grades_are_the_programs_and_rows_that_crash_it_are_error_rows(folder: Path) -> None:
    (prepared,) = (folder / "run").glob("prepare-*/source.lance")
    rows = {row["row_id"]: row for row in lance.dataset(str(prepared)).to_table().to_pylist()}
    labels, grades = table(folder, "label-source", "labels"), table(folder, "grade-source", "grades")
    assert [row["row_id"] for row in grades] == [row["row_id"] for row in labels] and len(grades) == NUM_LABELLED
    assert {row["label"] for row in labels} == set(ANSWERS)
    for label, grade in zip(labels, grades, strict=True):
        row = rows[label["row_id"]]
        fields = json.loads(row["fields"])
        assert row["question"] == f"{fields['a']} + {fields['b']} = ?"
        right = {"10": "10", "It is 11.": "11", "ten": None}[label["label"]] == row["gold"]
        assert grade["correct"] is right
        assert (grade["problem"] or "").startswith("check_failed: ") is (label["label"] == "ten")
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["generations"][0]["arms"]


def test_another_program_grades_again_and_labels_stay(folder: Path) -> None:
    copy = folder / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("copy"))
    config = yaml.safe_load((copy / "sums.yaml").read_text()) | {"run_dir": str(copy / "run")}
    config["sources"] = {name: {"path": str(folder / item["path"])} for name, item in config["sources"].items()}
    (copy / "sums.yaml").write_text(yaml.safe_dump(config))
    before = {stage: outputs(copy, stage) for stage in ("label-source", "label-pool", "grade-source")}
    (copy / "check.py").write_text(
        "import sys\nfor line in sys.stdin:\n    print('ten' in line and 'true' or 'false')\n"
    )
    done("run", str(copy / "sums.yaml"))
    assert (
        outputs(copy, "label-source") == before["label-source"] and outputs(copy, "label-pool") == before["label-pool"]
    )
    assert outputs(copy, "grade-source") != before["grade-source"]
    labels, grades = table(copy, "label-source", "labels"), table(copy, "grade-source", "grades")
    assert [row["correct"] for row in grades] == [row["label"] == "ten" for row in labels]
    config["domain"]["check"] = {"number": {"absolute": 0.5}}
    (copy / "sums.yaml").write_text(yaml.safe_dump(config))
    done("run", str(copy / "sums.yaml"))  # a rule in place of the program
    assert outputs(copy, "label-pool") == before["label-pool"]
    problems = {row["problem"] for row in table(copy, "grade-source", "grades")}
    assert problems == {None}


def test_bad_configurations_are_named_before_anything_is_labelled(folder: Path) -> None:
    path = str(folder / "sums.yaml")
    for setting, words in (
        ("domain.prompt='{{ A1 }} + {{ b }}'", "has no column 'A1' (it has: a, b, sum); did you mean 'a'?"),
        ("domain.reference=summe", "summe, which the row does not have; did you mean 'sum'?"),
        ("domain.prompt='{{ a }} {{ sum }}'", "the teacher would see it"),
        ("domain.prompt='{{ a'", "domain.prompt: line 1"),
        ("domain.prompt='{% for i in range(100000) %}{{ a }}{% endfor %}'", "Call cannot be used in a prompt"),
        ("domain.check={command: [python, missing.py]}", "the file 'missing.py' is not there"),
        ("domain.check=fuzzy", "check: 'fuzzy' is none of equal"),
    ):
        result = curate("validate", path, "--set", f"run_dir={folder / 'none'}", "--set", setting)
        assert result.exit_code == 2 and words in result.output, (setting, result.output)


def test_the_status_can_be_told_where_the_program_is_gone(folder: Path) -> None:
    program = folder / "check.py"
    program.rename(folder / "away.py")
    try:
        assert "checker was" in done("status", str(folder / "sums.yaml"))
        result = curate("run", str(folder / "sums.yaml"))
        assert result.exit_code == 2 and "check.py' is not there" in result.output
    finally:
        (folder / "away.py").rename(program)


def test_a_package_of_the_run_brings_no_command(folder: Path) -> None:
    done("export-trust", str(folder / "run"), "-o", str(folder / "package"))
    described = (folder / "package" / "package.json").read_text()
    assert json.loads(described)["description"]["domain"]["check"] == "command" and "check.py" not in described


def test_the_launcher_is_in_the_package() -> None:
    assert Path(launch.__file__).name == "launch.py"
