"""Costs of a run: the money of a forecast, and what the run has used."""

from collections.abc import Mapping
from datetime import datetime

from curation.config import PricesConfig
from curation.json_types import Json
from curation.metrics import Estimate
from curation.metrics.totals import scale_estimate, sum_together
from curation.report.record import RunRecord

UNITS = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "bytes": "bytes of the labels, uncompressed",
    "hours": "hours of labelling, without starts",
    "gpu_hours": "GPU hours of the actors",
    "cpu_hours": "CPU hours of the actors",
    "money_machines": "for machines",
    "money_tokens": "for tokens of the teacher",
    "money": "together",
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


def compute_money(used: Mapping[str, Estimate], prices: PricesConfig) -> dict[str, Estimate]:
    """Return the cost of amounts in money, by kind and in all; empty if no amount has a price."""
    rates = (
        ("machines", "gpu_hours", prices.gpu_hour, 1),
        ("machines", "cpu_hours", prices.cpu_hour, 1),
        ("tokens", "prompt_tokens", prices.per_million_prompt_tokens, 1e6),
        ("tokens", "output_tokens", prices.per_million_output_tokens, 1e6),
    )
    parts: dict[str, list[Estimate]] = {}
    for kind, unit, price, number in rates:
        if price is not None and unit in used:
            parts.setdefault(f"money_{kind}", []).append(scale_estimate(used[unit], price / number))
    found = {name: sum_together(of_kind) for name, of_kind in parts.items()}
    return {**found, "money": sum_together(found.values())} if found else {}


def collect_spent(run: RunRecord) -> Json:
    """Return the amounts that the run used, in total and by pass of a model, interrupted runs included.

    ``elapsed`` is the number of seconds in which at least one stage worked, without interrupted runs.
    """
    used = list(run.used.values())
    starts = [(datetime.fromisoformat(stage.started).timestamp(), stage.seconds) for stage in run.stages]
    elapsed, until = 0.0, float("-inf")
    for began, seconds in sorted(starts):
        elapsed += max(0.0, began + seconds - max(began, until))
        until = max(until, began + seconds)
    total: dict[str, float | None] = {
        "elapsed": elapsed,
        "stage_seconds": sum(stage.seconds for stage in run.stages),
        **{name: sum(item[name] for item in used) if used else None for name in (*PASS_AMOUNTS, "bytes")},
    }
    by_pass = {name: {amount: item[amount] for amount in PASS_AMOUNTS} for name, item in run.used.items()}
    return {"total": total, "by_pass": by_pass}
