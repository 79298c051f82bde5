"""Runs whose teacher writes whole rollouts, math and multiple choice: the arms differ in their labels alone."""

import json
import random
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.recorded import planned
from curation import run
from curation.config.load import load_config
from curation.extras.plan.planning import make_plan
from curation.refs import TableRef
from curation.tables import io

ARMS = ["naive", "trust", "trust_gold", "ground_truth"]
BOXED = [rf" We count on our fingers up to {n} and stop. The final answer is \boxed{{{n}}}." for n in (2, 4, 6)]
STATED = [f" This was in the lesson on {letter}. The answer is ({letter})." for letter in "ABC"]
NUM_ROWS, N = 360, 40


def math_rows() -> list[dict]:
    half = [1 + row % 3 for row in range(NUM_ROWS)]
    return [{"problem": f"{n} + {n} + {row} - {row}?", "answer": str(2 * n)} for row, n in enumerate(half)]


def mcqa_rows() -> list[dict]:
    rng = random.Random(0)
    return [
        {"question": f"Number {row}?", "choices": ["one", "two", "three"], "answer": rng.randrange(3)}
        for row in range(NUM_ROWS)
    ]


DOMAINS = {
    "math": ({"name": "math", "instruction": ""}, BOXED, math_rows),
    "mcqa": ({"name": "mcqa", "generative": True}, STATED, mcqa_rows),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["math", pytest.param("mcqa", marks=pytest.mark.slow)])
def test_the_arms_of_a_run_on_rollouts_differ_in_their_labels_alone(local_ray, tmp_path: Path, capsys, name: str):
    domain, completions, rows = DOMAINS[name]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows())))
    config = {
        "name": name,
        "run_dir": str(tmp_path / "run"),
        "domain": domain,
        "sources": {"rows": {"path": str(tmp_path / "rows.jsonl")}},
        "splits": {"source": {"from": "rows", "rows": 100}, "pool": {"from": "rows"}, "audit": True},
        "teacher": {"backend": "scripted", "scripted": {"completions": completions}, "chunk_rows": 200},
        "selection": {"budget": {"n": N}, "arms": ARMS, "gold_rollouts": {"num_samples": 30}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    loaded = load_config(tmp_path / "config.yaml")
    report = run(loaded)

    # One line an arm, to be read one under the other.
    lines = re.findall(
        r"gen-0/select: (\w+): (weak|gold) labels, (\w+)s from (\w+), median (\d+)", capsys.readouterr().err
    )
    assert [line[:4] for line in lines] == [
        ("naive", "weak", "rollout", "weak"),
        ("trust", "weak", "rollout", "weak"),
        ("trust_gold", "gold", "rollout", "sample"),
        ("ground_truth", "gold", "rollout", "sample"),
    ]
    assert len({length for *_, length in lines}) == 1
    stamps = {arm["name"]: (arm["label_source"], arm["format"], arm["completion_source"]) for arm in report["arms"]}
    assert stamps == {arm: (label, form, source) for arm, label, form, source, _ in lines}
    assert all(arm["num_selected"] == N and arm["format_note"] is None for arm in report["arms"])
    assert "own rollouts graded right" in (tmp_path / "run" / "report.html").read_text()

    stages = planned(tmp_path / "run")
    assert {stage.name for stage in make_plan(loaded, probe=False).stages} == set(stages)
    assert stages["gen-0/rollouts"]["rows"] == stages["gen-0/rollouts"]["outputs"]["num_asked"] > 0
    arms = {arm: rows_of(item["table"]) for arm, item in stages["gen-0/select"]["outputs"]["arms"].items()}
    gold = rows_of(stages["prepare"]["outputs"]["tables"]["audit"])
    assert {row["completion_source"] for row in arms["ground_truth"].values()} >= {"sample"}
    for weak, right in (("naive", "ground_truth"), ("trust", "trust_gold")):
        shared = arms[weak].keys() & arms[right].keys()
        assert shared == arms[weak].keys()  # the same rows, in these runs: every row is solved in the end
        for row_id in shared:
            ours, theirs = arms[weak][row_id], arms[right][row_id]
            assert theirs["label"] == gold[row_id]["gold"]
            same = ("prompt", "rank", "trust", *(("completion",) if ours["label"] == theirs["label"] else ()))
            assert all(ours[key] == theirs[key] for key in same)
            assert {ours["completion"], theirs["completion"]} <= set(completions)
        assert any(arms[weak][row_id]["label"] != arms[right][row_id]["label"] for row_id in shared)

    # The settings of rollouts redo them and what is selected; another weak arm does not.
    done = len(stages)
    changed = load_config(tmp_path / "config.yaml", ("selection.gold_rollouts.temperature=0.9",))
    assert next(s.name for s in make_plan(changed, probe=False).stages if s.state != "done") == "gen-0/rollouts"
    fewer = load_config(tmp_path / "config.yaml", ("selection.arms=[naive, trust_gold, ground_truth]",))
    undone = [s.name for s in make_plan(fewer, probe=False).stages if s.state != "done"]
    assert undone == ["gen-0/select"] and done == len(stages)


def rows_of(ref: dict) -> dict[int, dict]:
    return {row["row_id"]: row for row in io.read(TableRef.from_json(ref)).to_pylist()}
