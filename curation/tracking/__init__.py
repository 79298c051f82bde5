"""Trackers of experiments, where the configuration asks for them: a finished run's settings, main numbers and report.

A tracker is one file with one class. What it fails at is told, and never fails the run.
"""

import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, cast

from curation.config import TrackingConfig
from curation.errors import ConfigError
from curation.tracking.entry import Entry, entry_of

__all__ = ["Entry", "entry_of", "publish", "require"]

TRACKERS = {"mlflow": "curation.tracking.mlflow:MlflowTracker", "wandb": "curation.tracking.wandb:WandbTracker"}
SECONDS = 120.0
"""How long a tracker may take; a server that is gone is asked again and again by its client."""


class Tracker(Protocol):
    """Takes its section of the configuration; writes one entry, over the one of the same id."""

    def log(self, entry: Entry) -> None:
        """Write an entry; whatever is raised is told."""
        ...


def require(config: TrackingConfig) -> None:
    """Are the packages there that the configuration's trackers need?

    Raises:
        ConfigError: one is not installed.
    """
    for name in config.given():
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a mere folder, as W&B makes one of its name
            raise ConfigError(
                f'tracking.{name}: the package {name} is not installed; pip install "trust-curation[{name}]", '
                "or leave the key out"
            )


def publish(config: TrackingConfig, entry: Entry) -> Iterator[str]:
    """Have each tracker write the entry; a sentence on each one that failed or takes too long."""
    for name, settings in config.given().items():
        if (problem := _problem(partial(_log, name, settings, entry))) is not None:
            yield f"tracking.{name} failed ({problem}); the run is complete without it"


def _log(name: str, settings: object, entry: Entry) -> None:
    module, _, attribute = TRACKERS[name].partition(":")
    cast(Tracker, getattr(importlib.import_module(module), attribute)(settings)).log(entry)


def _problem(work: Callable[[], None]) -> str | None:
    """What work fails with, in one line, or that it does not end; it is left to itself then."""
    problems: list[str] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:
            problems.append(" ".join(f"{type(error).__name__}: {error}".split()))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        return f"no end after {SECONDS:.0f} s"
    return problems[0] if problems else None
