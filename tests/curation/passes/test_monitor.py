"""What is told of a pass while it runs."""

import time
from dataclasses import replace

import pytest

from curation.passes.run import NOBODY, Tally
from curation.tables.stream import WrittenFragment
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Standing


def make_tally(told: list[Standing]) -> Tally:
    return Tally("t.lance", done=100, total=300, telemetry=Telemetry(), update=told.append)


@pytest.mark.long
def test_rows_chunks_errors_and_lag(monkeypatch):
    told: list[Standing] = []
    now = replace(NOBODY, chunks_left=4)
    tally = make_tally(told)
    with tally.telling(lambda: now):
        assert (told[0].rows, told[0].reached, told[0].total, told[0].work.chunks_left) == (100, 100, 300, 4)
        now = replace(now, chunks_left=2, answered=120, actor_seconds=1.5)
        began = time.time()
        tally.wrote(
            WrittenFragment(
                "t.lance", 50, began - 7, {"errors": {"long": 2}, "teacher": {"start_seconds": 1.5}, "deaths": 2}
            )
        )
        tally.wrote(WrittenFragment("t.lance", 50, began - 2, {"errors": {"long": 1, "empty": 1}}))
        tally.wrote(WrittenFragment("signal.lance", 50, began - 90, {}))
        while len(told) < 2:  # the thread's turn, no commit
            time.sleep(0.05)
        work = told[-1].work
        assert work.chunks_left == 2 and work.errors == {"long": 3, "empty": 1} and told[-1].rows == 100
        assert told[-1].reached == 220, "rows that are answered and not committed count as progress"
        assert work.spent.actor_seconds == 1.5
        assert work.lag_seconds == pytest.approx(7 + time.time() - began, abs=1)
        assert work.commit_age_seconds == pytest.approx(time.time() - began, abs=1)
        tally.committed({"t.lance": 100, "signal.lance": 50})
        assert told[-1].rows == 200 and told[-1].work.lag_seconds == 0 and told[-1].work.commit_age_seconds < 1
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        tally.committed({"t.lance": 100})
        assert 0 <= told[-1].work.commit_age_seconds < 60 and told[-1].work.lag_seconds == 0
    assert tally.teachers == [{"start_seconds": 1.5}] and tally.deaths == 2


def test_what_cannot_be_told_does_not_end_a_pass(caplog):
    def full(standing: Standing) -> None:
        raise OSError("No space left on device")

    tally = Tally("t.lance", done=0, total=1, telemetry=Telemetry(), update=full)
    with tally.telling(lambda: NOBODY):
        tally.committed({"t.lance": 1})
    assert caplog.text.count("No space left on device") >= 3
