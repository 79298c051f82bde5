"""``curate run --fail-on-verdict``: the exit code by the verdict of the report."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from curation.cli import main
from curation.commands import run_verbs
from curation.commands.run_verbs import FAILED_VERDICT, GRAVE
from curation.report.verdict import CARE, LEVELS, STOP, USE

CONFIG = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def test_the_levels_are_those_of_the_report():
    assert GRAVE["stop"] == (STOP,) and set(GRAVE["care"]) == {STOP, CARE} == {*LEVELS} - {USE}


@pytest.mark.parametrize(
    ("level", "option", "code"),
    [
        (USE, "care", 0),
        (CARE, "care", FAILED_VERDICT),
        (CARE, "stop", 0),
        (STOP, "stop", FAILED_VERDICT),
        (STOP, "care", FAILED_VERDICT),
        (STOP, None, 0),
        (None, "stop", FAILED_VERDICT),
        (None, None, 0),
    ],
)
def test_the_exit_code(level: str | None, option: str | None, code: int, monkeypatch: pytest.MonkeyPatch):
    verdict = None if level is None else {"level": level, "sign": "!", "sentence": "So it is.", "findings": []}
    done: list[Any] = []
    monkeypatch.setattr(run_verbs, "format_arms", lambda content: "arms")

    class Running:
        @staticmethod
        def run_chain(config: Any, **how: Any) -> dict[str, Any]:
            done.append(config)
            return {"verdict": verdict}

    monkeypatch.setattr(run_verbs, "running", Running)
    given = [] if option is None else ["--fail-on-verdict", option]
    result = CliRunner().invoke(main, ["run", str(CONFIG), *given])
    assert (result.exit_code, len(done)) == (code, 1), result.output
    assert FAILED_VERDICT == 4  # pipelines rely on it


def test_a_part_of_a_run_has_no_verdict():
    result = CliRunner().invoke(main, ["run", str(CONFIG), "--until", "gen-0/select", "--fail-on-verdict", "stop"])
    assert result.exit_code == 2 and "a part of a run has no verdict" in result.output
