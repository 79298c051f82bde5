"""The forecast that is kept in a run directory, and what its stages have used since."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from curation import report
from curation.config import RunConfig
from curation.config.filter import FilterConfig
from curation.errors import RunDirError
from curation.json_types import Json, JsonView
from curation.refs import TableRef
from curation.rundir.events import compute_spent_since
from curation.rundir.manifest import Manifest
from curation.rundir.status import list_differences
from curation.storage.paths import Place, write_atomically
from curation.tables import io

if TYPE_CHECKING:
    from curation.pipeline.forecasting import Forecast

FILE = "forecast.json"
"""Name of the forecast's file in the run directory."""
MATTERS = {"sources", "splits", "domain", "teacher", "signals", "evaluation", "package", "pool"}
"""The sections of a run's or a filter's configuration on which a forecast depends."""
MOST_EVENT_BYTES = 1 << 40
"""Maximum bytes of events to read, in effect all: a day of a run adds less than a megabyte."""


def save(made: "Forecast", config: RunConfig | FilterConfig) -> Place:
    """Write a forecast to the run directory for the report, replacing an earlier one; return its path."""
    config.directory.mkdir(parents=True, exist_ok=True)
    described = {
        "made": round(time.time(), 3),
        "config": config.model_dump(mode="json", by_alias=True, include=MATTERS),
        "prices": None if config.prices is None else config.prices.model_dump(mode="json"),
        **made.to_json(),
    }
    path = config.directory / FILE
    write_atomically(path, json.dumps(described, indent=1) + "\n")
    return path


def read_forecast(config: RunConfig | FilterConfig) -> Json | None:
    """Return the forecast in the run directory, or None; ``changed`` has changes of the configuration since then."""
    path = config.directory / FILE
    if not path.is_file():
        return None
    try:
        made: Json = json.loads(path.read_text())
        before = made.pop("config")
    except (ValueError, KeyError) as error:
        raise RunDirError(f"{path}: is not a forecast ({error}); remove it, or plan again with --save") from error
    now = config.model_dump(mode="json", by_alias=True, include=MATTERS)
    return {**made, "changed": list_differences(before, now)}


def collect_used_since(forecast: JsonView, manifest: Manifest) -> dict[str, report.SpentRecord]:
    """Return the amounts that each stage of a forecast has used since the forecast, by name."""
    return collect_used(manifest, [stage["name"] for stage in forecast["stages"]], forecast["made"])


def collect_used(manifest: Manifest, names: Iterable[str], since: float = 0.0) -> dict[str, report.SpentRecord]:
    """Return the amounts that the named stages have used since a time, by name, for finished stages with labels."""
    found = compute_spent_since(manifest.events.last(MOST_EVENT_BYTES), since)
    done = {name: record for name, record in manifest.stages.items() if name in found and "labels" in record.outputs}
    return {
        name: report.SpentRecord(
            **asdict(found[name].spent),
            bytes=io.get_table_size(TableRef.from_json(done[name].outputs["labels"])),
            spans=found[name].spans,
        )
        for name in names
        if name in done
    }
