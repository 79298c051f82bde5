"""Publishing of a finished run's settings, main numbers, curves and report to the configured experiment trackers.

A tracker is one file with one class. Its errors are reported, and never fail the run.
"""

import importlib.util
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from curation.errors import ConfigError
from curation.escaping import format_error
from curation.extras.tracking.config import TrackingConfig
from curation.extras.tracking.entry import TrackedRun, make_entry
from curation.json_types import JsonView
from curation.redaction import HIDDEN
from curation.registry import load_code
from curation.storage.paths import Place

TRACKERS = {
    "mlflow": "curation.extras.tracking.mlflow:MlflowTracker",
    "wandb": "curation.extras.tracking.wandb:WandbTracker",
}
SECONDS = 120.0
"""Time limit of a tracker, since some clients retry an unreachable server forever."""


class Tracker(Protocol):
    """A tracker, constructed from its section of the configuration; an entry replaces the one with the same id."""

    def log(self, entry: TrackedRun) -> None:
        """Write an entry; the caller reports any exception."""
        ...


def require(config: TrackingConfig) -> None:
    """Check that the packages of the configured trackers are installed, and that the addresses have their credentials.

    Raises:
        ConfigError: a package is missing, or an address lacks credentials that were hidden when it was saved.
    """
    if config.mlflow is not None and HIDDEN in (config.mlflow.uri or ""):
        raise ConfigError(
            f"tracking.mlflow.uri: {config.mlflow.uri}: its credentials are not kept in a run directory; give the "
            "address again by --set, or set tracking.mlflow.uri=null and the variable MLFLOW_TRACKING_URI"
        )
    for name in config.given():
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a plain folder, such as the one that W&B creates
            raise ConfigError(
                f'tracking.{name}: the package {name} is not installed; pip install "trust-curation[{name}]", '
                "or leave the key out"
            )


def publish_report(config: TrackingConfig, report: JsonView, directory: Place) -> Iterator[str]:
    """Publish the report of the run in a directory to each tracker; yield a sentence for each tracker that failed."""
    if config.given():
        files = {name: (directory / name).read_text() for name in ("report.html", "report.json")}
        yield from publish(config, make_entry(report, str(directory), files))


def publish(config: TrackingConfig, entry: TrackedRun) -> Iterator[str]:
    """Publish an entry to each tracker; yield a sentence for each tracker that failed or timed out."""
    for name, settings in config.given().items():
        if (problem := _attempt_work(partial(_log, name, settings, entry.inert()))) is not None:
            yield f"tracking.{name} failed ({problem}); the run is complete without it"


def _log(name: str, settings: object, entry: TrackedRun) -> None:
    tracker: Tracker = load_code(TRACKERS[name])(settings)
    tracker.log(entry)


def _attempt_work(work: Callable[[], None]) -> str | None:
    """Return the error of ``work`` as one line, or None; after a time-out, abandon its thread and say so."""
    problems: list[str] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:  # a client of another project, its server, the network: none may cost the run
            problems.append(f"{type(error).__name__}: {format_error(error)}")

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        return f"no end after {SECONDS:.0f} s"
    return problems[0] if problems else None
