"""Accuracy by decoding, and the best of them, by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import beta

from curation import metrics
from curation.config import DecodingConfig
from curation.report.tested import collect_decodings, describe_decoding
from curation.tables import io, schemas

NUM_ROWS, NUM_DRAWS = 80, 400
EVALUATION = {"preset": "strategy_games"}


def graded(folder: Path, name: str, num_right: int) -> Any:
    rows = [{"row_id": row, "correct": row < num_right, "judged": False} for row in range(NUM_ROWS)]
    return io.write(pa.Table.from_pylist(rows, schema=schemas.GRADES), str(folder / name))


def record(folder: Path, counts: dict[str, dict[str, list[int]]]) -> Any:
    """The part of a generation's record that is read, with so many rows right by decoding, model and run."""
    tests = {
        decoding: {
            model: [graded(folder, f"{decoding}-{model}-{run}", right) for run, right in enumerate(runs)]
            for model, runs in models.items()
        }
        for decoding, models in counts.items()
    }
    return SimpleNamespace(tests=tests.pop("main"), further_tests=tests)


def test_the_best_has_an_interval_that_holds_for_all_decodings_at_once(tmp_path: Path) -> None:
    counts = {
        "main": {"base": [4], "trust": [20]},
        "nucleus": {"base": [4], "trust": [24]},
        "high_temperature": {"base": [1], "trust": [10]},
    }
    found = collect_decodings(record(tmp_path, counts), EVALUATION)
    assert found is not None
    base, trust = found["models"]
    assert trust["accuracy"]["nucleus"] == metrics.compute_proportion(24, NUM_ROWS).to_json()
    assert (trust["best"]["decoding"], trust["best"]["value"], trust["best"]["n"]) == ("nucleus", 0.3, NUM_ROWS)
    assert trust["best"]["low"] == pytest.approx(beta.ppf(0.05 / 6, 24, 57))
    assert trust["best"]["high"] == pytest.approx(beta.ppf(1 - 0.05 / 6, 25, 56))
    assert base["best"]["decoding"] == "main", "of equal accuracies the first"
    assert found["best_is"] == "best of three, chosen on the test set"


def test_several_runs_a_decoding_and_a_model_that_was_not_tested_by_all(tmp_path: Path) -> None:
    counts = {"main": {"base": [4, 8], "trust": [20, 30]}, "greedy": {"base": [5]}}
    config = {"decoding": {"temperature": 0.6}, "num_runs": 2, "also": {"greedy": {}}}
    found = collect_decodings(record(tmp_path, counts), config)
    assert found is not None and [item["num_runs"] for item in found["decodings"]] == [2, 1]
    base, trust = found["models"]
    assert base["accuracy"]["main"]["value"] == 6 / 80 and base["best"]["runs"]["n"] == 2
    wide, narrow = base["best"], base["accuracy"]["main"]
    assert wide["low"] < narrow["low"] and wide["high"] > narrow["high"]
    assert trust["accuracy"]["greedy"] is None and trust["best"]["decoding"] == "main"
    assert found["best_is"].startswith("best of two")


def test_one_decoding_has_no_best(tmp_path: Path) -> None:
    assert collect_decodings(record(tmp_path, {"main": {"base": [4]}}), {}) is None
    assert collect_decodings(SimpleNamespace(tests={}, further_tests={"nucleus": {}}), EVALUATION) is None  # type: ignore


def test_answers_among_options_and_free_ones_have_no_best_together(tmp_path: Path) -> None:
    counts = {name: {"base": [right]} for name, right in {"main": 4, "listed": 30, "nucleus": 6}.items()}
    also = {"listed": {"constrained": "scored"}, "nucleus": {"temperature": 0.7}}
    found = collect_decodings(record(tmp_path, counts), {"also": also})
    assert found is not None and found["best_is"].startswith("best of two")
    assert found["models"][0]["best"]["decoding"] == "nucleus"
    assert [item["words"] for item in found["decodings"]][1] == "the likeliest of the listed answers"
    del counts["nucleus"], also["nucleus"]
    found = collect_decodings(record(tmp_path, counts), {"also": also})
    assert found is not None and found["best_is"] is None and found["models"][0]["best"] is None


def test_the_interval_of_the_best_covers_the_chosen_decodings_accuracy() -> None:
    rng = np.random.default_rng(0)
    covered = {0.95: 0, 1 - 0.05 / 3: 0}
    for _ in range(NUM_DRAWS):
        right = int(rng.binomial(NUM_ROWS, 0.3, size=3).max())  # all three are equally good
        for confidence in covered:
            interval = metrics.compute_proportion(right, NUM_ROWS, confidence=confidence)
            covered[confidence] += interval.low <= 0.3 <= interval.high
    # The simple interval misses too often: what is chosen on the test set is too high.
    assert covered[1 - 0.05 / 3] >= 0.95 * NUM_DRAWS > covered[0.95]


def test_decodings_in_words() -> None:
    assert describe_decoding(DecodingConfig(top_k=3)) == "greedy"
    assert describe_decoding(DecodingConfig(presence_penalty=1.5)) == "greedy, presence penalty 1.5"
    assert (
        describe_decoding(DecodingConfig(temperature=0.7, top_p=0.8, top_k=20))
        == "temperature 0.7, top-p 0.8, top-k 20"
    )
    assert describe_decoding(DecodingConfig(temperature=1, min_p=0.1)) == "temperature 1, min-p 0.1"
