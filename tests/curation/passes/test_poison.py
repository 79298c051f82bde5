"""Which row kills its process, against a process that dies on given rows, or now and then."""

import random

import pytest

from curation.passes.poison import PARTS, PoisonSearch


def work_on(num_rows, poison, *, max_row_retries=1, rng=None, rate=0.0):
    """Attempts until one is through: the knowledge at its end, and the pieces that each attempt did without harm."""
    text, attempts = PoisonSearch.of(num_rows).to_json(), []
    while True:
        known, done = PoisonSearch.from_json(text), []
        known.begin(max_row_retries=max_row_retries)
        for piece in known.pieces():
            text = known.to_json()
            if poison & set(piece) or (rng is not None and rng.random() < rate):
                break
            done.append(list(piece))
        else:
            return known, [*attempts, done]
        attempts.append(done)


@pytest.mark.parametrize("num_rows", [1, 2, 16, 17, 100, 256, 1024])
@pytest.mark.parametrize("num_poison", [0, 1, 3])
def test_exactly_the_poison_is_found_and_every_other_row_done_once(num_rows, num_poison):
    rng = random.Random(num_rows)
    poison = set(rng.sample(range(num_rows), min(num_poison, num_rows)))
    known, attempts = work_on(num_rows, poison)
    assert set(known.poison) == poison
    assert sorted(row for piece in attempts[-1] for row in piece) == sorted(set(range(num_rows)) - poison)


def test_one_poison_row_costs_two_deaths_to_find_and_two_to_be_sure():
    known, attempts = work_on(PARTS**2, {77})
    assert known.num_deaths == 4
    assert len(attempts[-1]) <= PARTS  # the last attempt does the rest of its part alone, and else all at once
    assert work_on(PARTS**2, {77}, max_row_retries=3)[0].num_deaths == 6


def test_without_a_death_the_chunk_is_one_piece():
    known, attempts = work_on(50, set())
    assert known.is_whole and attempts == [[list(range(50))]]


def test_deaths_by_chance_seldom_condemn_a_row():
    """Processes that are killed at 5 % of all pieces: no row dies alone twice but by that chance squared."""
    condemned = 0
    for seed in range(200):
        rng = random.Random(seed)
        known, attempts = work_on(64, set(), rng=rng, rate=0.05)
        condemned += len(known.poison)
        assert sorted([*known.poison, *(row for piece in attempts[-1] for row in piece)]) == list(range(64))
    assert condemned <= 2


def test_a_chunk_whose_node_was_lost_is_begun_again_as_it_was():
    known = PoisonSearch.of(50)
    next(known.pieces())
    known.begin(max_row_retries=1, died_with_node=True)
    assert known.is_whole and list(known.pieces()) == [list(range(50))]
