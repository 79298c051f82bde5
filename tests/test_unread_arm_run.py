"""A whole run in which no row gives a V-confidence that can be read: it is refused, and goes on without the arm."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded import planned
from curation import run
from curation.config import RunConfig
from curation.config.load import parse_config
from curation.errors import RunFailedError

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
ARMS = ["naive", "verbalized_confidence", "internal_confidence"]
WHY = "none of 80 rows gave a value that can be read"


def config(tmp_path: Path, *, arms: list[str] = ARMS) -> RunConfig:
    """A scripted teacher whose answers hold no number and no word of ``verbalized.WORDS``: what it is asked it cannot
    tell, as a model that can only write labels."""
    if not (rows := tmp_path / "sums.jsonl").exists():
        letters = [{"problem": f"Which letter is number {n}?", "answer": "xy"[n % 2]} for n in range(400)]
        rows.write_text("\n".join(map(json.dumps, letters)))
    student = {"student": {"path": str(ROOT / "examples/bases/student")}}
    return parse_config(
        {
            "name": "unread",
            "run_dir": str(tmp_path / "run"),
            "domain": "math",
            "sources": {"letters": {"path": str(rows)}},
            "splits": {
                "source": {"from": "letters", "rows": 80},
                "test": {"from": "letters", "rows": 10},
                "pool": {"from": "letters", "rows": 80},
                "audit": True,
            },
            "teacher": {"backend": "scripted", "scripted": {"completions": ["\\boxed{x}", "\\boxed{y}"]}},
            "selection": {"budget": {"n": 10}, "arms": arms},
            "student": {"preset": "scratch", "epochs": 1},
            "generations": [student],
            "evaluation": {"decoding": {"max_tokens": 4}, "num_runs": 1},
        }
    )


def test_a_run_refuses_an_arm_that_cannot_be_measured_and_goes_on_without_it(local_ray: Any, tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=f"verbalized_confidence cannot be measured: {WHY}; .* selection.arms"):
        run(config(tmp_path))
    before = planned(tmp_path / "run")
    assert "gen-0/select" not in before

    report = run(config(tmp_path, arms=["naive", "internal_confidence"]))
    assert [arm["name"] for arm in report["arms"]] == ["naive", "internal_confidence"]
    after = planned(tmp_path / "run")
    labels = [name for name in before if name.startswith("gen-0/label")]
    assert labels and all(after[name] == before[name] for name in labels)  # no row was labelled again
