"""Costs of a run: what it has used."""

from datetime import datetime

from curation.json_types import Json
from curation.report.record import RunRecord

PASS_AMOUNTS = ("actor_seconds", "prompt_tokens", "output_tokens")
SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def describe_amount(name: str, value: float | None) -> str:
    """Return an amount of what a run uses, or of money, as text."""
    if value is None:
        return "unknown"
    if name == "bytes":
        size, unit = next(((value / n, unit) for n, unit in SIZES if value >= n), (value, "B"))
        return f"{size:,.1f} {unit}"
    if name in ("prompt_tokens", "output_tokens"):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 else f"{value:,.4f}"


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
