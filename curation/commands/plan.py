"""``curate plan``: shows what a run would do."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from curation.config import RunConfig
from curation.pipeline.chain import check_models
from curation.pipeline.running import open_run
from curation.rundir.graph import Outputs, Skipped, State, statuses, steps, waited_for

if TYPE_CHECKING:
    from curation.pipeline.forecasting import Forecast
    from curation.pipeline.probing import LeftOut


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

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        stages = [asdict(stage) for stage in self.stages]
        forecast = None if self.forecast is None else self.forecast.to_json()
        return {"stages": stages, "forecast": forecast, "left_out": [item._asdict() for item in self.left_out]}

    @property
    def table(self) -> str:
        """One line per stage, in the order in which they run."""
        lines = [f"{'stage':<44}{'rows':>12}{'seconds':>10}  state"]
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

    check_models(config, loads=True)
    opened = open_run(config, save=False)
    known: dict[str, Outputs | Skipped] = {}
    found = list(statuses(opened.chain.stages, opened.manifest.records, known))
    left = [status.stage for status in found if not status.is_settled]
    made, left_out = forecast_run(opened, left, known, num_rows=num_rows) if probe else (None, ())
    ahead = {} if made is None else {stage.name: stage for stage in made.stages}
    step_of, stages = steps(opened.chain.stages), []
    for status in found:
        name, rows, seconds = status.stage.name, status.stage.rows, None
        if status.state == "done":
            record = opened.manifest.stages[name]
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
