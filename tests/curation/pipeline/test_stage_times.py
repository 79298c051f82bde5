"""Estimates of stages and of a run, from what the run has done."""

import random
from typing import Any

import pytest
from built import Built

from curation.metrics import Estimate
from curation.pipeline.forecasting import OVERHEAD, StageTimeEstimate, estimate, estimate_run
from curation.rundir.graph import Done, Stage
from curation.rundir.manifest import StageRecord
from curation.rundir.run import Task


def stage(name: str, after: tuple[Stage, ...] = (), *, cpus: float = 1.0, **inputs: Any) -> Stage:
    def work(task: Task, **given: Any) -> Done:
        return Done(outputs={"done": name}, rows=10)

    needs = tuple(other.value("done") for other in after)
    return Built(name=name, work=work, inputs=inputs, needs=needs, takes={"CPU": cpus}, num_rows=10)


def exactly(seconds: float) -> Estimate:
    return Estimate(value=seconds, low=seconds, high=seconds, n=0)


def estimated(
    asked: Stage, *done: tuple[str, int, float], probed: Estimate | None = None, rows: int = 1000
) -> StageTimeEstimate:
    records = {
        name: StageRecord(
            name=name,
            fingerprint="",
            inputs={},
            outputs={},
            rows=num_rows,
            seconds=seconds,
            started="",
            kind=asked.kind,
        )
        for name, num_rows, seconds in done
    }
    found = estimate(asked, rows, probed, records)
    assert found is not None
    return found


def test_an_estimate_rests_on_the_most_similar_that_is_known() -> None:
    asked = stage("asked")
    assert estimate(asked, 1000, None, {}) is None
    similar = estimated(asked, ("other", 1000, 50))
    own = estimated(asked, ("other", 1000, 50), ("asked", 1000, 42))
    probed = estimated(asked, ("asked", 1000, 42), probed=exactly(30))
    assert [item.basis for item in (similar, own, probed)] == ["record", "record", "probe"]
    assert similar.seconds.value == 50 and own.seconds.value == 42 and probed.seconds.value == 30
    more = estimated(asked, ("asked", 1000, 42), rows=8000).seconds  # a fixed part or none: between both
    assert more.low < 42 and more.high > 8 * 42 and 2 * 42 < more.value < 8 * 42


def test_stages_that_take_a_fixed_time_and_one_a_row_lie_in_the_range() -> None:
    """Simulated machines: 3 s to 20 s fixed, any rate, 15 % of noise, forecasts from two runs of other sizes."""
    rng, inside = random.Random(0), 0
    asked = stage("asked")
    for _ in range(400):
        fixed, rate = rng.uniform(3, 20), 10 ** rng.uniform(-4, -1)

        def took(amount: int, fixed: float = fixed, rate: float = rate) -> float:
            return (fixed + rate * amount) * rng.lognormvariate(0, 0.15)

        done = [
            (f"other-{place}", amount, took(amount))
            for place, amount in enumerate((rng.randrange(500, 5_000), rng.randrange(500, 20_000)))
        ]
        amount = rng.randrange(500, 50_000)
        found = estimated(asked, *done, rows=amount).seconds
        inside += found.low <= took(amount) <= found.high
    assert inside >= 0.95 * 400


def test_a_run_takes_at_least_its_longest_path_and_what_its_stages_take_together() -> None:
    first = stage("first")
    middle = [stage(f"middle-{number}", (first,)) for number in range(3)]
    last = stage("last", tuple(middle), cpus=2)
    stages = [first, *middle, last]
    seconds = {item.name: exactly(10) for item in stages}
    total = estimate_run(stages, seconds)
    assert total.value == pytest.approx(50 + OVERHEAD.value) and total.high == pytest.approx(50 + OVERHEAD.high)
    assert total.low == pytest.approx(30 + OVERHEAD.low)
    rest = {name: about for name, about in seconds.items() if name != "first"}  # it is done
    assert estimate_run(stages, rest).value == pytest.approx(40 + OVERHEAD.value)
