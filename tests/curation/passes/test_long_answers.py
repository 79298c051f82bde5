"""Answers that last long, on models that answer rows side by side: chunks fill them, whatever the time of an answer."""

import pytest

from benchmarks.long_answers import BEFORE, NOW, SLOTS, lengths_of, one_second, ratio, step_seconds
from curation.config import AskConfig
from curation.passes.cutting import Cutter
from curation.registry import BACKENDS


@pytest.mark.parametrize("seconds", [5.0, 60.0, 300.0])
@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize("actors", [1, 8])
def test_constant_times_are_nearly_as_fast_as_all_rows_at_once(seconds, varied, actors):
    lengths = lengths_of(seconds, varied=varied)
    assert ratio(NOW, lengths, one_second, actors=actors) >= 0.9
    assert ratio(BEFORE, lengths, one_second, actors=actors) < 0.7


@pytest.mark.parametrize("tokens", [256, 1_000, 2_500])
def test_so_are_answers_of_many_tokens(tokens):
    for varied in (False, True):
        assert ratio(NOW, lengths_of(tokens, varied=varied), step_seconds) >= 0.9


def test_few_rows_are_all_under_way_and_spread_over_the_actors():
    calls, actors = BACKENDS["vllm"].calls, 4
    cutter, left, sizes = Cutter(AskConfig(backend="scripted")), actors * SLOTS // 2, []
    cutter.learn(32, 300.0)
    for _ in range(actors * calls):
        sizes.append(min(left, cutter.rows(left, actors=actors, calls=calls, slots=SLOTS)))
        left -= sizes[-1]
    assert not left and max(sizes) == SLOTS // 2 and sum(size > 0 for size in sizes) >= 2 * actors
