"""``curate plan``: what a run or a filter would do."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from curation.cluster import capacity
from curation.config import RunConfig
from curation.config.filter import FilterConfig
from curation.extras.plan.forecasting import Forecast, forecast_run
from curation.json_types import Json
from curation.pipeline.opened import open_run
from curation.pipeline.outlook import iter_memory_lines
from curation.pipeline.probing import LeftOut
from curation.pipeline.roles import check_models
from curation.pipeline.work import Opened
from curation.rundir.graph import Outputs, Skipped, count_steps, list_awaited
from curation.rundir.manifest import Manifest
from curation.rundir.status import State, Status, iter_statuses


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A stage of a plan, with its state and rows."""

    name: str
    step: int
    """Index of the stage's step. Stages of one step are independent; each waits for a stage of the previous step."""
    after: Sequence[str]
    state: State
    words: str
    """State in words, with what changed, which stage it waits for, or why there is nothing to do."""
    rows: int | None
    seconds: float | None = None
    """Time that the stage took, if it is done."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All stages of a run or a filter, with a forecast of those that ask its teacher if a probe was made."""

    stages: list[PlannedStage]
    forecast: Forecast | None
    left_out: Sequence[LeftOut] = ()
    pool: str | None = None
    """Line on a filter's pool, with the number of its rows and of new ones; None for a run."""
    added: str | None = None
    """Line on the splits that are added to a grown run, and on those that stay unchanged."""
    memory: Sequence[str] = ()
    """One line per actor and training worker of a run, with needed and available memory."""

    def to_json(self) -> Json:
        """Return the plan as a JSON object."""
        return {
            "pool": self.pool,
            "added": self.added,
            "stages": [asdict(stage) for stage in self.stages],
            "forecast": None if self.forecast is None else self.forecast.to_json(),
            "left_out": [item._asdict() for item in self.left_out],
            "memory": list(self.memory),
        }


def make_plan(
    config: RunConfig | FilterConfig, *, probe: bool, num_rows: int | None = None, recut: bool = False
) -> Plan:
    """Return every stage with its rows and state, and with ``probe`` a forecast of those that ask the first teacher.

    The probe labels a sample of ``num_rows`` rows (None: a moderate number) on Ray, by one of the actors that
    the run or the filter would start. It changes nothing in the directory. ``recut`` is that of ``curate filter``.

    Raises:
        ConfigError: a process of a run does not fit.
    """
    opened: Opened[Any]
    forecast: Any
    memory: Sequence[str] = ()
    if isinstance(config, FilterConfig):
        from curation.extras.plan.filters import forecast_filter  # heavy, and a run needs none of it
        from curation.filter.opened import look

        opened, forecast = look(config, recut=recut), forecast_filter
    else:
        opened, forecast = open_run(config), forecast_run
        if not opened.is_settled():
            check_models(config, loads=True)
        memory = tuple(iter_memory_lines(config))
    if not opened.is_settled():
        capacity.check_machine(config.ray, opened.needs)
    known: dict[str, Outputs | Skipped] = {}
    found = list(iter_statuses(opened.stages, opened.manifest, known))
    left = [status.stage for status in found if not status.is_settled]
    made, left_out = forecast(opened, left, known, num_rows=num_rows) if probe else (None, ())
    step_of = count_steps(opened.stages)
    stages = [_describe_stage(status, step_of[status.stage.name], opened.manifest) for status in found]
    return Plan(stages=stages, forecast=made, left_out=left_out, memory=memory, **opened.growth)


def _describe_stage(status: Status, step: int, manifest: Manifest) -> PlannedStage:
    stage = status.stage
    facts: Json = {"rows": stage.num_rows}
    if status.state == "done":
        facts = {"rows": manifest.stages[stage.name].rows, "seconds": manifest.stages[stage.name].seconds}
    elif status.state == "skipped":
        facts = {"rows": 0, "seconds": 0.0}
    after = list_awaited(stage)
    return PlannedStage(name=stage.name, step=step, after=after, state=status.state, words=status.words, **facts)
