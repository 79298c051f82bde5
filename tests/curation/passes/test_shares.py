"""The shares of calls that work at once add up to the time in which any of them worked."""

import pytest

from curation.passes import actor
from curation.passes.actor import Shares


def test_a_moment_is_shared_by_the_calls_that_work(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(actor.time, "monotonic", lambda: clock[0])
    measure = Shares()
    clock[0] = 107.0  # nothing works
    with measure.measured() as first:
        clock[0] = 109.0
        with measure.measured() as second:
            clock[0] = 113.0
        clock[0] = 114.0
    with measure.measured() as third:
        clock[0] = 115.0
    assert (first(), second(), third()) == (2 + 2 + 1, 2, 1)
