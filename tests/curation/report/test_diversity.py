"""Counts of labels."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import entropy

from curation.extras.caps.division import NO_TEXT, hash_texts
from curation.report.class_table import count_labels


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
