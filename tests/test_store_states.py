"""Whole runs with states stored, or scored as labelled: the same rows are selected, in the plan's order."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.recorded import planned
from curation import run
from curation.config.load import load_config
from curation.extras.plan.planning import make_plan
from curation.refs import TableRef
from curation.tables import io, schemas

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
CONFIG = {
    "name": "states",
    "domain": "mcqa",
    "sources": {"questions": {"path": str(ROOT / "examples/data/mcqa.jsonl")}},
    "splits": {
        "source": {"from": "questions", "rows": 300},
        "pool": {"from": "questions", "rows": 400},
        "probes": {"held_out": {"from": "questions", "rows": 50, "regime": "ID"}},
        "audit": True,
    },
    "teacher": {
        "backend": "scripted",
        "states": ["prompt_last", "option2_output_last"],
        "token_logprobs": 2,
        "chunk_rows": 200,
    },
    "trust": {
        "states": ["prompt_last", "option2_output_last"],
        "columns": ["token_logprobs"],
        "width": 8,
        "depth": 1,
        "max_steps": 20,
        "learning_rate": 1e-2,
        "options": {
            "attention": {"num_heads": 2},
            "boosted_trees": {"num_trees": 5},
            "deep_ensemble": {"members": 2},
        },
    },
    "selection": {
        "budget": {"n": 60},
        "arms": ["naive", "attention", "boosted_trees", "deep_ensemble", "linear_probe", "trust"],
    },
    "generations": [],
}
FIRST = ["label-source", "grade-source"]
FITTED = ["trust", "linear_probe", "deep_ensemble", "boosted_trees", "attention"]
FITS = ["trust", "trust-linear_probe", "trust-deep_ensemble", "trust-boosted_trees", "trust-attention"]
LABELS = ["label-probe-held_out", "label-pool"]
REST = [
    "score-source",
    "grade-probe-held_out",
    "score-probe-held_out",
    "grade-pool",
    "score-pool",
    "shift",
    "select",
    "selected-shift",
]


def done(directory: Path) -> dict:
    return planned(directory / "run")


def started(directory: Path) -> list[str]:
    """The stages that were started, in their order; those of numbers, which follow each run, left out."""
    events = map(json.loads, (directory / "run" / "events.jsonl").read_text().splitlines())
    names = [event["stage"].removeprefix("gen-0/") for event in events if event["event"] == "started"]
    return [name for name in names if name != "numbers"]


def selected(directory: Path) -> dict[str, list[int]]:
    found = done(directory)["gen-0/select"]["outputs"]["arms"]
    return {
        arm: io.read(TableRef.from_json(item["table"]), ["row_id"])["row_id"].to_pylist() for arm, item in found.items()
    }


def states_of(directory: Path, split: str) -> dict:
    schema = io.open_table(TableRef.from_json(done(directory)[f"gen-0/label-{split}"]["outputs"]["labels"])).schema
    return {field.name: field.type for field in schema if schemas.is_state(field.name)}


@pytest.mark.timeout(900)
def test_the_same_rows_are_selected_whatever_is_stored(local_ray, tmp_path):
    def go(*overrides: str) -> tuple[dict, list[str]]:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"run_dir": str(tmp_path / "run")}))
        config = load_config(tmp_path / "config.yaml", overrides)
        planned = [stage for stage in make_plan(config, probe=False).stages if stage.state != "done"]
        before = len(started(tmp_path)) if (tmp_path / "run").exists() else 0
        report = run(config)
        redone = started(tmp_path)[before:]
        names = [stage.name.removeprefix("gen-0/") for stage in planned]
        assert set(redone) <= set(names)
        assert all(stage.state == "done" for stage in make_plan(config, probe=False).stages)
        return report, sorted(redone)

    stored, stages = go()
    assert stages == sorted(["prepare", "repeats", *FIRST[:1], *LABELS, *FIRST[1:], *FITS, *REST])
    rows, shift = selected(tmp_path), stored["shift"]
    (foreign,) = stored["foreign"].values()  # of trust, which is cross-fitted; few rows are held out from the others
    assert foreign["share"]["n"] >= 60 and foreign["warning"] is None
    assert {len(ids) for ids in rows.values()} == {60}

    # Scored as labelled: source and fits stay; the other splits are labelled after them, without states but a sample.
    fused, stages = go("teacher.store_states=false")
    assert stages == sorted([*LABELS, *[stage for stage in REST if stage != "score-source"]])
    assert selected(tmp_path) == rows
    assert fused["shift"] == shift and fused["foreign"] == stored["foreign"]
    for mine, theirs in zip(fused["arms"], stored["arms"], strict=True):
        assert mine["purity"] == theirs["purity"]
    assert fused["trust"]["pool"].keys() == stored["trust"]["pool"].keys()
    assert [str(kind) for kind in states_of(tmp_path, "pool").values()] == 2 * ["list<item: halffloat>"]
    assert len(states_of(tmp_path, "source")) == 2
    assert go("teacher.store_states=false", "selection.budget.n=50")[1] == ["select", "selected-shift"]
    before = done(tmp_path)
    fits = {name: before[f"gen-0/{stage}"]["outputs"]["trust"] for name, stage in zip(FITTED, FITS, strict=True)}
    assert before["gen-0/label-pool"]["inputs"]["fitted"] == fits  # another fit labels the pool again
    of_source = before["gen-0/label-source"]["inputs"]
    assert "fitted" not in of_source
