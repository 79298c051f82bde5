"""A whole run with several decodings of a test."""

import copy
from pathlib import Path

import pytest
import yaml

from benchmarks.recorded import planned
from curation import run
from curation.config.load import load_config

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
    return load_config(path, overrides)


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
    assert set(NAMED) < set(manifest)
    seeds = {manifest[name]["inputs"]["seed"] for name in NAMED}
    assert len(seeds) == len(NAMED)
    assert {manifest[name]["inputs"]["decoding"]["max_tokens"] for name in NAMED} == {4}
