"""The two-sample test on words: its level where texts are of one kind, and what it finds."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.feature_extraction.text import HashingVectorizer

from curation.metrics.shift import (
    INPUTS,
    MAX_HASHES,
    NUM_HASHES,
    compare_texts,
    compare_with_words,
    sample_words,
)

WORDS = [f"word{n}" for n in range(400)]
SHARE = 1 / np.arange(1, 401)
SHARE /= SHARE.sum()


def texts(num: int, rng: np.random.Generator, share=SHARE) -> list[str]:
    return [" ".join(rng.choice(WORDS, 12, p=share)) for _ in range(num)]


@pytest.mark.long
def test_texts_of_one_kind_differ_in_5_percent():
    rng, trials = np.random.default_rng(0), 100
    found = [compare_texts(texts(40, rng), texts(60, rng), seed=trial) for trial in range(trials)]
    num_differing = sum(shift.differs for shift in found)
    assert binom.ppf(0.001, trials, 0.05) <= num_differing <= binom.ppf(0.999, trials, 0.05)


def test_texts_about_something_else_are_found():
    rng = np.random.default_rng(1)
    found = compare_texts(texts(200, rng), texts(500, rng, 0.7 * SHARE + 0.3 * SHARE[::-1]), seed=0)
    assert found.differs and found.auc.low > 0.6 and found.inputs == INPUTS
    assert (found.num_source, found.num_pool, found.auc.n) == (200, 500, 350)
    assert "questions (their words) differ" in found.warning()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["other words", "a few of the words"])
def test_a_tenth_of_foreign_texts_is_counted_and_honest_pools_raise_no_alarm(kind):
    rng = np.random.default_rng(5)
    words = [f"strange{n}" for n in range(400)] if kind == "other words" else WORDS[50:62]
    alarms, draws = np.zeros(2, dtype=int), 20
    for trial in range(draws):
        words_NW = sample_words(texts(1_000, rng), seed=trial)
        foreign = [" ".join(rng.choice(words, 12)) for _ in range(100)]
        pool = texts(1_000, rng)
        honest, mixed = (compare_with_words(words_NW, of, seed=trial) for of in (pool, pool[:900] + foreign))
        alarms += [honest.alarm, mixed.alarm]
        assert mixed.foreign.share.low <= 0.1 and mixed.auc.low < 0.6, "the AUC alone raises no alarm"
    assert alarms[0] == 0 and alarms[1] >= 0.9 * draws


def test_a_text_counts_once_and_few_are_not_compared():
    rng = np.random.default_rng(2)
    source, pool = texts(30, rng), texts(30, rng)
    # Copies on both sides of the halves would look like a difference.
    repeated = compare_texts(source * 20, pool * 20, seed=0)
    assert (repeated.num_source, repeated.num_pool) == (30, 30) and not repeated.differs
    few = compare_texts(source[:19] * 5, pool, seed=0)
    assert few.strength == "untested" and few.p_value == 1 and not few.differs


@pytest.mark.long
def test_hashed_words_of_a_package_serve_as_the_texts_do():
    rng = np.random.default_rng(4)
    source, honest, other = texts(300, rng), texts(500, rng), texts(500, rng, 0.7 * SHARE + 0.3 * SHARE[::-1])
    words_NW = sample_words(source, seed=0)
    expected = HashingVectorizer(n_features=NUM_HASHES, norm=None, token_pattern=r"\w+").transform(source).toarray()
    assert sorted(map(bytes, words_NW.toarray().astype(float))) == sorted(map(bytes, expected))
    found = {name: compare_with_words(words_NW, pool, seed=0) for name, pool in (("honest", honest), ("other", other))}
    assert not found["honest"].alarm and found["honest"].num_source == 300
    assert found["other"].alarm and found["other"].auc.value == pytest.approx(
        compare_texts(source, other, seed=0).auc.value, abs=0.05
    )


@pytest.mark.long
def test_a_sample_of_words_is_bounded_and_serves_or_is_none():
    long = [" ".join(f"w{text}x{word}" for word in range(4_000)) for text in range(40)]
    words_NW = sample_words(long, seed=0)
    assert words_NW.nnz <= MAX_HASHES < words_NW.nnz + 4_000 and words_NW.shape[0] >= 20
    assert sample_words([text * 2 for text in long[:19]], seed=0).shape[0] == 0
    longer = [" ".join(f"w{text}x{word}" for word in range(7_000)) for text in range(40)]
    assert sample_words(longer, seed=0).shape[0] == 0, "14 texts are compared with nothing"
    assert sample_words([], seed=0).shape[0] == 0
    assert abs(sample_words([f"{text} " + "the " * 70_000 for text in range(20)], seed=0)).max() == 32_767


@pytest.mark.parametrize("rows", [20, 21])
def test_twenty_texts_are_enough_to_compare(rows):
    rng = np.random.default_rng(3)
    assert compare_texts(texts(rows, rng), texts(rows, rng), seed=0).strength != "untested"
