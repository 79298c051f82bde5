"""Counts of labels, and the parts of the gap to ground truth."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import entropy

from curation.domains.grading import Graded
from curation.extras.caps.division import NO_TEXT, hash_texts
from curation.report.class_table import count_labels
from curation.report.tested import decompose_gap


def counted(texts: list[str | None], num_rows: int) -> dict:
    return count_labels(pa.chunked_array([pa.array(texts, pa.string())]), num_rows)


def test_perplexity_is_exp_of_scipys_entropy():
    texts = [f"move {label}" for label in np.random.default_rng(0).geometric(0.05, 5_000)]
    counts, found = Counter(texts), counted(texts, 5_000)
    assert found["perplexity"] == pytest.approx(np.exp(entropy([*counts.values()])))
    assert found["num_labels"] == len(counts) and found["num_rows"] == 5_000 and not found["is_bound"]
    assert found["largest"] == max(counts.values()) / 5_000
    assert counted(["a", "b", "c", "d"], 4)["perplexity"] == pytest.approx(4)
    assert counted([], 0)["perplexity"] is None
    assert counted(texts[:300], 5_000)["is_bound"]


def test_texts_have_one_hash_and_nulls_none_of_theirs():
    found = hash_texts(pa.array(["é", None, "", "é", "e"]))
    assert found[0] == found[3] and len(set(found.tolist())) == 4 and found[1] == NO_TEXT > max(found[[0, 2, 4]])
    assert len(hash_texts(pa.nulls(0, pa.string()))) == 0


def answers(right_N: np.ndarray, first: int = 0) -> list[Graded]:
    ids_N = np.arange(len(right_N)) + first
    return [Graded(row_ids_N=ids_N, correct_N=right_N, question_N=ids_N)]


def test_wrong_labels_and_the_choice_of_rows_add_up_to_the_gap():
    rng = np.random.default_rng(1)
    tests = {
        "trust": answers(rng.random(900) < 0.4),
        "trust_gold": answers(rng.random(900) < 0.5),
        "ground_truth": answers(rng.random(905) < 0.6, first=-5),  # five rows that the others did not answer
    }
    selected = {"trust": np.array([3, 1]), "trust_gold": np.array([1, 3]), "ground_truth": np.array([7, 8])}
    arms = [{"name": name, "rows_trained": 2, "rows_dropped": 0, "epochs": 1, "format": "answer"} for name in tests]
    found = decompose_gap(arms, selected, tests, seed=0)
    assert found is not None and found["withheld"] is None
    means = {name: runs[0].correct_N[-900:].mean() for name, runs in tests.items()}
    assert found["choice"]["difference"] == pytest.approx(means["ground_truth"] - means["trust_gold"])
    assert found["labels"]["difference"] == pytest.approx(means["trust_gold"] - means["trust"])
    assert found["gap"]["difference"] == pytest.approx(found["choice"]["difference"] + found["labels"]["difference"])
    for part in ("choice", "labels", "gap"):
        assert found[part]["n"] == 900 and found[part]["low"] < found[part]["difference"] < found[part]["high"]

    unlike = [arms[0], {**arms[1], "rows_trained": 1}, arms[2]]
    assert "rows trained on" in str(decompose_gap(unlike, selected, tests, seed=0))
    other = {**selected, "trust_gold": np.array([1, 4])}
    assert decompose_gap(arms, other, tests, seed=0) == {
        "withheld": "the arms trust and trust_gold have different rows"
    }
    assert decompose_gap(arms, selected, {"trust": tests["trust"]}, seed=0) is None
