"""deploy/alerts.yaml: no rule fires on a healthy run that is scraped every 5 s, and each fires on its fault."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from alert_rules import Expression, Labels, Scrape, firing, rules

from curation.telemetry import metrics

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
RULES = rules(ROOT / "deploy" / "alerts.yaml")
EVERY, HOUR = 5.0, 3600.0
STAGE = "gen-0/label-pool"

Values = Mapping[tuple[str, str, str], float]
"""By name, stage and state (empty: none)."""


def sample(name: str, stage: str, state: str = "") -> tuple[str, Labels]:
    labels = {"run": "mine", "stage": stage, **({"state": state} if state else {})}
    return f"ray_curation_{name}", frozenset(labels.items())


def scraped(at: Callable[[float], Values], until: float) -> list[Scrape]:
    times = [EVERY * number for number in range(int(until / EVERY))]
    return [(time, {sample(*key): value for key, value in at(time).items()}) for time in times]


def healthy(time: float) -> dict[tuple[str, str, str], float]:
    """A run of half an hour: preparation without a pass, a pass, training, an end; then nothing."""
    if time >= 1820:
        return {}
    if time >= 1800:  # what the driver said last is seen for 20 s
        return {("driver_alive", "driver", ""): 0.0, ("verdict", "driver", ""): 0.0}
    found = {("driver_alive", "driver", ""): 1.0}
    if time >= 120:
        done = min(1000.0, 2 * (time - 240)) if time >= 240 else 0.0
        if done:
            found |= {("rows_labelled_total", STAGE, ""): done, ("rows_committed_total", STAGE, ""): done}
            found |= {("error_rows_total", STAGE, ""): done // 100}
        if time < 800:
            pending = 1.0 if time < 200 else 0.0
            found |= {("rows_left", STAGE, ""): 1000 - done, ("actors", STAGE, "pending"): pending}
            found |= {("commit_lag_seconds", STAGE, ""): time % 30, ("actors", STAGE, "running"): 1 - pending}
    if time >= 900:
        found |= {("shift_auc_low", "serve", ""): 0.5, ("foreign_share_low", "serve", ""): 0.0}
        found |= {("shift_auc_low", "shift-0000", ""): 0.51, ("foreign_share_low", "shift-0000", ""): 0.004}
    return found


def of(**values: float) -> Callable[[float], Values]:
    """A driver that lives, with a few gauges or growing counters: ``name__stage__state``."""

    def at(time: float) -> Values:
        found: dict[tuple[str, str, str], float] = {("driver_alive", "driver", ""): 1.0}
        for key, value in values.items():
            name, stage, state = key.split("__")
            found[name, stage, state] = value * time if name.endswith("_total") else value
        return found

    return at


FAULTS: dict[str, Callable[[float], Values]] = {
    "DriverGone": lambda time: healthy(time) if time < 600 else {},
    "NothingCommitted": of(rows_left__pass__=500.0),
    "ActorsWait": of(actors__pass__pending=2.0),
    "CommitsWait": of(commit_lag_seconds__pass__=90.0),
    "ActorsDie": of(actor_deaths_total__pass__=0.01),
    "ErrorRows": of(error_rows_total__pass__=0.5, rows_labelled_total__pass__=1.0),
    "ServedRowsHaveShifted": of(shift_auc_low__serve__=0.7),
    "ServedRowsAreForeign": of(foreign_share_low__serve__=0.05),
    "FilteredRowsHaveShifted": of(**{"shift_auc_low__shift-0000__": 0.7}),
    "FilteredRowsAreForeign": of(**{"foreign_share_low__shift-0000__": 0.05}),
    "DoNotUse": of(verdict__driver__=2.0),
}


def test_no_rule_fires_on_a_healthy_run():
    assert firing(RULES, scraped(healthy, HOUR)) == set()


@pytest.mark.parametrize("name", [rule["alert"] for rule in RULES])
def test_each_rule_fires_on_its_fault_alone(name: str):
    scrapes = scraped(FAULTS[name], 2400)[::6]  # every 30 s is enough for a fault that lasts
    assert firing(RULES, scrapes) == {name}


def test_a_run_that_is_taken_up_again_is_not_gone():
    def at(time: float) -> Values:
        return {} if 600 <= time < 640 else healthy(time)

    assert "DriverGone" not in firing(RULES, scraped(at, 1000))


def test_rules_ask_for_declared_metrics_and_are_documented():
    declared = {value.name for value in vars(metrics).values() if isinstance(value, metrics.Meter)}
    operations = (ROOT / "docs" / "operations.md").read_text()
    for rule in RULES:
        assert set(re.findall(r"ray_(curation_\w+)", rule["expr"])) <= declared, rule
        assert "absent(" not in rule["expr"]  # it fires on every healthy run that is between two passes
        assert f"`{rule['alert']}`" in operations


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sum by (run) (ray_curation_rows_left)", 5.0),
        ('max by (run) (ray_curation_rows_left{stage="b"})', 3.0),
        ('max by (run) (ray_curation_rows_left{stage!="b"}) > 1', 2.0),
        ("sum by (run) (increase(ray_curation_rows_committed_total[11s]))", 6.0),
        ("sum by (run) (ray_curation_rows_left) / max by (run) (ray_curation_rows_left)", 5 / 3),
        ("max by (run) (last_over_time(ray_curation_gone[1m])) unless on (run) ray_curation_gone", 7.0),
        ("max by (run) (ray_curation_gone) > 0", None),
    ],
)
def test_the_evaluator_computes_what_prometheus_would(expression: str, expected: float | None):
    """By hand: a counter that began again, a series that is gone, two stages."""
    counts = (1.0, 9.0, 2.0, 6.0)  # 8 in the first step; then it begins again at 0
    scrapes: list[Scrape] = []
    for place, count in enumerate(counts):
        values = {sample("rows_left", "a"): 2.0, sample("rows_left", "b"): 3.0}
        values[sample("rows_committed_total", "a")] = count
        if place == 1:
            values[sample("gone", "a")] = 7.0
        scrapes.append((5.0 * place, values))
    found = list(Expression(expression, scrapes).vector().values())
    assert found == ([] if expected is None else [pytest.approx(expected)])


SCRIPT = """
import sys, time
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry
told = []
sys.modules["ray"] = metrics.ray = type("Ray", (), {"is_initialized": staticmethod(lambda: True)})
def make_metric(meter):
    return type("M", (), {"set": lambda self, value, tags: told.append((meter.name, value))})()
metrics._make_ray_metric = make_metric
metrics.REFRESH_SECONDS = 0.05
telemetry = Telemetry(run="r", stage="s")
telemetry.set(metrics.SHIFT_AUC_LOW, 0.7)
time.sleep(0.5)
assert len(told) >= 4 and set(told) == {("curation_shift_auc_low", 0.7)}, told
telemetry.forget()
time.sleep(0.2)
told.clear()
time.sleep(0.3)
assert told == [], told
"""


def test_a_gauge_is_set_again_until_it_is_forgotten():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)
