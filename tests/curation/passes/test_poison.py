"""Which row kills its process, against a process that dies on given rows, or now and then."""

import random
from dataclasses import replace

import numpy as np
import pytest

from curation.passes.cutting import Chunk
from curation.passes.poison import PARTS, divide_suspect


def work_on(num_rows, poison, *, max_row_retries=1, rng=None, rate=0.0):
    """The poison, the chunks that were done without harm, and the deaths that they report."""
    waiting, found, done, deaths = [Chunk.of(np.arange(num_rows))], [], [], 0
    while waiting:
        chunk = waiting.pop(0)
        rows = chunk.offsets.tolist()
        if chunk.is_poison:
            found += rows
        elif poison & set(rows) or (rng is not None and rng.random() < rate):
            waiting = [*divide_suspect(chunk, max_row_retries=max_row_retries), *waiting]
            continue
        else:
            done.append(rows)
        deaths += chunk.deaths
    return found, done, deaths


@pytest.mark.parametrize("num_rows", [1, 2, 16, 17, 100, 256, 1024])
@pytest.mark.parametrize("num_poison", [0, 1, 3])
def test_exactly_the_poison_is_found_and_every_other_row_done_once(num_rows, num_poison):
    rng = random.Random(num_rows)
    poison = set(rng.sample(range(num_rows), min(num_poison, num_rows)))
    found, done, _ = work_on(num_rows, poison)
    assert sorted(found) == sorted(poison)
    assert sorted(row for rows in done for row in rows) == sorted(set(range(num_rows)) - poison)


def test_one_poison_row_costs_two_deaths_to_find_and_two_to_be_sure():
    _, done, deaths = work_on(PARTS**2, {77})
    assert deaths == 4
    assert sorted(map(len, done)) == [1] * (PARTS - 1) + [PARTS] * (PARTS - 1), "the rest of its part row by row"
    assert work_on(PARTS**2, {77}, max_row_retries=3)[2] == 6


def test_without_a_death_the_chunk_is_one_piece():
    assert work_on(50, set()) == ([], [list(range(50))], 0)


def test_deaths_by_chance_seldom_condemn_a_row():
    """Processes that are killed at 5 % of all pieces: no row dies alone twice but by that chance squared."""
    condemned = 0
    for seed in range(200):
        found, done, _ = work_on(64, set(), rng=random.Random(seed), rate=0.05)
        condemned += len(found)
        assert sorted([*found, *(row for rows in done for row in rows)]) == list(range(64))
    assert condemned <= 2


def test_what_is_left_of_a_suspect_row_keeps_its_history():
    (chunk,) = divide_suspect(Chunk.of(np.array([7])), max_row_retries=1)
    assert (chunk.is_suspect, chunk.solo_crashes, chunk.deaths, chunk.is_poison) == (True, 1, 1, False)
    assert chunk.only(np.array([0])) == chunk and chunk.only(np.array([], dtype=np.int64)) is None
    assert divide_suspect(chunk, max_row_retries=1) == [replace(chunk, solo_crashes=2, deaths=2, is_poison=True)]
