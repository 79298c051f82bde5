"""Money of a forecast, and what was used."""

from types import SimpleNamespace

import pytest

from curation.config import PricesConfig
from curation.extras.plan.forecasting import compute_money
from curation.metrics.totals import make_exact, make_rough
from curation.report import StageSummary
from curation.report.costs import collect_spent as of_rows
from curation.report.costs import describe_amount


def spent(**changes) -> dict:
    fields = {"actor_seconds": 7200.0, "prompt_tokens": 100, "output_tokens": 10, "chunks": 4, "commits": 2}
    return {**fields, "bytes": 10**9, **changes}


def test_money_by_hand():
    used = {"gpu_hours": make_rough(4, 9), "cpu_hours": make_rough(16, 9), "prompt_tokens": make_exact(5e6)}
    found = compute_money(used, PricesConfig(gpu_hour=2, cpu_hour=0.1, per_million_prompt_tokens=0.5))
    assert found["money_machines"].value == pytest.approx(9.6)
    assert found["money_tokens"] == make_exact(2.5)
    assert found["money"].value == pytest.approx(12.1)
    assert compute_money(used, PricesConfig()) == {}  # nothing has a price


def test_amounts_in_words():
    assert describe_amount("bytes", 3.25e9) == "3.2 GB" and describe_amount("bytes", 12) == "12.0 B"
    assert describe_amount("prompt_tokens", 1234567.4) == "1,234,567" and describe_amount("money", 0.00123) == "0.0012"
    assert describe_amount("hours", None) == "unknown"


def test_what_a_run_used_by_hand():
    stages = [
        StageSummary(name="a", seconds=60.0, rows=9, rows_per_second=1.0, started="2026-01-01T00:00:00+00:00"),
        StageSummary(name="b", seconds=60.0, rows=9, rows_per_second=1.0, started="2026-01-01T00:00:30+00:00"),
        StageSummary(name="c", seconds=10.0, rows=9, rows_per_second=1.0, started="2026-01-01T01:00:00+00:00"),
    ]
    used = {"label": spent(), "test": spent(actor_seconds=800.0, prompt_tokens=300)}
    run = SimpleNamespace(stages=stages, used=used)
    found = of_rows(run)
    assert found["total"] == {
        "elapsed": 100.0,  # the first two overlap by half a minute
        "stage_seconds": 130.0,
        "actor_seconds": 8000.0,
        "prompt_tokens": 400,
        "output_tokens": 20,
        "bytes": 2 * 10**9,
    }
    assert found["by_pass"]["test"] == {"actor_seconds": 800.0, "prompt_tokens": 300, "output_tokens": 10}
    unknown = of_rows(SimpleNamespace(stages=stages, used={}))
    assert unknown["total"]["actor_seconds"] is None
