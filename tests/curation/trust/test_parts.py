"""The parts of the labelled source rows, and the share of them that is used."""

import itertools

import numpy as np
import pytest

from curation.config import TrustConfig
from curation.hashing import derive, hash_unit
from curation.trust.parts import FIT, REPEAT, UNUSED, VALIDATION, assign_parts, find_first_of_each, find_independent

IDS_N = np.random.default_rng(0).permutation(40_000)
SHARES = (0.0025, 0.025, 0.25, 1.0)


def parts(share: float, seed: int = 3) -> np.ndarray:
    return assign_parts(IDS_N, TrustConfig(source_share=share), seed)


def test_smaller_shares_lie_in_larger_ones_and_a_row_stays_in_its_part() -> None:
    whole_N = parts(1.0)
    assert not (whole_N == UNUSED).any()
    for smaller, larger in itertools.pairwise(SHARES):
        small_N, large_N = parts(smaller), parts(larger)
        used_N = small_N != UNUSED
        np.testing.assert_array_equal(small_N[used_N], large_N[used_N])
        assert used_N.sum() == pytest.approx(smaller * len(IDS_N), abs=5 * np.sqrt(smaller * len(IDS_N)))


def test_a_share_is_drawn_apart_from_the_parts() -> None:
    used_N = parts(0.25) != UNUSED
    np.testing.assert_array_equal(used_N, hash_unit(IDS_N, derive(3, "source share")) < 0.25)
    for part, share in ((VALIDATION, 0.2), (FIT, 0.8)):
        assert (parts(0.25) == part).sum() == pytest.approx(share * used_N.sum(), abs=5 * np.sqrt(share * used_N.sum()))
    assert abs(np.mean((parts(0.25, seed=4) != UNUSED)[used_N]) - 0.25) < 0.03, "another seed takes other rows"


def test_copies_of_a_question_are_one_row_on_one_side() -> None:
    rng = np.random.default_rng(1)
    question_N = IDS_N[rng.integers(0, 10_000, len(IDS_N))]  # about four rows a question
    first_N = find_first_of_each(question_N)
    assert [int(place) for place in np.flatnonzero(first_N)] == sorted(
        {question: place for place, question in reversed(list(enumerate(question_N.tolist())))}.values()
    )
    found_N = assign_parts(question_N, TrustConfig(source_share=0.25), 3)
    np.testing.assert_array_equal(found_N == REPEAT, ~first_N)
    alone_N = assign_parts(question_N[first_N], TrustConfig(source_share=0.25), 3)
    np.testing.assert_array_equal(found_N[first_N], alone_N)
    assert set(alone_N.tolist()) == {FIT, VALIDATION, UNUSED}


def test_no_part_divides_a_group_and_repeats_stay_left_out() -> None:
    rng = np.random.default_rng(0)
    question_N, cluster_N = rng.integers(0, 3_000, 4_000), rng.integers(0, 2**60, 400)[rng.integers(0, 400, 4_000)]
    config = TrustConfig()
    part_N = assign_parts(question_N, config, 3, unit_N=cluster_N)
    for cluster in set(cluster_N.tolist()):
        assert len({*part_N[cluster_N == cluster].tolist()} - {REPEAT}) <= 1
    assert (part_N >= 0).sum() == len(np.unique(question_N))
    assert abs((part_N == VALIDATION).sum() / (part_N >= 0).sum() - config.validation_fraction) < 0.07


def test_one_row_of_a_cluster_counts_and_rows_are_as_likely_as_each_other() -> None:
    rng = np.random.default_rng(5)
    size_K = rng.integers(1, 20, 400)
    cluster_N = np.repeat(rng.integers(-(2**60), 2**60, 400), size_K)
    ids_N, question_N = rng.permutation(len(cluster_N)) * 3, np.arange(len(cluster_N))
    kept_N = find_independent(question_N, ids_N, cluster_N)
    assert len(np.unique(cluster_N[kept_N])) == kept_N.sum()
    assert kept_N.sum() == pytest.approx(len(cluster_N) / size_K.max(), rel=0.15)
    # Rows of large clusters are wrong more often: clusters that count alike would hide it.
    size_N = np.repeat(size_K, size_K)
    assert size_N[kept_N].mean() == pytest.approx(size_N.mean(), rel=0.06) and size_K.mean() < 0.85 * size_N.mean()
    copies_N = question_N // 2 * 2
    assert not find_independent(copies_N, ids_N, cluster_N)[1::2].any()
    np.testing.assert_array_equal(find_independent(copies_N, ids_N), find_first_of_each(copies_N))
    assert find_independent(ids_N[:0], ids_N[:0], ids_N[:0]).sum() == 0
