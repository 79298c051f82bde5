"""A package whose run is not to be used is refused, and one that nobody judged says so."""

import json
import logging
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from curation.cli import main
from curation.errors import PackageError
from curation.filter import Filter
from curation.filter.package.description import STOP, RunVerdict
from curation.filter.package.folder import load
from curation.report.verdict import LEVELS
from tests.tiny_package import description, sums, tiny_package

SICK = RunVerdict(level=STOP, sentence="Do not use: the teacher guesses.", next="Take a stronger teacher")


def judged(folder: Path, verdict: RunVerdict | None) -> Path:
    tiny_package(folder, verdict=verdict)
    return folder


def told(package: Path, *options: str) -> str:
    """What a command says; the pool is missing, so that one which is not refused for its package fails there."""
    pool, out = package.with_name("none.jsonl"), package.with_name("out")
    found = CliRunner().invoke(main, ["filter", str(package), str(pool), "-o", str(out), "--keep", "3", *options])
    assert found.exit_code == 2, found.output
    return found.stderr


def test_the_levels_are_those_of_the_report() -> None:
    assert get_args(RunVerdict.model_fields["level"].annotation) == LEVELS and LEVELS[-1] == STOP


@pytest.mark.parametrize("plan", [(), ("--plan",)])
def test_a_package_that_is_not_to_be_used_is_refused_unless_anyway(tmp_path: Path, plan: tuple[str, ...]) -> None:
    package = judged(tmp_path / "package", SICK)
    refused = told(package, *plan)
    assert "the verdict of its run 'sums': Do not use: the teacher guesses. Nothing is labelled by it" in refused
    assert "mend the run (Take a stronger teacher)" in refused and "none.jsonl" not in refused
    used = told(package, "--anyway", *plan)
    assert "warning: " in used and "Do not use: the teacher guesses." in used and "none.jsonl" in used


def test_the_library_refuses_it_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    package = judged(tmp_path / "package", SICK)
    with pytest.raises(PackageError, match="Do not use: the teacher guesses"):
        Filter.load(package)
    with pytest.raises(PackageError, match="Do not use: the teacher guesses"):
        Filter.load(load(package))
    with caplog.at_level(logging.WARNING):
        (row,) = Filter.load(package, anyway=True).score(sums(1))
    assert row["trust"] is not None and "Do not use: the teacher guesses." in caplog.text


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_a_package_that_may_be_used_is_used_without_a_word(tmp_path: Path, level: str) -> None:
    package = judged(tmp_path / "package", RunVerdict.model_validate({"level": level, "sentence": "Fine."}))
    used = told(package)
    assert "warning" not in used and "Fine" not in used and "none.jsonl" in used


def test_a_package_without_a_verdict_says_so_and_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    package = judged(tmp_path / "package", None)
    used = told(package)
    assert "nobody says whether to use it; export it again" in used and "none.jsonl" in used
    with caplog.at_level(logging.WARNING):
        Filter.load(package)
    assert "nobody says whether to use it" in caplog.text


def test_a_verdict_cannot_be_changed_unnoticed_and_its_absence_is_no_content(tmp_path: Path) -> None:
    assert "verdict" not in description().content and "verdict" in description(verdict=SICK).content
    path = judged(tmp_path / "package", SICK) / "package.json"
    content = json.loads(path.read_text())
    for verdict in (None, {**content["description"]["verdict"], "level": "use it"}):
        path.write_text(json.dumps({**content, "description": {**content["description"], "verdict": verdict}}))
        with pytest.raises(PackageError, match="its description was changed after the export"):
            Filter.load(path.parent)
