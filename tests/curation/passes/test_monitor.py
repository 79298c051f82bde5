"""What is told of a pass while it runs, against a real pool of actors."""

import time

import pytest

from curation.config import ActorsConfig
from curation.passes.monitor import Tally
from curation.passes.pool import ActorPool
from curation.tables.stream import Round, Written
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Standing


def no_actors() -> ActorPool:
    return ActorPool(ActorsConfig(), num_cpus=1, num_calls=1)


def make_tally(told: list[Standing], **settings) -> Tally:
    settings = {"done": 100, "total": 300, "chunks": 4, "calls": 2} | settings
    return Tally("t.lance", no_actors(), told=Telemetry(), update=told.append, **settings)


def test_rows_chunks_errors_and_lag(local_ray, monkeypatch):
    told: list[Standing] = []
    with make_tally(told) as tally:
        assert (told[0].rows, told[0].total, told[0].work.chunks_left) == (100, 300, 4)
        began = time.time()
        tally.wrote(
            Written("t.lance", 50, began - 7, {"errors": {"long": 2}, "teacher": {"start_seconds": 1.5}, "deaths": 2})
        )
        tally.wrote(Written("t.lance", 50, began - 2, {"errors": {"long": 1, "empty": 1}}))
        tally.wrote(Written("signal.lance", 50, began - 90, {}))
        while len(told) < 2:  # the thread's turn, no commit
            time.sleep(0.05)
        work = told[-1].work
        assert work.chunks_left == 2 and work.errors == {"long": 3, "empty": 1} and told[-1].rows == 100
        assert work.lag_seconds == pytest.approx(7 + time.time() - began, abs=1)
        assert work.commit_age_seconds == pytest.approx(time.time() - began, abs=1)
        tally.committed(Round({"t.lance": 100, "signal.lance": 50}, 0.1))
        assert told[-1].rows == 200 and told[-1].work.lag_seconds == 0 and told[-1].work.commit_age_seconds < 1
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        tally.committed(Round({"t.lance": 100}, 0.1))
        assert 0 <= told[-1].work.commit_age_seconds < 60 and told[-1].work.lag_seconds == 0
    assert tally.teachers == [{"start_seconds": 1.5}] and tally.deaths == 2


def test_what_cannot_be_told_does_not_end_a_pass(local_ray, caplog):
    def full(standing: Standing) -> None:
        raise OSError("No space left on device")

    with Tally("t.lance", no_actors(), done=0, total=1, chunks=1, calls=1, told=Telemetry(), update=full) as tally:
        tally.committed(Round({"t.lance": 1}, 0.1))
    assert caplog.text.count("No space left on device") >= 3
