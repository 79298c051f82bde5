"""Counts of labels in streams against all of them at once, and the parts of the gap to ground truth."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import entropy

from curation.domains.grading import Graded
from curation.report import diversity
from curation.report.diversity import LabelFrequencies
from curation.report.tested import decompose_gap
from curation.tables.text_hashes import NO_TEXT, hash_texts


def counted(texts: list[str], num_parts: int) -> LabelFrequencies:
    """Each part by itself, then all parts together, as tasks do it."""
    found = LabelFrequencies()
    for part in np.array_split(np.array(texts, dtype=object), num_parts):
        one = LabelFrequencies()
        for half in np.array_split(part, 2):
            one.add(hash_texts(pa.array(half.tolist(), pa.string())))
        found.add(one.label_G, one.count_G, one.bits)
    return found


def test_perplexity_is_exp_of_scipys_entropy():
    texts = [f"move {label}" for label in np.random.default_rng(0).geometric(0.05, 5_000)]
    counts = Counter(texts)
    for num_parts in (1, 7):
        found = counted(texts, num_parts).to_json()
        assert found["perplexity"] == pytest.approx(np.exp(entropy([*counts.values()])))
        assert found["num_labels"] == len(counts) and found["num_rows"] == 5_000 and not found["is_bound"]
        assert found["largest"] == max(counts.values()) / 5_000
    assert counted(["a", "b", "c", "d"], 2).perplexity == pytest.approx(4)
    assert LabelFrequencies().to_json()["perplexity"] is None


def test_more_labels_than_are_counted_give_lower_bounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diversity, "MOST_LABELS", 300)
    monkeypatch.setattr(diversity, "FOLDED_BITS", 8)
    texts = [str(number) for number in range(400)] + ["0"] * 50
    for num_parts in (1, 3):  # in one of three no part is folded, only their sum
        found = counted(texts, num_parts).to_json()
        assert found["is_bound"] and found["num_rows"] == 450
        assert 150 < found["num_labels"] <= 256 and found["perplexity"] < np.exp(entropy([51] + [1] * 399))
    assert counted(texts[:300], 3).to_json()["num_labels"] == 300


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
