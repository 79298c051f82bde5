"""Where a stage stands: its speed, and how much of it goes into the events."""

import itertools
import json
from dataclasses import asdict, replace

import pytest

from curation.telemetry.standing import Actors, Pace, ProgressJournal, Standing, Work, format_speed

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
    for second in (10, 20):
        later = journal.fields(Standing(rows=900 + second, total=1000), float(second))
        assert later == {"rows": 900 + second, "total": 1000, "rows_per_second": 1.0}  # too early for a time left
    later = journal.fields(Standing(rows=950, total=1000), 50.0)
    assert later == {"rows": 950, "total": 1000, "rows_per_second": 1.0, "seconds_left": 50.0}


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


def paced(*rows: int) -> Pace:
    """Progress of so many rows, ten seconds apart."""
    pace = Pace()
    for place, number in enumerate(rows):
        pace.add(10.0 * place, number)
    return pace


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((0, 20), "20 of 1,000 rows (2 %), 2 rows/s"),  # one measurement
        ((0, 1), "1 of 1,000 rows (0 %), 0.1 rows/s"),  # not "about 3 h left"
        ((0, 20, 40, 60, 80), "80 of 1,000 rows (8 %), 2 rows/s, about 8 min left"),
        ((0, 5, 10, 60, 110), "110 of 1,000 rows (11 %), 2.8 rows/s, about 5 min left"),
    ],
)
def test_the_time_left_is_told_once_the_speed_is_known(rows, words):
    standing, pace = Standing(rows=rows[-1], total=1000), paced(*rows)
    assert standing.words(pace.rows_per_second, standing.left(pace)) == words


def test_no_time_is_left_without_an_actor():
    rows, idle = (0, 20, 40, 60, 80), replace(WORK, actors=replace(WORK.actors, running=0))
    assert Standing(rows=80, total=1000, work=WORK).left(paced(*rows)) == pytest.approx(460)
    assert Standing(rows=80, total=1000, work=idle).left(paced(*rows)) is None
    journal = ProgressJournal()
    for place, number in enumerate(rows):
        found = journal.fields(Standing(rows=number, total=1000, work=idle), 20.0 * place)
    assert found is not None and "rows_per_second" in found and "seconds_left" not in found


def test_work_comes_back_from_an_event():
    assert Work.from_json(json.loads(json.dumps(asdict(WORK)))) == WORK


@pytest.mark.parametrize(
    ("rows_per_second", "words"),
    [(12_345.6, "12,346"), (9.96, "10"), (9.9, "9.9"), (0.3, "0.3"), (0.0004, "0.0004")],
)
def test_a_slow_model_is_never_one_of_zero_rows_a_second(rows_per_second: float, words: str):
    assert format_speed(rows_per_second) == words


def test_the_event_of_a_very_slow_stage_has_its_speed():
    journal = ProgressJournal()
    journal.fields(Standing(rows=0, total=10), 0.0)
    found = journal.fields(Standing(rows=1, total=10), 5_000.0)
    assert found is not None and found["rows_per_second"] == pytest.approx(0.0002)


def test_steps_and_how_good_they_are_are_told():
    standing = Standing(rows=400, total=2000, unit="steps", note="AUC 0.812 on validation rows")
    assert standing.words(100.0, 16.0) == (
        "400 of 2,000 steps (20 %), 100 steps/s, about 16 s left; AUC 0.812 on validation rows"
    )
    fields = ProgressJournal().fields(standing, 0.0)
    assert fields == {"rows": 400, "total": 2000, "unit": "steps", "note": "AUC 0.812 on validation rows"}
