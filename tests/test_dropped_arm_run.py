"""Whole runs in which no row gives a V-confidence that can be read: the arm drops out, and nothing else changes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.recorded import planned
from curation import run
from curation.cli import main
from curation.commands.export.run import find_student
from curation.config import RunConfig
from curation.config.load import parse_config
from curation.errors import CombineError, ExportError, ReviewError, RunFailedError
from curation.extras.combine.runs import load_member, require_alike
from curation.extras.review.source import find
from curation.pipeline.running import get_finished_record
from curation.storage.paths import to_place

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
ARMS = ["naive", "verbalized_confidence", "internal_confidence"]
WHY = "none of 80 rows gave a value that can be read"


def config(tmp_path: Path, name: str = "run", *, arms: list[str] = ARMS, num: int = 1, **selection: Any) -> RunConfig:
    """A scripted teacher whose answers hold no number and no word of ``verbalized.WORDS``: what it is asked it cannot
    tell, as a model that can only write labels."""
    if not (rows := tmp_path / "sums.jsonl").exists():
        letters = [{"problem": f"Which letter is number {n}?", "answer": "xy"[n % 2]} for n in range(400)]
        rows.write_text("\n".join(map(json.dumps, letters)))
    student = {"student": {"path": str(ROOT / "examples/bases/student")}}
    return parse_config(
        {
            "name": name,
            "run_dir": str(tmp_path / name),
            "domain": "math",
            "sources": {"letters": {"path": str(rows)}},
            "splits": {
                "source": {"from": "letters", "rows": 80},
                "test": {"from": "letters", "rows": 10},
                "pool": {"from": "letters", "rows": 80 * num},
                "audit": True,
            },
            "teacher": {"backend": "scripted", "scripted": {"completions": ["\\boxed{x}", "\\boxed{y}"]}},
            "selection": {"budget": {"n": 10}, "arms": arms, **selection},
            "student": {"preset": "scratch", "epochs": 1},
            "generations": [student] * num,
            "chain": {"arms": arms[:1], "shares": num, "stop": None} if num > 1 else {},
            "evaluation": {"decoding": {"max_tokens": 4}, "num_runs": 1},
        }
    )


def stages(tmp_path: Path, name: str = "run") -> dict[str, Any]:
    return planned(tmp_path / name)


def status(tmp_path: Path) -> str:
    return CliRunner().invoke(main, ["status", str(tmp_path / "run")], catch_exceptions=False).output


def test_an_arm_that_cannot_be_measured_drops_out(local_ray: Any, tmp_path: Path, capsys: Any) -> None:
    report = run(config(tmp_path))
    line = f"gen-0/select: the arm verbalized_confidence drops out: {WHY}"
    assert capsys.readouterr().err.count(line) == 1
    assert [arm["name"] for arm in report["arms"]] == ["naive", "internal_confidence"]
    assert report["dropped"] == [{"name": "verbalized_confidence", "why": WHY}]
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(rf"verbalized.confidence</th><td colspan=\"\d+\">dropped out: {WHY}", page)
    known = stages(tmp_path)
    assert known["gen-0/select"]["outputs"]["dropped"] == {"verbalized_confidence": WHY}
    assert set(known["gen-0/select"]["outputs"]["arms"]) == {"naive", "internal_confidence"}
    assert not [name for name in known if re.search("(student|test).*verbalized", name)]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "dropped"]
    assert (told["arm"], told["why"], told["stage"]) == ("verbalized_confidence", WHY, "gen-0/select")
    assert f"\n  the arm verbalized_confidence dropped out: {WHY}\n" in status(tmp_path)

    # The same command decides the same and does nothing; what reads a finished run says why there is no such arm.
    assert run(config(tmp_path))["dropped"] == report["dropped"] and stages(tmp_path) == known
    assert get_finished_record(config(tmp_path)).generations[0].dropped == {"verbalized_confidence": WHY}
    directory = to_place(str(tmp_path / "run"))
    with pytest.raises(ExportError, match=f"verbalized_confidence dropped out of generation 0, .*: {WHY}"):
        find_student(directory, "verbalized_confidence", None)
    assert find_student(directory, "naive", None).arm == "naive"
    with pytest.raises(ReviewError, match=f"verbalized_confidence dropped out: {WHY}"):
        find(directory, "verbalized_confidence")

    # With a run that has the arm it is not averaged.
    lost = load_member(str(tmp_path / "run"))
    record = lost.run.generations[0]
    whole = replace(record, selections={**record.selections, ARMS[1]: record.selections["naive"]}, dropped={})
    with pytest.raises(CombineError, match=rf"arm verbalized_confidence dropped out of one of them \({WHY}\)"):
        require_alike(lost, lost._replace(run=replace(lost.run, generations=[whole])))


def test_a_run_without_an_arm_that_can_be_measured_ends(local_ray: Any, tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=rf"no arm of selection\.arms can be measured .*{WHY}"):
        run(config(tmp_path, "alone", arms=["verbalized_confidence"]))


def test_a_chain_ends_where_its_arm_drops_out(local_ray: Any, tmp_path: Path) -> None:
    report = run(config(tmp_path, arms=["verbalized_confidence", "naive"], num=2))
    assert [generation["index"] for generation in report["generations"]] == [0]
    assert "the arm verbalized_confidence dropped out" in report["chain"]["ended"]
    known = stages(tmp_path)
    assert {name.partition("/")[0] for name in known} == {"prepare", "repeats", "gen-0"}
    assert run(config(tmp_path, arms=["verbalized_confidence", "naive"], num=2))["chain"] == report["chain"]
    assert stages(tmp_path) == known
