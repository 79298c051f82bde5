"""Costs of a run: hours and money of actors, bytes, and the comparison of a forecast with actual use."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from curation.config import PricesConfig
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.metrics.totals import make_exact, scale_estimate, sum_independent, sum_together
from curation.report.record import RunRecord, SpentRecord

UNITS = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "hours": "hours, labelling from start to end",
    "gpu_hours": "GPU hours of the actors",
    "cpu_hours": "CPU hours of the actors",
    "node_hours": "node hours of the actors",
    "bytes": "bytes of the labels tables",
    "money_machines": "for machines",
    "money_tokens": "for tokens of the teacher",
    "money_storage_month": "for storage, a month",
    "money": "together, with a month of storage",
}
"""Names of forecast amounts, in words."""
PASS_AMOUNTS = ("actor_seconds", "prompt_tokens", "output_tokens")
SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def describe_amount(name: str, value: float | None) -> str:
    """Return an amount of ``UNITS`` as text."""
    if value is None:
        return "unknown"
    if name == "bytes":
        size, unit = next(((value / n, unit) for n, unit in SIZES if value >= n), (value, "B"))
        return f"{size:,.1f} {unit}"
    if name in ("prompt_tokens", "output_tokens"):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 else f"{value:,.4f}"


def compute_amounts(actor_hours: Estimate, workforce: JsonView) -> dict[str, Estimate]:
    """Return the hours of GPUs, CPUs and nodes that a number of actor hours uses."""
    each = workforce["each"]
    factors = {"gpu_hours": each.get("GPU"), "cpu_hours": each["CPU"], "node_hours": 1 / workforce["per_node"]}
    if not factors["gpu_hours"]:
        del factors["gpu_hours"]
    return {name: scale_estimate(actor_hours, factor) for name, factor in factors.items()}


def compute_money(used: Mapping[str, Estimate], prices: PricesConfig) -> dict[str, Estimate]:
    """Return the cost of amounts in money, by kind and in all; empty if no amount has a price."""
    rates = (
        ("machines", "gpu_hours", prices.gpu_hour, 1),
        ("machines", "cpu_hours", prices.cpu_hour, 1),
        ("machines", "node_hours", prices.node_hour, 1),
        ("tokens", "prompt_tokens", prices.per_million_prompt_tokens, 1e6),
        ("tokens", "output_tokens", prices.per_million_output_tokens, 1e6),
        ("storage_month", "bytes", prices.storage_gb_month, 1e9),
    )
    parts: dict[str, list[Estimate]] = {}
    for kind, unit, price, number in rates:
        if price is not None and unit in used:
            parts.setdefault(f"money_{kind}", []).append(scale_estimate(used[unit], price / number))
    found = {name: sum_together(of_kind) for name, of_kind in parts.items()}
    return {**found, "money": sum_independent(found.values())} if found else {}


def collect_spent(run: RunRecord, arm: JsonView | None, money: float | None) -> Json:
    """Return amounts that the run used, in total, and per answered, per selected and per right row.

    ``arm`` is the judged one. ``elapsed`` are the seconds in which at least one stage worked, without interrupted runs.
    Actors and tokens are those of the passes of models, interrupted runs included. ``money`` is the cost of a
    forecast's stages.
    """
    used = list(run.used.values())
    starts = [(datetime.fromisoformat(stage.started).timestamp(), stage.seconds) for stage in run.stages]
    total: dict[str, float | None] = {
        "elapsed": _compute_covered([(began, began + seconds) for began, seconds in starts]),
        "stage_seconds": sum(stage.seconds for stage in run.stages),
        **{name: sum(getattr(item, name) for item in used) if used else None for name in (*PASS_AMOUNTS, "bytes")},
        "money": money,
    }
    selected, purity = (0, None) if arm is None else (arm["num_selected"], arm["purity"])
    numbers = {
        "answered": sum(item.rows for item in run.passes),
        "selected": selected,
        "right": 0 if purity is None else selected * purity["value"],
    }
    each = {
        kind: {name: None if value is None else value / number for name, value in total.items()}
        for kind, number in numbers.items()
        if number
    }
    by_pass = {name: {amount: getattr(item, amount) for amount in PASS_AMOUNTS} for name, item in run.used.items()}
    return {"total": total, "numbers": numbers, "each": each, "by_pass": by_pass}


def compare_forecast(forecast: JsonView | None, spent: Mapping[str, SpentRecord]) -> Json | None:
    """Return a saved forecast, line by line, and what its stages have used since; ``None`` without a forecast.

    A stage that was already done, or that has not run since, has used nothing. ``inside`` says whether the actual
    number lies in the forecast's interval. Prices are those of the forecast.
    """
    if forecast is None:
        return None
    stages = [stage["name"] for stage in forecast["stages"]]
    used = [spent[name] for name in stages if name in spent]
    actor_hours = make_exact(sum(item.actor_seconds for item in used) / 3600)
    actual = {
        "prompt_tokens": sum(item.prompt_tokens for item in used),
        "output_tokens": sum(item.output_tokens for item in used),
        "hours": _compute_covered([span for item in used for span in item.spans]) / 3600,
        **{name: item.value for name, item in compute_amounts(actor_hours, forecast["workforce"]).items()},
        "bytes": sum(item.bytes for item in used),
    }
    if forecast["prices"] is not None:
        exact = {name: make_exact(value) for name, value in actual.items()}
        actual |= {name: item.value for name, item in compute_money(exact, PricesConfig(**forecast["prices"])).items()}
    lines = []
    for name, estimate in forecast["total"].items():
        value, inside = actual.get(name), None
        if value is not None and None not in (estimate["low"], estimate["high"]):
            inside = estimate["low"] <= value <= estimate["high"]
        lines.append({"name": name, "words": UNITS[name], "forecast": estimate, "actual": value, "inside": inside})
    return {
        "made": datetime.fromtimestamp(forecast["made"], UTC).isoformat(timespec="seconds"),
        "currency": forecast["currency"],
        "probe_rows": sum(probe["rows"] for probe in forecast["probes"]),
        "stages": stages,
        "not_run": [name for name in stages if name not in spent],
        "left_out": forecast["left_out"],
        "changed": list(forecast.get("changed", [])),
        "lines": lines,
    }


def _compute_covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the number of seconds that at least one of the spans covers."""
    covered, until = 0.0, float("-inf")
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return covered
