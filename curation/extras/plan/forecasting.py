"""Forecasts of labelling cost, from the stages that are left to do and a probe of their teacher.

Tokens and bytes have the error of the sample. Hours are rough, and so is what machines cost: the rows divided by the
speed of the one actor that the probe starts, and by the number of actors. Starts of models, waits and drifts of speed
come on top.
"""

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from curation.cluster import capacity
from curation.config import PricesConfig, RayConfig, RunConfig
from curation.config.filter import FilterConfig
from curation.json_types import Json
from curation.metrics import Estimate
from curation.metrics.totals import add_exact, make_rough, scale_estimate, sum_together
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
from curation.rundir.graph import Known, Stage, Unknown, make_cache_key
from curation.rundir.manifest import Manifest
from curation.stages.asking import AskModel
from curation.storage.paths import Place, remove, to_place
from curation.tables import io

UNITS = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "bytes": "bytes of the labels, uncompressed",
    "hours": "hours of labelling, without starts",
    "gpu_hours": "GPU hours of the actors",
    "cpu_hours": "CPU hours of the actors",
    "money_machines": "for machines",
    "money_tokens": "for tokens of the teacher",
    "money": "together",
}
"""Names of forecast amounts, in words."""


@dataclass(frozen=True, kw_only=True)
class Workforce:
    """The actors that a run can have."""

    actors: int
    """Maximum number of concurrent actors on the cluster as it is, or as its autoscaler may enlarge it."""
    each: Mapping[str, float]
    """Resources of one actor on its node, under Ray's names."""


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """The forecast of one stage."""

    name: str
    rows: int
    prompt_tokens: Estimate
    output_tokens: Estimate
    actor_hours: Estimate
    """Hours of all actors together, without their starts."""
    bytes: Estimate


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of all labelling stages of a run together."""

    stages: Sequence[StageForecast]
    left_out: Sequence[LeftOut]
    questions: Sequence[AskGroup]
    workforce: Workforce
    total: Mapping[str, Estimate]
    """Amounts by the names in ``UNITS``."""
    currency: str | None

    def to_json(self) -> Json:
        """Return the forecast as a JSON object."""
        return {
            "stages": [_to_json(stage) for stage in self.stages],
            "left_out": [item._asdict() for item in self.left_out],
            "workforce": vars(self.workforce) | {"each": dict(self.workforce.each)},
            "total": {name: amount.to_json() for name, amount in self.total.items()},
            "currency": self.currency,
            "probes": [
                {
                    "stages": [asking.stage for asking in question.askings],
                    "notes": list(dict.fromkeys(asking.note for asking in question.askings if asking.note)),
                    **_to_json(question.measured),
                }
                for question in self.questions
            ],
        }


def _to_json(value: object) -> Json:
    """Return the fields of a dataclass, with estimates as JSON."""
    return {name: item.to_json() if isinstance(item, Estimate) else item for name, item in vars(value).items()}


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
    with joined(config.ray, asked), open_scratch(config.directory, config.ray) as directory:
        return forecast_askings(askings, left_out, config, directory, num_rows=num_rows), left_out


def forecast_askings(
    askings: Sequence[StageAsk],
    left_out: Sequence[LeftOut],
    config: RunConfig | FilterConfig,
    directory: Place,
    *,
    num_rows: int | None,
) -> Forecast:
    """Return a forecast for ``askings``; samples are labelled in ``directory`` (:func:`open_scratch`). Ray must run."""
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
    return forecast_questions(questions, left_out, Workforce(actors=room, each=each), config.prices)


@contextmanager
def open_scratch(run_directory: Place, settings: RayConfig) -> Iterator[Place]:
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
    questions: Sequence[AskGroup], left_out: Sequence[LeftOut], workforce: Workforce, prices: PricesConfig | None
) -> Forecast:
    """Return the forecast of the stages that ask the ``questions``."""
    stages = [_forecast_stage(asking, question) for question in questions for asking in question.askings]
    actor_hours = sum_together(stage.actor_hours for stage in stages)
    total = {
        "prompt_tokens": sum_together(stage.prompt_tokens for stage in stages),
        "output_tokens": sum_together(stage.output_tokens for stage in stages),
        "bytes": sum_together(stage.bytes for stage in stages),
        "hours": scale_estimate(actor_hours, 1 / workforce.actors),
    }
    for kind in ("GPU", "CPU"):
        if each := workforce.each.get(kind):
            total[f"{kind.lower()}_hours"] = scale_estimate(actor_hours, each)
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


def compute_money(used: Mapping[str, Estimate], prices: PricesConfig) -> dict[str, Estimate]:
    """Return the cost of amounts in money, by kind and in all; empty if no amount has a price."""
    rates = (
        ("machines", "gpu_hours", prices.gpu_hour, 1),
        ("machines", "cpu_hours", prices.cpu_hour, 1),
        ("tokens", "prompt_tokens", prices.per_million_prompt_tokens, 1e6),
        ("tokens", "output_tokens", prices.per_million_output_tokens, 1e6),
    )
    parts: dict[str, list[Estimate]] = {}
    for kind, unit, price, number in rates:
        if price is not None and unit in used:
            parts.setdefault(f"money_{kind}", []).append(scale_estimate(used[unit], price / number))
    found = {name: sum_together(of_kind) for name, of_kind in parts.items()}
    return {**found, "money": sum_together(found.values())} if found else {}


def _forecast_stage(asking: StageAsk, question: AskGroup) -> StageForecast:
    measured, rows = question.measured, asking.rows
    states = asking.states_share * len(asking.ask.states) * measured.state_bytes
    return StageForecast(
        name=asking.stage,
        rows=rows,
        prompt_tokens=scale_estimate(measured.prompt_tokens, rows),
        output_tokens=scale_estimate(measured.output_tokens, rows),
        actor_hours=make_rough(rows * measured.actor_seconds / 3600, measured.rows),
        bytes=scale_estimate(add_exact(measured.bytes, states), rows),
    )


def count_rows_left(stage: Stage, manifest: Manifest, known: Known) -> int | None:
    """Return the number of rows left to do, less those an interrupted stage has committed; None if unknown."""
    if stage.num_rows is None or not isinstance(stage, AskModel):
        return stage.num_rows
    try:
        uri = manifest.directory_of(stage.name, make_cache_key(stage, known)) / "labels.lance"
    except Unknown:
        return stage.num_rows
    return max(0, stage.num_rows - (io.count(io.find_latest(str(uri))) if uri.exists() else 0))
