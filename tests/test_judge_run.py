"""A run over sums whose answers are often not in a box: the judge sees those too; a probe sets the budget."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.recorded import planned
from curation import run
from curation.config.load import parse_config
from curation.refs import TableRef
from curation.tables import io

pytestmark = [pytest.mark.whole_run, pytest.mark.quick]

ROOT = Path(__file__).parents[1]


def test_unparsed_rows_are_judged_and_a_probe_sets_the_budget(local_ray: Any, tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(400)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "name": "judged",
        "run_dir": str(tmp_path / "run"),
        "domain": "math",
        "sources": {"sums": {"path": str(tmp_path / "sums.jsonl")}},
        "splits": {
            "source": {"from": "sums", "rows": 100},
            "pool": {"from": "sums", "rows": 150},
            "probes": {"held_out": {"from": "sums", "rows": 100, "regime": "ID"}},
            "audit": True,
        },
        "teacher": {
            "backend": "scripted",
            "scripted": {"completions": ["It is 1. TRUE", "\\boxed{1} TRUE", "\\boxed{2} FALSE", "It is 3. FALSE"]},
        },
        "judge": {"model": {"path": str(ROOT / "examples/bases/teacher")}},
        "selection": {
            "budget": {"fit_purity": "held_out", "reference": "internal_confidence"},
            "arms": ["naive", "internal_confidence"],
        },
    }
    report = run(parse_config(config))
    stages = planned(tmp_path / "run")

    def table(stage: str, output: str, columns: list[str]) -> dict[int, dict[str, Any]]:
        ref = TableRef.from_json(stages[f"gen-0/{stage}"]["outputs"][output])
        return {row["row_id"]: row for row in io.read(ref, ["row_id", *columns]).to_pylist()}

    labels = table("score-pool", "labels", ["label", "completion"])
    grades = table("judge-pool", "grades", ["correct", "judged"])
    unparsed = {row_id for row_id, row in labels.items() if row["label"] is None}
    assert 20 < len(unparsed) < 130
    # Every row that the rule calls wrong is asked, unparsed ones too; the judge's word alone makes one right.
    (uri,) = tmp_path.glob("run/gen-0/judge-pool-*/verdicts.lance")
    verdicts = {row["row_id"]: row["value"] for row in io.read(io.find_latest(str(uri))).to_pylist()}
    assert set(verdicts) == {row_id for row_id, row in labels.items() if row["label"] != "1"}
    judged = {row_id for row_id, row in grades.items() if row["judged"]}
    assert judged == {row_id for row_id, value in verdicts.items() if value == 1} and len(judged & unparsed) > 5
    right_by_rule = {row_id for row_id, row in labels.items() if row["label"] == "1"}
    assert {row_id for row_id, row in grades.items() if row["correct"]} == judged | right_by_rule
    selected = TableRef.from_json(stages["gen-0/select"]["outputs"]["arms"]["internal_confidence"]["table"])
    assert not set(io.read(selected, ["row_id"])["row_id"].to_pylist()) & unparsed

    # n = floor(purity of the probe's accepted rows x right labels of the pool), counted by hand.
    held_out = table("score-probe-held_out", "labels", ["label", "mean_logprob"])
    right = {row_id: row["correct"] for row_id, row in table("grade-probe-held_out", "grades", ["correct"]).items()}
    accepted = [
        row_id for row_id, row in held_out.items() if row["label"] and np.exp(np.float32(row["mean_logprob"])) >= 0.5
    ]
    num_right = sum(row["correct"] for row in grades.values())
    n = sum(right[row_id] for row_id in accepted) * num_right // len(accepted)
    assert report["budget"]["n"] == n > 0 and report["arms"][0]["num_selected"] == n
