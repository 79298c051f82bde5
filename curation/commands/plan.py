"""``curate plan``: shows what a run or a filter would do."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from curation.config import RunConfig
from curation.config.filter import FilterConfig
from curation.pipeline.chain import check_models
from curation.pipeline.opened import open_run
from curation.rundir.graph import Known, Outputs, Skipped, Stage, State, statuses, steps, waited_for
from curation.rundir.manifest import Manifest

if TYPE_CHECKING:
    from curation.pipeline.forecasting import Forecast
    from curation.pipeline.probing import LeftOut

Forecaster = Callable[[Sequence[Stage], Known], "tuple[Forecast | None, Sequence[LeftOut]]"]
"""A forecast of stages that are left, given what the others have made, and the stages that it leaves out."""


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A stage and its state."""

    name: str
    step: int
    """Stages of one step do not wait for each other; each waits for a stage of the previous step."""
    after: Sequence[str]
    """The stages that it waits for."""
    state: State
    words: str
    """The state in words: with what changed, which stage it waits for, or why there is nothing to do."""
    rows: int | None
    """The number of rows that it works on, if known."""
    seconds: float | None
    """The time that it took, or that is forecast, if known."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All stages of a run, and a forecast of those that ask its teacher, if a probe was made."""

    stages: list[PlannedStage]
    forecast: "Forecast | None"
    left_out: "Sequence[LeftOut]" = ()
    """Stages that ask a model and are not in a forecast."""
    pool: str | None = None
    """Of a filter: how many rows its pool has, and how many of them are new."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        stages = [asdict(stage) for stage in self.stages]
        forecast = None if self.forecast is None else self.forecast.to_json()
        left_out = [item._asdict() for item in self.left_out]
        return {"pool": self.pool, "stages": stages, "forecast": forecast, "left_out": left_out}

    @property
    def table(self) -> str:
        """One line per stage, in the order in which they run."""
        lines = [] if self.pool is None else [self.pool]
        lines.append(f"{'stage':<44}{'rows':>12}{'seconds':>10}  state")
        for stage in self.stages:
            rows = "" if stage.rows is None else f"{stage.rows:,}"
            seconds = "" if stage.seconds is None else f"{stage.seconds:,.0f}"
            lines.append(f"{stage.name:<44}{rows:>12}{seconds:>10}  {stage.words}")
        return "\n".join(lines)

    @property
    def graph(self) -> str:
        """One line per stage, by step, with the stages that it waits for."""
        marks = {"done": "x", "skipped": "-"}
        lines = [f"{'step':>4}      {'stage':<44}after"]
        before = None
        for stage in sorted(self.stages, key=lambda stage: stage.step):
            step = "" if stage.step == before else str(stage.step)
            before = stage.step
            after = ", ".join(stage.after)
            lines.append(f"{step:>4}  [{marks.get(stage.state, ' ')}] {stage.name:<44}{after}".rstrip())
        return "\n".join([*lines, "[x] done, [-] nothing to do; stages of one step do not wait for each other"])


def make_plan(config: RunConfig, *, probe: bool, num_rows: int | None = None) -> Plan:
    """Every stage with its rows and state, and a forecast of what the stages take that ask the first teacher.

    With ``probe``, a sample of ``num_rows`` rows (unset: a moderate number) is labelled on Ray, by the actors that the
    run would start. It changes nothing in the run directory.
    """
    from curation.pipeline.planning import forecast_run

    opened = open_run(config, save=False)
    if not all(status.is_settled for status in opened.statuses):
        check_models(config, loads=True)
    ahead = partial(forecast_run, opened, num_rows=num_rows) if probe else None
    return _planned(opened.chain.stages, opened.manifest, ahead)


def plan_filter(config: FilterConfig, *, recut: bool, probe: bool, num_rows: int | None = None) -> Plan:
    """The same for a filter: its rounds, of which those with new files are to be labelled, the cut, and the writing.

    The sample is drawn over all files that are left to label. It changes nothing in the output.
    """
    from curation.pipeline.filter import opening
    from curation.pipeline.filter.forecast import forecast_filter

    opened = opening.look(config, recut=recut)
    ahead = partial(forecast_filter, opened, num_rows=num_rows) if probe else None
    return replace(_planned(opened.described.all, opened.manifest, ahead), pool=opened.pool)


def _planned(ordered: Sequence[Stage], manifest: Manifest, forecaster: Forecaster | None) -> Plan:
    known: dict[str, Outputs | Skipped] = {}
    found = list(statuses(ordered, manifest.records, known))
    left = [status.stage for status in found if not status.is_settled]
    made, left_out = (None, ()) if forecaster is None else forecaster(left, known)
    ahead = {} if made is None else {stage.name: stage for stage in made.stages}
    step_of, stages = steps(ordered), []
    for status in found:
        name, rows, seconds = status.stage.name, status.stage.rows, None
        if status.state == "done":
            record = manifest.stages[name]
            rows, seconds = record.rows, record.seconds
        elif status.state == "skipped":
            rows, seconds = 0, 0.0
        elif name in ahead:
            seconds = ahead[name].seconds.value
        stages.append(
            PlannedStage(
                name=name,
                step=step_of[name],
                after=waited_for(status.stage),
                state=status.state,
                words=status.words,
                rows=rows,
                seconds=seconds,
            )
        )
    return Plan(stages=stages, forecast=made, left_out=left_out)
