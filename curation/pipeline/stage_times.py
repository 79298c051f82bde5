"""Estimates of how long the stages that are left will take: by a probe, or by the stages that this run has done.

A time for another number of rows lies between one that grows with the rows and one that hardly does, as every stage has
a fixed part.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from curation.metrics import Estimate
from curation.metrics.totals import sum_independent, sum_together
from curation.rundir.graph import Known, Stage, Unknown, list_awaited, make_cache_key
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.asking import AskModel
from curation.tables import io

Basis = Literal["probe", "record"]
"""The basis of an estimate: the probe, or stages of the same kind that the run has done."""
FACTOR = 3.0
"""The factor by which a stage may take less or more time than by the run's record."""
FASTER = 0.35
"""Minimum ratio of a run's time to the probe's estimate: chunks of a probe are a sixteenth of its rows, and may not
fill the batches of its teacher."""
GROWTH = (0.2, 0.75, 1.0)
"""The power of the number of rows by which time grows: at least, most likely, at most."""
OVERHEAD = Estimate(value=12.0, low=4.0, high=40.0, n=0)
"""Seconds of a run that belong to no stage: start of Ray, waits between stages, the report."""


class StageTimeEstimate(NamedTuple):
    """An estimate of how long a stage will take, and its basis."""

    seconds: Estimate
    basis: Basis


def estimate(
    stage: Stage, rows: int | None, probed: Estimate | None, records: Mapping[str, StageRecord]
) -> StageTimeEstimate | None:
    """Estimate the time of a stage with ``rows`` left to do, or return None if no stage like it was measured."""
    if probed is not None:
        seconds = Estimate(value=probed.value, low=FASTER * probed.low, high=probed.high, n=probed.n)
        return StageTimeEstimate(seconds, "probe")
    alike = [record for record in records.values() if record.kind == stage.kind and record.seconds]
    own = [record for record in alike if record.name == stage.name]
    if not alike:
        return None
    nearest = min(own or alike, key=lambda record: abs((rows or 0) - record.rows))
    ratio = max(rows or 0, 1) / max(nearest.rows, 1)
    low, value, high = (nearest.seconds * ratio**power for power in GROWTH)
    return StageTimeEstimate(
        Estimate(value=value, low=min(low, high) / FACTOR, high=max(low, high) * FACTOR, n=0), "record"
    )


def estimate_run(stages: Sequence[Stage], seconds: Mapping[str, Estimate]) -> Estimate:
    """Estimate the time of the ordered ``stages``, given the times of those that are left to do and were measured.

    The value is that of one stage after another, and the lower bound that of the longest chain of stages, which is what
    a cluster with room for all others beside it needs.
    """
    kinds: dict[str, list[Estimate]] = {}
    ends: dict[str, float] = {}
    for stage in stages:
        own = seconds.get(stage.name)
        ends[stage.name] = max((ends[name] for name in list_awaited(stage)), default=0.0) + (own.low if own else 0.0)
        if own is not None:
            kinds.setdefault(stage.kind, []).append(own)
    total = sum_independent([*(sum_together(of_kind) for of_kind in kinds.values()), OVERHEAD])
    return Estimate(value=total.value, low=max(ends.values(), default=0.0) + OVERHEAD.low, high=total.high, n=0)


def count_rows_left(stage: Stage, manifest: Manifest, known: Known) -> int | None:
    """Return the number of rows left to do, less those an interrupted stage has committed; None if unknown."""
    if stage.num_rows is None or not isinstance(stage, AskModel):
        return stage.num_rows
    try:
        uri = manifest.directory_of(stage.name, make_cache_key(stage, known)) / "labels.lance"
    except Unknown:
        return stage.num_rows
    return max(0, stage.num_rows - (io.count(io.find_latest(str(uri))) if uri.exists() else 0))
