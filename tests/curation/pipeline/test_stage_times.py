"""Estimates of stages and of a run: from what was done alike, and against a simulation of what takes how long."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built import Built
from test_running import config_of

from curation.metrics import Estimate
from curation.pipeline.chain import describe
from curation.pipeline.stage_times import OVERHEAD, estimate, estimate_run, estimate_seconds
from curation.rundir import history
from curation.rundir.graph import Done, Stage
from curation.rundir.history import StageTime
from curation.rundir.hosts import Host
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run, Task, Timing
from curation.sources import discover


def stage(name: str, after: tuple[Stage, ...] = (), *, cpus: float = 1.0, **inputs: Any) -> Stage:
    def work(task: Task, **given: Any) -> Done:
        return Done(outputs={"done": name}, rows=10)

    needs = tuple(other.value("done") for other in after)
    return Built(name=name, work=work, inputs=inputs, needs=needs, takes={"CPU": cpus}, num_rows=10)


def exactly(seconds: float) -> Estimate:
    return Estimate(value=seconds, low=seconds, high=seconds, n=0)


def test_an_estimate_rests_on_the_most_similar_that_is_known() -> None:
    asked = stage("asked", model="a")
    kind, alike, other = (
        asked.kind,
        history.compute_likeness(asked),
        history.compute_likeness(stage("asked", model="b")),
    )
    assert alike != other and alike == history.compute_likeness(stage("other name", model="a", seed=3))
    rough = estimate(asked, 1000, None, [])
    similar = estimate(asked, 1000, None, [StageTime(kind=kind, like=other, amount=1000, seconds=50)])
    same = [StageTime(kind=kind, like=alike, amount=1000, seconds=seconds) for seconds in (40, 44, 42)]
    known = estimate(asked, 1000, None, [StageTime(kind=kind, like=other, amount=1000, seconds=50), *same])
    probed = estimate(asked, 1000, exactly(30), same)
    assert [item.basis for item in (rough, similar, known, probed)] == ["rough", "similar", "history", "probe"]
    assert similar.seconds.value == 50 and known.seconds.value == 42 and probed.seconds.value == 30
    widths = [item.seconds.high / item.seconds.low for item in (known, similar, rough)]
    assert widths == sorted(widths) and known.seconds.low < 40 < 44 < known.seconds.high
    more = estimate(asked, 8000, None, same).seconds  # a fixed part or none: between both
    assert more.low < 42 and more.high > 8 * 44 and 2 * 42 < more.value < 8 * 42


def test_what_takes_longest_is_known_from_stages_alike_and_a_model_never_seen_comes_first(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    found = describe(config, {name: discover(source) for name, source in config.sources.items()})
    stages = {stage.name: stage for stage in found.stages}
    label, trust = stages["gen-0/label-pool"], stages["gen-0/trust"]
    assert estimate_seconds(label, []) == math.inf > estimate_seconds(trust, [])
    source = StageTime(
        kind=label.kind, like=history.compute_likeness(label), amount=20, seconds=240
    )  # of the same model
    fit = StageTime(kind=trust.kind, like=history.compute_likeness(trust), amount=20, seconds=15)
    assert estimate_seconds(label, [source, fit]) == 240 > estimate_seconds(trust, [source, fit])
    quick = StageTime(kind=label.kind, like=history.compute_likeness(label), amount=20, seconds=2)
    assert estimate_seconds(label, [quick, fit]) < estimate_seconds(trust, [quick, fit])


def test_stages_that_take_a_fixed_time_and_one_a_row_lie_in_the_range() -> None:
    """Simulated machines: 3 s to 20 s fixed, any rate, 15 % of noise, forecasts from two runs of other sizes."""
    rng, inside = random.Random(0), 0
    asked = stage("asked", model="a")
    kind, alike = asked.kind, history.compute_likeness(asked)
    for _ in range(400):
        fixed, rate = rng.uniform(3, 20), 10 ** rng.uniform(-4, -1)

        def took(amount: int, fixed: float = fixed, rate: float = rate) -> float:
            return (fixed + rate * amount) * rng.lognormvariate(0, 0.15)

        known = [
            StageTime(kind=kind, like=alike, amount=amount, seconds=took(amount))
            for amount in (rng.randrange(500, 5_000), rng.randrange(500, 20_000))
        ]
        amount = rng.randrange(500, 50_000)
        found = estimate(asked, amount, None, known).seconds
        inside += found.low <= took(amount) <= found.high
    assert inside >= 0.95 * 400


def test_a_run_takes_what_its_longest_path_takes_where_there_is_room() -> None:
    first = stage("first")
    middle = [stage(f"middle-{number}", (first,)) for number in range(3)]
    last = stage("last", tuple(middle), cpus=2)
    stages = [first, *middle, last]
    seconds = {item.name: exactly(10) for item in stages}
    for cpus, expected in ((1, 50), (2, 40), (3, 30)):
        total = estimate_run(stages, seconds, {"CPU": float(cpus)})
        assert total.value == pytest.approx(expected + OVERHEAD.value), cpus
        assert total.low < expected + OVERHEAD.value < total.high
    assert estimate_run(stages, seconds, {"CPU": 3.0}, most=1).value == pytest.approx(50 + OVERHEAD.value)
    rest = {name: about for name, about in seconds.items() if name != "first"}  # it is done
    assert estimate_run(stages, rest, {"CPU": 3.0}).value == pytest.approx(20 + OVERHEAD.value)


def test_stages_that_share_a_model_take_as_long_together_as_one_after_another() -> None:
    host = Host(name="a model", kind="model", shared=True)
    asked = [replace(stage(name), host=host) for name in ("source", "pool")]
    seconds = {"source": exactly(314), "pool": exactly(1251)}
    assert estimate_run(asked, seconds, {"CPU": 4.0}).value == pytest.approx(314 + 1251 + OVERHEAD.value)


def test_what_stages_took_is_kept_beside_the_run_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(item: Stage, rows: int, seconds: float) -> None:
        history.note(tmp_path / "run", item, rows, max(seconds, 0.001))

    whole = stage("whole", model="a")
    manifest = Manifest.load(tmp_path / "run")
    manifest.directory_of("begun", {"revision": 1}).mkdir(parents=True)  # a driver was killed in it
    stages = [whole, stage("begun", (whole,))]
    Run("test", manifest, room=lambda: {"CPU": 1.0}, timing=Timing(note=noted)).do(stages)
    (kept,) = history.read(tmp_path / "other run")
    assert (kept.kind, kept.like, kept.amount) == (whole.kind, history.compute_likeness(whole), 10)
    (tmp_path / history.FILE).write_text((tmp_path / history.FILE).read_text() + "{\nnull\n[1]\n")
    assert history.read(tmp_path / "run") == [kept]
    monkeypatch.setattr("platform.node", lambda: "another machine")
    assert history.read(tmp_path / "run") == []
    monkeypatch.setattr(history, "MOST_LINES", 4)
    for _ in range(9):
        history.note(tmp_path / "run", whole, 10, 1.0)
    assert len((tmp_path / history.FILE).read_text().splitlines()) <= 4
