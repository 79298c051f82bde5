"""Estimates, with a range, of how long each stage and a whole run will take.

A stage that asks the first teacher is estimated by the probe, every other stage by the most similar stages that this
machine has done: of the run itself or of earlier runs beside it (:mod:`curation.rundir.history`). Without such a stage
the estimate is a rough figure for its kind, with a wide range. An estimate from another amount of work lies between
a time that grows with the amount and a time that hardly does, as every stage has a fixed part.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from curation.metrics import Estimate
from curation.metrics.totals import sum_independent, sum_together
from curation.rundir.graph import Known, Stage, Unknown, list_awaited, make_cache_key
from curation.rundir.history import StageTime, compute_amount, compute_likeness
from curation.rundir.load import Load, has_room
from curation.rundir.manifest import Manifest
from curation.stages.asking import AskModel
from curation.tables import io

Basis = Literal["probe", "history", "similar", "rough"]
"""The basis of an estimate: the probe, stages of the same model and recipe, or of the same kind, or a rough figure."""
FACTORS: Mapping[Basis, float] = {"history": 1.5, "similar": 3.0, "rough": 6.0}
"""The factor by which a stage may take less or more time than estimated, by basis."""
FASTER = 0.35
"""Minimum ratio of a run's time to the probe's estimate: chunks of a probe are a sixteenth of its rows, and may not
fill the batches of its teacher."""
GROWTH = (0.2, 0.75, 1.0)
"""The power of the amount of work by which time grows: at least, most likely, at most."""
OVERHEAD = Estimate(value=12.0, low=4.0, high=40.0, n=0)
"""Seconds of a run that belong to no stage: start of Ray, waits between stages, the report."""
TOGETHER = 0.25
"""Share by which all stages together may take more or less time, because the machine's load differs."""

_ROUGH: Mapping[str, tuple[float, float]] = {
    "Prepare": (2.0, 1e-4),
    "Label": (6.0, 4e-3),
    "Read": (6.0, 4e-3),
    "AnswerOnce": (6.0, 4e-3),
    "Adapt": (8.0, 6e-3),
    "TrainStudent": (8.0, 6e-3),
    "MakeBase": (4.0, 0.0),
    "FitTrust": (12.0, 1e-3),
    "MeasureLength": (2.0, 5e-4),
}
_ROUGH_ASKING, _ROUGH_ELSE = (6.0, 1e-2), (1.0, 5e-5)
"""Fixed seconds of a stage and seconds per unit of its work, on two cores with models of a million parameters."""


class StageTimeEstimate(NamedTuple):
    """An estimate of how long a stage will take, and its basis."""

    seconds: Estimate
    basis: Basis


def estimate(stage: Stage, rows: int | None, probed: Estimate | None, known: Sequence[StageTime]) -> StageTimeEstimate:
    """Estimate the time of a stage with ``rows`` left to do; ``known`` has the times of stages done on this machine."""
    amount, kind, like = compute_amount(stage, rows or 0), stage.kind, compute_likeness(stage)
    alike = [item for item in known if item.like == like]
    if probed is not None:
        low = FASTER * probed.low
        if alike:  # what the same teacher has taken before says what a short probe cannot
            low = min(low, _scale_times(alike, amount, "history").low)
        return StageTimeEstimate(Estimate(value=probed.value, low=low, high=probed.high, n=probed.n), "probe")
    if alike:
        return StageTimeEstimate(_scale_times(alike, amount, "history"), "history")
    if similar := [item for item in known if item.kind == kind]:
        return StageTimeEstimate(_scale_times(similar, amount, "similar"), "similar")
    fixed, each = _ROUGH.get(kind, _ROUGH_ASKING if isinstance(stage, AskModel) else _ROUGH_ELSE)
    about = fixed + each * amount
    return StageTimeEstimate(_make_estimate(about, about, about, FACTORS["rough"]), "rough")


def estimate_seconds(stage: Stage, known: Sequence[StageTime]) -> float:
    """Return the expected seconds of a stage, given the times of stages done on this machine (``known``).

    The time is infinite for a model unlike any before, so that its stages start before all others.
    """
    found = estimate(stage, stage.num_rows, None, known)
    return math.inf if found.basis == "rough" and isinstance(stage, AskModel) else found.seconds.value


def count_rows_left(stage: Stage, manifest: Manifest, known: Known) -> int | None:
    """Return the number of rows left to do, less those an interrupted stage has committed; None if unknown."""
    if stage.num_rows is None or not isinstance(stage, AskModel):
        return stage.num_rows
    return max(0, stage.num_rows - count_committed(manifest, stage, known=known))


def count_committed(manifest: Manifest, stage: Stage, *, known: Known) -> int:
    """Return how many rows an interrupted stage has already labelled."""
    try:
        uri = manifest.directory_of(stage.name, make_cache_key(stage, known)) / "labels.lance"
    except Unknown:
        return 0
    return io.count(io.find_latest(str(uri))) if uri.exists() else 0


def estimate_run(
    stages: Sequence[Stage], seconds: Mapping[str, Estimate], room: Mapping[str, float], most: int | None = None
) -> Estimate:
    """Estimate the time of the ordered ``stages`` from start to end; the run starts them side by side if there is room.

    ``seconds``: times of the stages that are left to do. The range combines errors that stages of a kind share with an
    error that all stages share; the former count only as far as stages do not run side by side.
    """
    value = _end_of(stages, lambda name: seconds[name].value, set(seconds), room, most)
    kinds: dict[str, list[Estimate]] = {}
    for stage in stages:
        if stage.name in seconds:
            kinds.setdefault(stage.kind, []).append(seconds[stage.name])
    alone = sum_independent([sum_together(of_kind) for of_kind in kinds.values()])  # stages of a kind are wrong alike
    share = value / alone.value if alone.value else 0.0
    low, high = value - share * (alone.value - alone.low), value + share * (alone.high - alone.value)
    own = Estimate(value=value, low=low, high=high, n=0)
    common = Estimate(value=0.0, low=-TOGETHER * value, high=TOGETHER * value, n=0)
    found = sum_independent([own, common, OVERHEAD])
    return Estimate(value=found.value, low=max(found.low, OVERHEAD.low), high=found.high, n=0)


def _scale_times(known: Iterable[StageTime], amount: float, basis: Basis) -> Estimate:
    """Estimate a time from those of stages with other amounts of work, using the nearest amounts."""
    ratios = [(max(amount, 1.0) / max(item.amount, 1.0), item.seconds) for item in known]
    nearest = sorted(ratios, key=lambda item: abs(item[0] - 1))[:8]
    scaled = [[seconds * ratio**power for power in GROWTH] for ratio, seconds in nearest]
    value = median(likely for _, likely, _ in scaled)
    return _make_estimate(value, min(map(min, scaled)), max(map(max, scaled)), FACTORS[basis])


def _make_estimate(value: float, low: float, high: float, factor: float) -> Estimate:
    return Estimate(value=value, low=min(value, low) / factor, high=max(value, high) * factor, n=0)


def _end_of(
    stages: Sequence[Stage],
    seconds: Callable[[str], float],
    left: set[str],
    room: Mapping[str, float],
    most: int | None,
) -> float:
    """Return when the last of the stages ends, by the rules of ``rundir.run``.

    Stages that share a host also share its speed: together they take as long as one after another.
    """
    now, ends = 0.0, dict[str, float]()
    waiting = [stage for stage in stages if stage.name in left]
    done = {stage.name for stage in stages} - left
    by_name = {stage.name: stage for stage in stages}
    while waiting or ends:
        for stage in sorted(waiting, key=lambda stage: -seconds(stage.name)):  # as ``Run`` does
            load, beside = Load.of(stage), [Load.of(by_name[name]) for name in ends]
            may = most is None or len(ends) < most
            may = may and (load.shared is None or all(other.shared != load.shared for other in beside))
            if may and done.issuperset(list_awaited(stage)) and (not beside or has_room(load, beside, room)):
                ends[stage.name] = now + seconds(stage.name)
                waiting.remove(stage)
        first = min(ends, key=lambda name: ends[name])
        now = ends.pop(first)
        done.add(first)
    return now
