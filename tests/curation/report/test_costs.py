"""Hours and money of what was used, and a forecast set against it."""

from types import SimpleNamespace

import pytest

from curation.config import PricesConfig
from curation.metrics import Estimate
from curation.metrics.totals import make_exact
from curation.report import PassRecord, SpentRecord, StageSummary
from curation.report.costs import collect_spent as of_rows
from curation.report.costs import compare_forecast, compute_amounts, compute_money, describe_amount

PASS = {
    "model": "m",
    "backend": "scripted",
    "seconds": 1.0,
    "total_rows": 500,
    "prompt_tokens": 1,
    "output_tokens": 1,
    "deaths": 0,
    "teachers": [],
}
WORKFORCE = {"actors": 4, "each": {"CPU": 2, "GPU": 0.5}, "per_node": 8}


def spent(**changes) -> SpentRecord:
    fields = {"actor_seconds": 7200.0, "prompt_tokens": 100, "output_tokens": 10, "chunks": 4, "commits": 2}
    return SpentRecord(**{**fields, "bytes": 10**9, "spans": [(0.0, 3600.0)], **changes})


def forecast(prices: PricesConfig | None = None, **total: Estimate) -> dict:
    return {
        "made": 1.0,
        "prices": None if prices is None else prices.model_dump(),
        "currency": None if prices is None else prices.currency,
        "workforce": WORKFORCE,
        "probes": [{"rows": 64}],
        "stages": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "left_out": [],
        "total": {name: estimate.to_json() for name, estimate in total.items()},
    }


def test_hours_and_money_by_hand():
    used = {**compute_amounts(make_exact(8.0), WORKFORCE), "bytes": make_exact(5e9)}
    assert {name: used[name].value for name in ("gpu_hours", "cpu_hours", "node_hours")} == {
        "gpu_hours": 4, "cpu_hours": 16, "node_hours": 1,
    }  # fmt: skip
    found = compute_money(used, PricesConfig(gpu_hour=2, cpu_hour=0.1, storage_gb_month=0.02))
    assert found["money_machines"].value == pytest.approx(9.6)
    assert found["money_storage_month"].value == pytest.approx(0.1)
    assert found["money"].value == pytest.approx(9.7)
    assert compute_money(used, PricesConfig(node_hour=30))["money"].value == 30
    assert compute_money(used, PricesConfig()) == {}  # nothing has a price
    assert "gpu_hours" not in compute_amounts(make_exact(1.0), {"each": {"CPU": 1}, "per_node": 1})


def test_a_forecast_against_what_was_used():
    prices = PricesConfig(currency="EUR", cpu_hour=1.0)
    ahead = forecast(
        prices,
        prompt_tokens=Estimate(value=190, low=150, high=250, n=64),
        output_tokens=Estimate(value=50, low=40, high=60, n=64),
        hours=Estimate(value=1.4, low=1.0, high=2.0, n=64),
        cpu_hours=Estimate(value=5, low=4, high=6, n=64),
        money=Estimate(value=5, low=4, high=6, n=64),
        bytes=Estimate(value=2e9, low=float("nan"), high=float("nan"), n=1),
    )
    used = {"a": spent(), "b": spent(spans=[(1800.0, 4500.0), (9000.0, 9900.0)], actor_seconds=3600.0)}
    found = compare_forecast(ahead, used)
    assert found is not None and found["currency"] == "EUR" and found["not_run"] == ["c"]
    lines = {line["name"]: (line["actual"], line["inside"]) for line in found["lines"]}
    assert lines == {
        "prompt_tokens": (200, True),
        "output_tokens": (20, False),
        "hours": (1.5, True),  # the two stages overlap
        "cpu_hours": (6, True),
        "money": (6, True),
        "bytes": (2 * 10**9, None),  # a sample of one row has no interval
    }
    assert compare_forecast(None, used) is None


def test_amounts_in_words():
    assert describe_amount("bytes", 3.25e9) == "3.2 GB" and describe_amount("bytes", 12) == "12.0 B"
    assert describe_amount("prompt_tokens", 1234567.4) == "1,234,567" and describe_amount("money", 0.00123) == "0.0012"
    assert describe_amount("hours", None) == "unknown"


def test_what_a_row_cost_by_hand():
    stages = [
        StageSummary(name="a", seconds=60.0, rows=9, rows_per_second=1.0, started="2026-01-01T00:00:00+00:00"),
        StageSummary(name="b", seconds=60.0, rows=9, rows_per_second=1.0, started="2026-01-01T00:00:30+00:00"),
        StageSummary(name="c", seconds=10.0, rows=9, rows_per_second=1.0, started="2026-01-01T01:00:00+00:00"),
    ]
    asked = [PassRecord(**PASS, name=name, rows=500) for name in ("label", "test")]
    used = {"label": spent(), "test": spent(actor_seconds=800.0, prompt_tokens=300)}
    run = SimpleNamespace(stages=stages, passes=asked, used=used)
    found = of_rows(run, {"num_selected": 200, "purity": {"value": 0.5}}, 3.0)
    assert found["total"] == {
        "elapsed": 100.0,  # the first two overlap by half a minute
        "stage_seconds": 130.0,
        "actor_seconds": 8000.0,
        "prompt_tokens": 400,
        "output_tokens": 20,
        "bytes": 2 * 10**9,
        "money": 3.0,
    }
    assert found["numbers"] == {"answered": 1000, "selected": 200, "right": 100}
    assert found["each"]["answered"]["actor_seconds"] == 8 and found["each"]["selected"]["elapsed"] == 0.5
    assert found["each"]["right"]["money"] == pytest.approx(0.03)
    assert found["by_pass"]["test"] == {"actor_seconds": 800.0, "prompt_tokens": 300, "output_tokens": 10}
    unknown = of_rows(SimpleNamespace(stages=stages, passes=[], used={}), None, None)
    assert unknown["each"] == {} and unknown["total"]["actor_seconds"] is None
