"""The two-sample test on words: its level where texts are of one kind, and what it finds."""

import numpy as np
import pytest
from scipy.stats import binom

from curation.metrics.text_shift import INPUTS, compare_texts

WORDS = [f"word{n}" for n in range(400)]
SHARE = 1 / np.arange(1, 401)
SHARE /= SHARE.sum()


def texts(num: int, rng: np.random.Generator, share=SHARE) -> list[str]:
    return [" ".join(rng.choice(WORDS, 12, p=share)) for _ in range(num)]


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


def test_a_text_counts_once_and_few_are_not_compared():
    rng = np.random.default_rng(2)
    source, pool = texts(30, rng), texts(30, rng)
    # Copies on both sides of the halves would look like a difference.
    repeated = compare_texts(source * 20, pool * 20, seed=0)
    assert (repeated.num_source, repeated.num_pool) == (30, 30) and not repeated.differs
    few = compare_texts(source[:19] * 5, pool, seed=0)
    assert few.strength == "untested" and few.p_value == 1 and not few.differs


@pytest.mark.parametrize("rows", [20, 21])
def test_twenty_texts_are_enough_to_compare(rows):
    rng = np.random.default_rng(3)
    assert compare_texts(texts(rows, rng), texts(rows, rng), seed=0).strength != "untested"
