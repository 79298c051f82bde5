"""Whole runs with several decodings of a test, and answers of base models that are taken from another run directory."""

import copy
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from benchmarks.recorded import planned
from curation import run
from curation.commands.clean import clean
from curation.commands.plan import make_plan
from curation.config.load import load_config
from curation.pipeline.running import run_part
from curation.refs import TableRef
from curation.stages.answers import TOLD
from curation.tables import io

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
NUM_TEST = 120
SMALL = {"preset": "scratch", "epochs": 1, "learning_rate": 1e-4}
CONFIG = {
    "name": "tested",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "source": {"from": "puzzles", "rows": 600},
        "test": {"from": "puzzles", "rows": NUM_TEST},
        "pool": {"from": "puzzles", "rows": 300},
    },
    "teacher": {
        "model": {"path": str(ROOT / "examples/bases/teacher")},
        "states": ["output_last"],
        "decoding": {"max_tokens": 4},
    },
    "selection": {"budget": {"n": 20}, "arms": ["trust"]},
    "student": SMALL,
    "generations": [{"student": {"path": str(ROOT / "examples/bases/student")}}],
    "evaluation": {"decoding": {"max_tokens": 4}, "preset": "strategy_games"},
}
DECODINGS = ["main", "nucleus", "high_temperature"]
NAMED = [f"gen-0/test-{model}{kind}" for model in ("teacher", "base") for kind in ("", "-nucleus", "-high_temperature")]


def load(directory: Path, *overrides: str):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(copy.deepcopy(CONFIG) | {"run_dir": str(directory / "run")}))
    return load_config(path, ("evaluation.cache=%s" % (directory.parent / "kept"), *overrides))


def recalled(directory: Path) -> dict[str, dict]:
    lines = map(json.loads, (directory / "run" / "events.jsonl").read_text().splitlines())
    return {event["stage"]: event for event in lines if event["event"] == "recalled"}


def numbers(report: dict) -> dict:
    """What a report says of the tests."""
    kept = ("arms", "teacher", "base", "decodings", "accuracy_by_difficulty", "headline")
    return {key: report[key] for key in kept}


@pytest.fixture(scope="module")
def first(local_ray, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("runs") / "first"
    return directory, run(load(directory))


def test_every_model_is_tested_by_each_decoding_and_the_best_is_named_as_a_choice(first):
    directory, report = first
    found = report["decodings"]
    assert [item["name"] for item in found["decodings"]] == DECODINGS
    words = ["greedy", "temperature 0.7, top-p 0.8, top-k 20", "temperature 1"]
    assert [item["words"] for item in found["decodings"]] == words
    assert found["best_is"] == "best of three, chosen on the test set"
    models = {model["name"]: model for model in found["models"]}
    assert list(models) == ["teacher", "base", "trust"]
    main = {"teacher": report["teacher"]["test"], "base": report["base"], "trust": report["arms"][0]["accuracy"]}
    for name, model in models.items():
        assert model["accuracy"]["main"] == main[name]  # the headline's, as without further decodings
        values = {decoding: estimate["value"] for decoding, estimate in model["accuracy"].items()}
        assert list(values) == DECODINGS and {estimate["n"] for estimate in model["accuracy"].values()} == {NUM_TEST}
        best = model["best"]
        assert best["value"] == max(values.values()) == values[best["decoding"]] and best["n"] == NUM_TEST
        chosen = model["accuracy"][best["decoding"]]
        assert best["low"] <= chosen["low"] and best["high"] > chosen["high"]  # for all three at once
    assert len({estimate["value"] for estimate in models["teacher"]["accuracy"].values()}) > 1
    page = (directory / "run" / "report.html").read_text()
    assert "Best of three, chosen on the test set" in page
    assert "best of three, chosen on the test set, is" in report["headline"][-1]
    manifest = planned(directory / "run")
    assert set(NAMED) < set(manifest) and not recalled(directory)
    seeds = {manifest[name]["inputs"]["seed"] for name in NAMED}
    assert len(seeds) == len(NAMED)
    assert {manifest[name]["inputs"]["decoding"]["max_tokens"] for name in NAMED} == {4}


def test_another_run_directory_takes_the_answers_and_reports_the_same(first, tmp_path):
    directory, report = first
    other = directory.parent / "other"
    again = run(load(other))
    assert numbers(again) == numbers(report)
    events = recalled(other)
    assert set(events) == set(NAMED) and {event["run"] for event in events.values()} == {str(directory / "run")}
    passes = {item["name"]: item for item in again["passes"]}
    for name in NAMED:
        assert (
            passes[name]["recalled"] == str(directory / "run") and passes[name]["rows"] == passes[name]["starts"] == 0
        )
    assert passes["gen-0/test-trust"]["recalled"] is None and passes["gen-0/test-trust"]["rows"] == NUM_TEST
    assert f"answers given in {directory / 'run'}" in (other / "run" / "report.html").read_text()
    list(clean(other / "run", 0))
    assert all(stage.state == "done" for stage in make_plan(load(other), probe=False).stages)


class Parts:
    """The tests of a base alone, each in a run directory of its own, on a test set that does not depend on the seed."""

    def __init__(self, directory: Path, puzzles: list[dict]) -> None:
        self.directory, self.kept, self._puzzles = directory, directory / "kept", puzzles
        self._number = 0

    def run(self, *overrides: str, stage: str = "test-base", row: dict | None = None) -> dict:
        """The event of a stage that took its answers from elsewhere, and its labels by row id; ``row`` is the first."""
        directory = self.directory / str(self._number)
        self._number += 1
        config = copy.deepcopy(CONFIG) | {"run_dir": str(directory / "run")}
        directory.mkdir()
        tests = self.directory / "tests.parquet"
        pq.write_table(pa.Table.from_pylist([row or self._puzzles[0], *self._puzzles[1:]]), tests)
        config["sources"] = config["sources"] | {"tests": {"path": str(tests)}}
        config["splits"] = config["splits"] | {"test": {"from": "tests"}, "overlap": "report"}
        config["teacher"] = {"backend": "scripted"}
        path = directory / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        where = f"evaluation.cache={self.kept}"
        run_part(load_config(path, (where, *overrides)), f"gen-0/{stage}")
        manifest = planned(directory / "run")
        labels = TableRef.from_json(manifest[f"gen-0/{stage}"]["outputs"]["labels"])
        rows = {row["row_id"]: (row["completion"], row["label"]) for row in io.read(labels).to_pylist()}
        return {"event": recalled(directory).get(f"gen-0/{stage}"), "rows": rows, "run": str(directory / "run")}


@pytest.mark.slow
def test_answers_are_taken_where_model_decoding_questions_and_draw_are_the_same(local_ray, tmp_path, puzzles):
    parts = Parts(tmp_path, puzzles[:40])
    greedy, sampled = parts.run(), parts.run(stage="test-base-nucleus")
    assert greedy["event"] is None and sampled["event"] is None and len(greedy["rows"]) == 40
    entries = sorted(parts.kept.iterdir())
    assert len(entries) == 2

    # Another seed deals and draws anew: the greedy answers to the same questions stay.
    again = parts.run("seed=1")
    assert again["event"]["run"] == greedy["run"] and again["rows"] == greedy["rows"]
    redrawn = parts.run("seed=1", stage="test-base-nucleus")
    assert redrawn["event"] is None and redrawn["rows"] != sampled["rows"]
    of_other_runs = {
        "model": parts.run(f"generations.0.student.path={ROOT / 'examples/bases/teacher'}"),
        "question": parts.run(row=puzzles[41]),
    }
    assert {what: found["event"] for what, found in of_other_runs.items()} == dict.fromkeys(of_other_runs)
    assert len(sorted(parts.kept.iterdir())) == 5

    # What stands in an entry is what a run reads. A damaged one is replaced.
    (entry,) = [path for path in entries if json.loads(pq.read_schema(path).metadata[TOLD])["key"]["seed"] is None]
    whole, table = entry.read_bytes(), pq.read_table(entry)
    place = table.schema.get_field_index("completion")
    move = puzzles[0]["moves"].split()[1]
    moved = table.set_column(place, table.schema.field(place), pa.array([f" {move}", " ?", *table["completion"][2:]]))
    pq.write_table(moved, entry)
    found = parts.run()
    first, second = sorted(found["rows"])[:2]
    assert [found["rows"][row_id][0] for row_id in (first, second)] == [f" {move}", " ?"]
    entry.write_bytes(whole[: len(whole) // 2])
    assert parts.run()["event"] is None
    healed = parts.run()
    assert healed["event"]["run"].endswith(f"/{parts._number - 2}/run") and healed["rows"] == greedy["rows"]


def test_a_folder_that_cannot_be_used_costs_no_run(local_ray, tmp_path, puzzles, capsys):
    parts = Parts(tmp_path, puzzles[:10])
    parts.kept.write_text("a file")
    assert len(parts.run()["rows"]) == 10
    said = capsys.readouterr().err
    assert f"no answers are taken from {parts.kept}" in said and "the answers are not kept for other runs" in said
