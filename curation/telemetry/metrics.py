"""Metrics for Prometheus: declares each one, and emits it through ``ray.util.metrics`` from the process that knows it.

Each node's agent exports the metrics of its processes, with the prefix ``ray_`` (docs/operations.md). For a histogram,
Ray keeps only the counts of its buckets, not the sum of the observations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from curation.heavy import ray

SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)


@dataclass(frozen=True, kw_only=True)
class Meter:
    """One metric: its name with the unit, its kind, its description, and its tags besides run and stage."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    tags: tuple[str, ...] = ()


ROWS_LABELLED = Meter(
    name="curation_rows_labelled_total",
    kind="counter",
    text="Rows that actors have written, error rows too; rows of a signal's own pass are those of its stage.",
)
ERROR_ROWS = Meter(
    name="curation_error_rows_total", kind="counter", text="Rows written as error rows, by kind.", tags=("kind",)
)
CLIPPED_VALUES = Meter(
    name="curation_clipped_values_total",
    kind="counter",
    text="Numbers of hidden states beyond float16 that were stored as its largest one.",
)
PROMPT_TOKENS = Meter(name="curation_prompt_tokens_total", kind="counter", text="Prompt tokens of labelled rows.")
OUTPUT_TOKENS = Meter(name="curation_output_tokens_total", kind="counter", text="Answer tokens of labelled rows.")
CHUNK_SECONDS = Meter(
    name="curation_chunk_seconds", kind="histogram", text="A chunk in its actor, from reading to the written fragment."
)
TEACHER_START_SECONDS = Meter(
    name="curation_teacher_start_seconds", kind="histogram", text="An actor's loading of its model, or engine."
)
ACTOR_STARTS = Meter(name="curation_actor_starts_total", kind="counter", text="Actors that have loaded their model.")
ACTOR_DEATHS = Meter(name="curation_actor_deaths_total", kind="counter", text="Processes of actors that died.")
ACTORS = Meter(
    name="curation_actors", kind="gauge", text="Actors by state: running, pending, restarting.", tags=("state",)
)
ROWS_COMMITTED = Meter(name="curation_rows_committed_total", kind="counter", text="Rows committed by this driver.")
ROWS_LEFT = Meter(name="curation_rows_left", kind="gauge", text="Rows of the stage that are not committed.")
CHUNKS_LEFT = Meter(name="curation_chunks_left", kind="gauge", text="Chunks of the stage that are not written.")
COMMIT_SECONDS = Meter(
    name="curation_commit_seconds", kind="histogram", text="A round of commits, attempts that failed included."
)
COMMIT_LAG_SECONDS = Meter(
    name="curation_commit_lag_seconds", kind="gauge", text="Age of the oldest row that is written and not committed."
)

ROWS_SERVED = Meter(
    name="curation_rows_served_total", kind="counter", text="Rows that deploy/serve.py has answered, error rows too."
)
SHIFT_AUC = Meter(
    name="curation_shift_auc",
    kind="gauge",
    text="How well a classifier tells served rows from those that trust was fitted on, by hidden states; 0.5: not.",
)
SHIFT_AUC_LOW = Meter(
    name="curation_shift_auc_low", kind="gauge", text="The lower bound of its 95 % interval, for alarms."
)


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Emits metrics of one stage of a run; pickled to actors. Does nothing in a process without Ray."""

    run: str = ""
    stage: str = ""

    def add(self, meter: Meter, number: float, **tags: str) -> None:
        """Increase a counter."""
        if number > 0:  # Ray refuses 0
            self._emit(meter, "inc", number, tags)

    def set(self, meter: Meter, value: float, **tags: str) -> None:
        """Set a gauge."""
        self._emit(meter, "set", value, tags)

    def observe(self, meter: Meter, value: float) -> None:
        """Add an observation to a histogram."""
        self._emit(meter, "observe", value, {})

    def _emit(self, meter: Meter, verb: str, value: float, tags: Mapping[str, str]) -> None:
        if ray.is_initialized():
            getattr(_rays(meter), verb)(value, tags={"run": self.run, "stage": self.stage, **tags})


@cache
def _rays(meter: Meter) -> Any:
    """Ray's metric, one per process."""
    from ray.util import metrics

    tag_keys = ("run", "stage", *meter.tags)
    if meter.kind == "histogram":
        return metrics.Histogram(meter.name, meter.text, boundaries=list(SECONDS), tag_keys=tag_keys)
    kinds = {"counter": metrics.Counter, "gauge": metrics.Gauge}
    return kinds[meter.kind](meter.name, meter.text, tag_keys=tag_keys)
