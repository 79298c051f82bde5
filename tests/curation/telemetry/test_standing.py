"""Where a stage stands: its speed, and how much of it goes into the events."""

import itertools
import json
from dataclasses import asdict

import pytest

from curation.telemetry.standing import Actors, Pace, ProgressJournal, Standing, Work

ACTORS = Actors(running=8, pending=0, restarting=0, deaths=0)
WORK = Work(
    actors=ACTORS, chunks_left=9, chunks_in_flight=8, errors={"long": 2}, lag_seconds=1.5, commit_age_seconds=2.0
)


def test_pace_is_that_of_the_last_minutes():
    pace = Pace()
    assert pace.rows_per_second is None
    for second in range(1000):  # 10 rows/s, then 100
        pace.add(second, 10 * second if second < 500 else 5000 + 100 * (second - 500))
    assert pace.rows_per_second == pytest.approx(100)
    pace.add(1500, 54_900)
    pace.add(1700, 54_900)
    assert pace.rows_per_second is None  # nothing is done meanwhile, so that nobody knows when it ends


def test_a_resumed_stage_has_the_speed_of_this_run():
    journal = ProgressJournal()
    first = journal.fields(Standing(rows=900, total=1000), 0.0)
    assert first == {"rows": 900, "total": 1000}
    later = journal.fields(Standing(rows=950, total=1000), 10.0)
    assert later == {"rows": 950, "total": 1000, "rows_per_second": 5.0, "seconds_left": 10.0}


def test_three_days_of_events_are_small_and_the_last_standing_is_told():
    journal, told, total = ProgressJournal(), [], 3 * 86_400
    for second in range(total + 1):
        fields = journal.fields(Standing(rows=second, total=total, work=WORK), float(second))
        if fields is not None:
            told.append((second, json.dumps(fields)))
    assert told[0][0] == 0 and told[-1][0] == total
    assert journal.fields(Standing(rows=total, total=total), total + 2.0) is None
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(told[:-1])]
    assert min(gaps) >= 3 and max(gaps) <= 60 and gaps[0] == 3
    assert sum(len(line) for _, line in told) < 2_000_000


def test_work_comes_back_from_an_event():
    assert Work.from_json(json.loads(json.dumps(asdict(WORK)))) == WORK
