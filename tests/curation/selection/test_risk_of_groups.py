"""A certified cut of rows in groups keeps its promise where one row of a group counts, and not where all do."""

import numpy as np
import pytest
from scipy.stats import norm

from curation.selection.risk import calibrate
from curation.trust.parts import find_independent

ALPHA, DELTA, DRAWS = 0.3, 0.1, 300


def rows_of_groups(rng: np.random.Generator, num_groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, which rows are right, and their groups; large groups are wrong more often, and groups differ."""
    size_G = rng.integers(1, 31, num_groups)
    group_N = np.repeat(np.arange(num_groups), size_G)
    level_G = 0.9 - size_G / 40 + 0.8 * rng.normal(size=num_groups)
    right_N = rng.random(len(group_N)) < norm.cdf(level_G[group_N])
    return rng.normal(size=len(group_N)) + 0.8 * right_N, right_N, group_N


@pytest.fixture(scope="module")
def violations() -> dict[str, float]:
    """The shares of draws whose certified cut has more noise than promised, by what counts."""
    score_N, right_N, _ = rows_of_groups(np.random.default_rng(1), 20_000)
    order_N = np.argsort(-score_N)
    noise_N, sorted_N = np.cumsum(~right_N[order_N]) / np.arange(1, len(score_N) + 1), -score_N[order_N]
    pool_N, broken, certified = score_N[:4_000], dict.fromkeys(("one a group", "all"), 0), 0
    for draw in range(DRAWS):
        rng = np.random.default_rng([2, draw])
        score_M, right_M, group_M = rows_of_groups(rng, 200)
        ids_M = rng.permutation(len(score_M)) + 10**6 * draw
        names_M = rng.integers(-(2**60), 2**60, 200)[group_M]
        kept = {"one a group": find_independent(ids_M, ids_M, names_M), "all": np.ones(len(score_M), dtype=np.bool_)}
        for name, kept_M in kept.items():
            cut = calibrate(score_M[kept_M], right_M[kept_M], pool_N, alpha=ALPHA, delta=DELTA)
            if cut.threshold is not None:
                passed = np.searchsorted(sorted_N, -cut.threshold, side="right")
                broken[name] += noise_N[passed - 1] > ALPHA
                certified += name == "one a group"
    assert certified > DRAWS / 4, "the promise is given"
    return {name: number / DRAWS for name, number in broken.items()}


def test_a_cut_by_one_row_of_a_group_keeps_the_promise(violations: dict[str, float]) -> None:
    assert violations["one a group"] <= DELTA + 2 * np.sqrt(DELTA * (1 - DELTA) / DRAWS)


def test_a_cut_by_all_rows_breaks_it(violations: dict[str, float]) -> None:
    assert violations["all"] > 1.5 * DELTA
