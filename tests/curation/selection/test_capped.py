"""The best rows under a cap on labels, found in one pass, against a walk down the sorted rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.capped import CAP, CASES, NUM_FREQUENT, Labelled
from benchmarks.risk_simulation import chess_like
from curation.hashing import hash64
from curation.selection import capped
from curation.selection.capped import count_before, make_own_labels, walk_batches, walk_parts


def by_a_walk(ids_N, scores_N, labels_N, n, cap, seed):
    """The ids in rank order, as the rule is told in words; label -1: none."""
    ranked = sorted(
        (-score, int(tie), int(row), int(label))
        for score, tie, row, label in zip(scores_N.tolist(), hash64(ids_N, seed), ids_N, labels_N, strict=True)
        if score > -np.inf
    )
    taken, with_label = [], Counter()
    for _, _, row, label in ranked:
        if len(taken) < n and (label < 0 or with_label[label] < cap):
            taken.append(row)
            with_label[label] += 1
    return taken


def batches(ids_N, scores_N, labels_N, num_parts):
    """The rows as the walk reads them."""
    known_N = np.where(labels_N < 0, make_own_labels(ids_N), hash64(labels_N, 0) >> np.uint64(1))
    for places in np.array_split(np.arange(len(ids_N)), num_parts):
        yield ids_N[places], scores_N[places], lambda some, places=places: known_N[places][some]


@settings(max_examples=150, deadline=None)
@given(
    scores=st.lists(
        st.one_of(st.sampled_from([0.0, -0.0, np.nan, -np.inf, np.inf, 1.0]), st.floats(width=32)),
        min_size=1,
        max_size=60,
    ),
    num_labels=st.integers(1, 30),
    n=st.integers(1, 70),
    cap=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
    held=st.sampled_from([1, 7, 1 << 18]),
    num_parts=st.integers(1, 5),
)
def test_parts_in_any_order_give_what_a_walk_gives(scores, num_labels, n, cap, seed, dtype, held, num_parts):
    scores_N, rng = np.array(scores, dtype=dtype), np.random.default_rng(seed)
    ids_N = rng.permutation(10 * len(scores_N))[: len(scores_N)]
    labels_N = rng.integers(-1, num_labels, len(ids_N))
    wanted = by_a_walk(ids_N, scores_N, labels_N, n, cap, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capped, "HELD_ROWS", held)
        found = walk_batches(batches(ids_N, scores_N, labels_N, num_parts), n, cap, seed)
        order_N = rng.permutation(len(ids_N))
        parts = [
            walk_batches(batches(ids_N[some], scores_N[some], labels_N[some], 2), n, cap, seed)
            for some in np.array_split(order_N, num_parts)
        ]
        again = walk_parts(parts, n, cap)
    assert found.row_ids_n.tolist() == again.row_ids_n.tolist() == wanted
    score_of = dict(zip(ids_N.tolist(), scores_N.tolist(), strict=True))
    assert found.score_n.tolist() == [score_of[row] for row in wanted]
    for one in (found, again):
        assert (one.num_rows, one.num_scored) == (len(ids_N), int((scores_N > -np.inf).sum()))


@settings(max_examples=150, deadline=None)
@given(
    scores=st.lists(
        st.one_of(st.sampled_from([0.0, -0.0, np.nan, -np.inf, 1.0]), st.floats(width=32)), min_size=1, max_size=80
    ),
    quotas=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    held=st.sampled_from([1, 7, 1 << 18]),
    num_parts=st.integers(1, 6),
)
def test_quotas_take_the_best_of_each_label(scores, quotas, seed, held, num_parts):
    """The last label has no place; a label may have fewer rows than places."""
    rng, scores_N, cap_S = np.random.default_rng(seed), np.array(scores), np.array([*quotas, 0])
    ids_N = rng.permutation(10 * len(scores_N))[: len(scores_N)]
    labels_N = rng.integers(0, len(cap_S), len(ids_N))
    tie_N, n = hash64(ids_N, seed), int(cap_S.sum())
    ranked = sorted(np.flatnonzero(scores_N > -np.inf), key=lambda place: (-scores_N[place], int(tie_N[place])))
    best = [[place for place in ranked if labels_N[place] == label][:cap] for label, cap in enumerate(cap_S)]
    wanted = [int(ids_N[place]) for place in ranked if any(place in some for some in best)]

    def batches(places_N):
        for some in np.array_split(places_N, num_parts):
            yield ids_N[some], scores_N[some], lambda kept, some=some: labels_N[some][kept].astype(np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capped, "HELD_ROWS", held)
        order_N = rng.permutation(len(ids_N))
        found = walk_batches(batches(order_N), n, cap_S, seed)
        parts = [walk_batches(batches(some), n, cap_S, seed) for some in np.array_split(order_N, num_parts)]
        again = walk_parts(parts, n, cap_S)
    assert found.row_ids_n.tolist() == again.row_ids_n.tolist() == wanted


def test_rows_before_a_row_with_its_label_are_counted():
    assert count_before(np.array([5, 3, 5, 5, 3, 1])).tolist() == [0, 0, 1, 2, 1, 0]
    assert count_before(np.zeros(0, dtype=np.uint64)).tolist() == []


def test_the_noise_that_the_benchmark_computes_is_that_of_a_large_pool():
    for among_right, among_wrong in CASES.values():
        of, num, threshold = (
            Labelled(scores=chess_like(2.0), among_right=among_right, among_wrong=among_wrong),
            10**6,
            1.0,
        )
        rng = np.random.default_rng(0)
        scores_N, correct_N = of.scores.draw(num, rng)
        frequent_N = rng.random(num) < np.where(correct_N, among_right, among_wrong)
        labels_N = np.where(frequent_N, rng.integers(0, NUM_FREQUENT, num), -1)
        past = np.flatnonzero(scores_N >= threshold)
        parts = batches(past, scores_N[past], labels_N[past], 3)
        left = walk_batches(parts, num, round(CAP * num), 0).row_ids_n
        share, noise = of.left(threshold)
        assert len(left) / len(past) == pytest.approx(share, abs=4 / len(past) ** 0.5)
        assert 1 - correct_N[left].mean() == pytest.approx(noise, abs=2 / len(left) ** 0.5)
