"""Metrics for Prometheus, each emitted through ``ray.util.metrics`` by the process that knows its value.

Ray's agent drops a gauge that is not set for some seconds. So each process sets its gauges periodically, until
they are forgotten (:meth:`Telemetry.forget`).

Each node's agent exports the metrics of its processes, with the prefix ``ray_`` (docs/operations.md).
"""

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from curation.heavy import ray
from curation.json_types import JsonView


class Meter(NamedTuple):
    """One metric: its name with the unit, its kind, its description, and its tags besides run and stage."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    tags: tuple[str, ...] = ()


ROWS_LABELLED = Meter(
    "curation_rows_labelled_total",
    "counter",
    "Rows that actors have written, error rows too; rows of a signal's own pass are those of its stage.",
)
ERROR_ROWS = Meter("curation_error_rows_total", "counter", "Rows written as error rows, by kind.", ("kind",))
PROMPT_TOKENS = Meter("curation_prompt_tokens_total", "counter", "Prompt tokens of labelled rows.")
OUTPUT_TOKENS = Meter("curation_output_tokens_total", "counter", "Answer tokens of labelled rows.")
ACTOR_DEATHS = Meter("curation_actor_deaths_total", "counter", "Processes of actors that died.")
ACTORS = Meter("curation_actors", "gauge", "Actors by state: running, pending, restarting.", ("state",))
ROWS_COMMITTED = Meter("curation_rows_committed_total", "counter", "Rows committed by this driver.")
ROWS_LEFT = Meter("curation_rows_left", "gauge", "Rows of the stage that are not committed.")
COMMIT_LAG_SECONDS = Meter(
    "curation_commit_lag_seconds", "gauge", "Age of the oldest row that is written and not committed."
)
ROWS_SERVED = Meter("curation_rows_served_total", "counter", "Rows that deploy/serve.py has answered, error rows too.")
SHIFT_AUC_LOW = Meter(
    "curation_shift_auc_low",
    "gauge",
    "How well a classifier tells served or filtered rows from those that trust was fitted on (0.5: not): "
    "the lower bound of the AUC, for alarms.",
)
FOREIGN_SHARE_LOW = Meter(
    "curation_foreign_share_low",
    "gauge",
    "The lower bound of the share of served or filtered rows that are unlike any labelled row, for alarms.",
)
DRIVER_ALIVE = Meter("curation_driver_alive", "gauge", "1 while a driver works, 0 when it has ended by itself.")
VERDICT = Meter("curation_verdict", "gauge", "Of the run's report: 0 use it, 1 use with care, 2 do not use.")

REFRESH_SECONDS = 2.0  # interval at which a process sets its gauges again, in seconds

_gauges: dict[tuple[Meter, tuple[tuple[str, str], ...]], float] = {}
"""Values of this process's gauges, by meter and tags."""
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """An emitter of metrics of one stage of a run, pickled to actors. It does nothing in a process without Ray."""

    run: str = ""
    stage: str = ""

    def add(self, meter: Meter, number: float, **tags: str) -> None:
        """Increase a counter."""
        if number > 0:  # Ray refuses 0
            _emit(meter, "inc", number, self._make_tags(tags))

    def set(self, meter: Meter, value: float, **tags: str) -> None:
        """Set a gauge, which keeps its value until it is set again or forgotten."""
        tags = self._make_tags(tags)
        with _lock:
            _gauges[meter, tuple(sorted(tags.items()))] = value
        _emit(meter, "set", value, tags)
        _start_refreshing()

    def tell_shift(self, shift: JsonView) -> None:
        """Set the gauges of a two-sample test (``curation.metrics.shift.Shift`` as JSON), except missing values."""
        tests = (shift["foreign"], shift.get("passing"))
        foreign = max((test["share"]["low"] for test in tests if test), default=None)
        for meter, value in ((SHIFT_AUC_LOW, shift["auc"]["low"]), (FOREIGN_SHARE_LOW, foreign)):
            if value is not None:
                self.set(meter, value)

    def forget(self) -> None:
        """Stop setting the gauges of this stage, since its work has ended."""
        own = {("run", self.run), ("stage", self.stage)}
        with _lock:
            for meter, tags in [key for key in _gauges if own <= set(key[1])]:
                del _gauges[meter, tags]

    def _make_tags(self, further: Mapping[str, str]) -> dict[str, str]:
        return {"run": self.run, "stage": self.stage, **further}


def _emit(meter: Meter, verb: str, value: float, tags: Mapping[str, str]) -> None:
    if "ray" in sys.modules and ray.is_initialized():  # a run that is already finished does not import Ray
        getattr(_make_ray_metric(meter), verb)(value, tags=dict(tags))


@cache
def _start_refreshing() -> threading.Thread:
    """Start, once per process, and return the thread that periodically sets the process's gauges."""

    def refresh() -> None:
        while True:
            time.sleep(REFRESH_SECONDS)
            with _lock:
                for (meter, tags), value in _gauges.items():
                    with suppress(Exception):  # Ray may be ending
                        _emit(meter, "set", value, dict(tags))

    thread = threading.Thread(target=refresh, daemon=True, name="gauges")
    thread.start()
    return thread


@cache
def _make_ray_metric(meter: Meter) -> Any:
    """Return Ray's metric of a meter; there is one per process."""
    from ray.util import metrics

    tag_keys = ("run", "stage", *meter.tags)
    kinds = {"counter": metrics.Counter, "gauge": metrics.Gauge}
    return kinds[meter.kind](meter.name, meter.text, tag_keys=tag_keys)
