"""Passes of models: their speeds, and how often each model was started."""

from collections.abc import Sequence
from statistics import median

from curation.json_types import Json
from curation.report.record import PassRecord


def collect_pass(item: PassRecord) -> Json:
    """Return the speeds of a pass, start-up included, and the medians of the facts its model gave at each start."""
    asked = item.recalled is None and item.total_rows and item.seconds
    per_second = item.rows / item.total_rows / item.seconds if asked else None
    names = dict.fromkeys(name for facts in item.teachers for name in facts)
    return {
        "name": item.name,
        "model": item.model,
        "backend": item.backend,
        "dtype": item.dtype,
        "rows": item.rows,
        "seconds": item.seconds,
        "deaths": item.deaths,
        "clipped_values": item.clipped_values,
        "recalled": item.recalled,
        **{
            f"{what}_tokens_per_second": None if per_second is None or tokens is None else tokens * per_second
            for what, tokens in (("prompt", item.prompt_tokens), ("output", item.output_tokens))
        },
        "starts": len(item.teachers),
        "teacher": {name: median(facts[name] for facts in item.teachers if name in facts) for name in names},
    }


def count_starts(passes: Sequence[PassRecord]) -> list[Json]:
    """Return how often each model was started, for how many passes, and the seconds that its starts took."""
    by_model: dict[str, list[PassRecord]] = {}
    for item in passes:
        by_model.setdefault(item.model, []).append(item)
    return [
        {
            "model": model,
            "passes": len(items),
            "starts": sum(len(item.teachers) for item in items),
            "start_seconds": sum(facts.get("start_seconds", 0.0) for item in items for facts in item.teachers),
        }
        for model, items in by_model.items()
    ]
