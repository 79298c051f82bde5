"""Forecasts of labelling time and cost, from the stages that are left to do and a probe of their teacher.

Intervals combine as follows. Tokens and bytes have the error of the sample. Time has the error of the sample; an error
of ``DRIFT``, since a short probe does not show the machine's speed in another hour, beside other stages and with larger
chunks; an error of ``START`` for starts of actors, which are few; and an error for the end of a pass, when some actors
have no chunk left, from no wait to the longest. Independent errors add as squares; errors that several stages share,
from one sample or one machine, add linearly.

The time of a stage that asks no teacher is estimated by the stages that this run has done. A time for another number of
rows lies between one that grows with the rows and one that hardly does, as every stage has a fixed part.
"""

import math
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from curation.cluster import capacity
from curation.config import AskConfig, PricesConfig, RayConfig, RunConfig
from curation.config.filter import FilterConfig
from curation.json_types import Json
from curation.metrics import Estimate
from curation.metrics.totals import make_exact, scale_estimate, sum_independent, sum_together, widen_estimate
from curation.pipeline.opened import OpenedRun
from curation.pipeline.probing import (
    AskGroup,
    LeftOut,
    StageAsk,
    collect_askings,
    count_actor_cpus,
    probe_all,
)
from curation.pipeline.work import joined
from curation.registry import BACKENDS
from curation.report.costs import compute_amounts, compute_money
from curation.rundir.graph import Known, Stage, Unknown, list_awaited, make_cache_key
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.asking import AskModel
from curation.storage.paths import Place, remove, to_place
from curation.tables import io
from curation.tables.compaction import FEWEST

DRIFT = 0.15
"""Share by which the rate of a run may differ from a probe's, in addition to the error of the sample."""
START = (0.5, 2.0)
"""Bounds of the time of starts, as factors of the measured time: a probe sees few starts, and caches differ."""
DENSITY = 0.05
"""Share by which the bytes of a row in a large file may differ from those in a small one."""
FIXED = 0.3
"""Share by which a fragment's own bytes may differ, since they are estimated from a fragment of another size."""


@dataclass(frozen=True, kw_only=True)
class Workforce:
    """The actors that a run can have."""

    actors: int
    """Maximum number of concurrent actors on the cluster as it is, or as its autoscaler may enlarge it."""
    each: Mapping[str, float]
    """Resources of one actor on its node, under Ray's names."""
    per_node: int
    """Number of actors that fit on a node."""

    def count_actors(self, chunks: int, ask: AskConfig) -> int:
        """Return the number of actors that work on ``chunks``."""
        return max(1, min(self.actors, math.ceil(chunks / BACKENDS[ask.backend].calls)))


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """The forecast of one stage."""

    name: str
    rows: int
    prompt_tokens: Estimate
    output_tokens: Estimate
    actor_seconds: Estimate
    """Seconds of all actors together, without their starts."""
    seconds: Estimate
    """Seconds from the stage's start to its end, without starts of actors, if no other stage uses the actors."""
    bytes: Estimate


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of all labelling stages of a run together."""

    stages: Sequence[StageForecast]
    left_out: Sequence[LeftOut]
    questions: Sequence[AskGroup]
    workforce: Workforce
    total: Mapping[str, Estimate]
    """Amounts by the names in ``report.costs.UNITS``."""
    currency: str | None

    def to_json(self) -> Json:
        """Return the forecast as a JSON object."""
        probes = [
            {
                "stages": [asking.stage for asking in question.askings],
                "notes": list(dict.fromkeys(asking.note for asking in question.askings if asking.note)),
                **_to_json(question.measured),
            }
            for question in self.questions
        ]
        left_out = [item._asdict() for item in self.left_out]
        parts: Json = _to_json(self) | {"stages": [_to_json(stage) for stage in self.stages], "left_out": left_out}
        parts |= {"workforce": _to_json(self.workforce), "total": _to_json(self.total), "probes": probes}
        return {name: part for name, part in parts.items() if name != "questions"}


def forecast_run(
    opened: OpenedRun, stages: Sequence[Stage], known: Known, *, num_rows: int | None
) -> tuple[Forecast | None, Sequence[LeftOut]]:
    """Return a forecast of the ``stages`` that ask the run's first teacher, if any, and the stages it leaves out.

    Ray is started or joined, and rows are labelled (see :func:`curation.pipeline.probing.probe_all`); the run
    directory is left as it is.
    """
    config, files = opened.config, opened.manifest.source_files
    left = {stage.name: count_rows_left(stage, opened.manifest, known) for stage in stages}
    askings, left_out = collect_askings(stages, config, files, known, left, opened.deals.taken(files))
    if not askings:
        return None, left_out
    asked = [need for need in opened.needs if need.key.startswith("teacher.actors")]
    with joined(config.ray, asked), scratch(config.directory, config.ray) as directory:
        return forecast_askings(askings, left_out, config, directory, num_rows=num_rows), left_out


def forecast_askings(
    askings: Sequence[StageAsk],
    left_out: Sequence[LeftOut],
    config: RunConfig | FilterConfig,
    directory: Place,
    *,
    num_rows: int | None,
) -> Forecast:
    """Return a forecast for ``askings``; samples are labelled in ``directory`` (:func:`scratch`). Ray must run."""
    questions = probe_all(
        askings,
        directory,
        num_rows=num_rows,
        commit_seconds=config.commit_seconds,
        hold_cpus=not capacity.is_one_machine(config.ray),
    )
    engine = askings[0].engine
    each = {**engine.actors.each, "CPU": count_actor_cpus(engine)}
    room = engine.actors.max
    if not capacity.can_autoscale():
        room = min(room, max(1, capacity.count_fitting(each)))
    workforce = Workforce(actors=room, each=each, per_node=capacity.count_fitting_on_one(each))
    return forecast_questions(questions, left_out, workforce, config.prices, config.fragment_mb)


@contextmanager
def scratch(run_directory: Place, settings: RayConfig) -> Iterator[Place]:
    """Yield a temporary folder that every actor can reach: beside the run directory, or local on one machine."""
    if isinstance(run_directory, Path) and capacity.is_one_machine(settings):
        with tempfile.TemporaryDirectory(prefix="curate-probe-") as local:
            yield to_place(local)
        return
    directory = run_directory.with_name(f"{run_directory.name}.probe-{uuid.uuid4().hex[:8]}")
    try:
        yield directory
    finally:
        remove(directory)


def forecast_questions(
    questions: Sequence[AskGroup],
    left_out: Sequence[LeftOut],
    workforce: Workforce,
    prices: PricesConfig | None,
    fragment_mb: int,
) -> Forecast:
    """Return the forecast of the stages that ask the ``questions``."""
    stages = [
        _forecast_stage(asking, question, workforce, fragment_mb << 20)
        for question in questions
        for asking in question.askings
    ]

    # Seconds in which actors start: the sum over all actors, and the time until the first ones work.
    starts, first = [make_exact(0.0)], [make_exact(0.0)]
    for question in questions:
        if (seconds := question.measured.start_seconds) is not None:
            chunks = sum(math.ceil(asking.rows / asking.ask.chunk_rows) for asking in question.askings)
            first.append(_estimate_start(seconds))
            starts.append(scale_estimate(first[-1], workforce.count_actors(chunks, question.askings[0].ask)))
    actor_seconds = sum_independent([sum_together(stage.actor_seconds for stage in stages), sum_together(starts)])
    seconds_all = sum_independent([sum_together(stage.seconds for stage in stages), sum_together(first)])
    total: dict[str, Estimate] = {
        "prompt_tokens": sum_together(stage.prompt_tokens for stage in stages),
        "output_tokens": sum_together(stage.output_tokens for stage in stages),
        "hours": scale_estimate(seconds_all, 1 / 3600),
        **compute_amounts(scale_estimate(actor_seconds, 1 / 3600), _to_json(workforce)),
        "bytes": sum_together(stage.bytes for stage in stages),
    }
    if prices is not None:
        total |= compute_money(total, prices)
    return Forecast(
        stages=stages,
        left_out=left_out,
        questions=questions,
        workforce=workforce,
        total=total,
        currency=None if prices is None else prices.currency,
    )


def _forecast_stage(asking: StageAsk, question: AskGroup, workforce: Workforce, fragment_bytes: int) -> StageForecast:
    ask, measured, rows, chunk_rows = asking.ask, question.measured, asking.rows, asking.ask.chunk_rows
    chunks = math.ceil(rows / chunk_rows)
    actors = workforce.count_actors(chunks, ask)
    work = widen_estimate(scale_estimate(measured.actor_seconds, rows), DRIFT)
    longest = (actors - 1) * min(rows, chunk_rows) * measured.actor_seconds.value  # all others wait for one chunk
    spent = sum_independent([work, Estimate(value=longest / 2, low=0.0, high=longest, n=0)])

    # The stored bytes of a row, including states or scores.
    states: float = len(ask.states) * measured.state_bytes
    if asking.stored_scores:
        states = asking.stored_scores * 2 * 4  # a raw and a calibrated score, float32
    if asking.fitted:
        states = asking.states_share * states  # its scores are among the measured bytes
    of_rows = scale_estimate(sum_independent([measured.bytes, make_exact(states)]), rows)
    fragments = chunks if chunks < FEWEST else math.ceil(of_rows.value / fragment_bytes)  # else they are compacted
    of_fragments = widen_estimate(make_exact(fragments * measured.fragment_bytes), FIXED)
    return StageForecast(
        name=asking.stage,
        rows=rows,
        prompt_tokens=scale_estimate(measured.prompt_tokens, rows),
        output_tokens=scale_estimate(measured.output_tokens, rows),
        actor_seconds=spent,
        seconds=sum_independent([scale_estimate(spent, 1 / actors), _estimate_start(measured.other_seconds)]),
        bytes=sum_independent([widen_estimate(of_rows, DENSITY), of_fragments]),
    )


def _estimate_start(seconds: float) -> Estimate:
    low, high = START
    return Estimate(value=seconds, low=low * seconds, high=high * seconds, n=0)


def _to_json(value: object) -> Json:
    """Return the fields of a dataclass or the items of a mapping, with estimates as JSON."""
    items = value if isinstance(value, Mapping) else vars(value)
    return {
        name: item.to_json() if isinstance(item, Estimate) else dict(item) if isinstance(item, Mapping) else item
        for name, item in items.items()
    }


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
