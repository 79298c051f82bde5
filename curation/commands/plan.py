"""``curate plan``: what a run or a filter would do; ``curate validate``: whether a run can start."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from curation import models
from curation.cluster import capacity
from curation.config import ModelConfig, RunConfig, TuneConfig
from curation.config.filter import FilterConfig
from curation.config.resolved import describe_resolved, iter_warnings
from curation.config.states import find_depth_problem, find_other_layers
from curation.errors import ModelError
from curation.features import parts
from curation.json_types import Json
from curation.pipeline.forecasting import Forecast, forecast_run
from curation.pipeline.grading import require_checkers
from curation.pipeline.growth import describe_growth, find_deals
from curation.pipeline.opened import check_settings, open_run, settle
from curation.pipeline.outlook import iter_few_steps, iter_memory_lines, iter_type_lines
from curation.pipeline.probing import LeftOut
from curation.pipeline.roles import check_models
from curation.pipeline.students import check_students
from curation.pipeline.work import Opened
from curation.rundir.graph import Known, Outputs, Skipped, Stage, count_steps, list_awaited
from curation.rundir.manifest import Manifest
from curation.rundir.status import State, iter_statuses
from curation.sources import compute_split_sizes, discover
from curation.stages.fit import check_search
from curation.stages.prepare import check_columns
from curation.stages.preview import check_preview, find_possible_groups, iter_group_warnings, preview
from curation.storage.paths import require_reachable

Forecaster = Callable[[Sequence[Stage], Known], tuple[Forecast | None, Sequence[LeftOut]]]
"""Function of remaining stages and known outputs that returns a forecast and the stages missing from it."""


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
    config: RunConfig | FilterConfig,
    *,
    probe: bool,
    num_rows: int | None = None,
    recut: bool = False,
) -> Plan:
    """Return every stage with its rows and state, and with ``probe`` a forecast of those that ask the first teacher.

    The probe labels a sample of ``num_rows`` rows (None: a moderate number) on Ray, by one of the actors that
    the run or the filter would start. It changes nothing in the directory. ``recut`` is that of ``curate filter``.

    Raises:
        ConfigError: a process of a run does not fit.
    """
    opened: Opened[Any]
    forecaster: Callable[..., Any]
    memory: Sequence[str] = ()
    if isinstance(config, FilterConfig):
        from curation.filter import opened as filters  # heavy, and a run needs none of it

        opened = output = filters.look(config, recut=recut)
        forecaster = partial(filters.forecast_filter, output)
    else:
        opened = run = open_run(config)
        if not run.is_settled():
            check_models(config, loads=True)
        forecaster, memory = partial(forecast_run, run), tuple(iter_memory_lines(config))
    if not opened.is_settled():
        capacity.check_machine(config.ray, opened.needs)
    return _build_plan(opened, partial(forecaster, num_rows=num_rows) if probe else None, memory)


def _build_plan(opened: Opened[Any], forecaster: Forecaster | None, memory: Sequence[str]) -> Plan:
    ordered, manifest = opened.stages, opened.manifest
    known: dict[str, Outputs | Skipped] = {}
    found = list(iter_statuses(ordered, manifest, known))
    left = [status.stage for status in found if not status.is_settled]
    made, left_out = (None, ()) if forecaster is None else forecaster(left, known)
    step_of, stages = count_steps(ordered), list[PlannedStage]()
    for status in found:
        stage, name, facts = status.stage, status.stage.name, Json()
        if status.state == "done":
            facts = {"rows": manifest.stages[name].rows, "seconds": manifest.stages[name].seconds}
        elif status.state == "skipped":
            facts = {"rows": 0, "seconds": 0.0}
        stages.append(
            PlannedStage(
                name=name,
                step=step_of[name],
                after=list_awaited(stage),
                state=status.state,
                words=status.words,
                **{"rows": stage.num_rows, **facts},
            )
        )
    return Plan(stages=stages, forecast=made, left_out=left_out, memory=memory, **opened.growth)


class CheckedLine(NamedTuple):
    """A line on something that was checked."""

    kind: Literal["source", "split", "rows", "model", "setting", "memory", "warning"]
    text: str


def check(config: RunConfig) -> Iterator[CheckedLine]:
    """Yield lines on files, rows, models, settings, memory and warnings; refuse what ``curate run`` would refuse."""
    for _, require, section in parts(config, "require"):
        require(section)
    require_reachable(config.directory, writable=True)
    check_models(config, loads=True)
    config = settle(config)
    require_checkers(config)
    check_students(config)
    manifest = Manifest.load(config.directory)
    manifest.require_current()
    deals, known = find_deals(config, manifest), manifest.source_files
    files = {name: discover(source, known.get(name, ())) for name, source in config.sources.items()}
    for name, items in files.items():
        check_columns(config, name, items)
        rows = sum(file.num_rows for file in items)
        yield CheckedLine("source", f"source {name}: {len(items)} files, {rows:,} rows")
    taken = deals.taken(files)
    sizes = compute_split_sizes(config, files, taken)
    num_pool = config.pool_share(sizes)
    for name, num_rows in sizes.items():
        yield CheckedLine("split", f"split {name}: {num_rows:,} rows")
    if (added := describe_growth(config, deals, files)) is not None:
        yield CheckedLine("split", added)
    if (shares := config.num_shares) > 1:
        num = max(1, len(config.generations))
        left = f"; {shares - num} more are left for generations that are added later" if shares > num else ""
        yield CheckedLine(
            "split", f"{num} generations label one of {shares} shares of the pool each, {num_pool:,} rows{left}"
        )
    seen = preview(config, files, taken)
    yield from (CheckedLine("rows", line) for line in check_preview(seen, config))
    yield from (CheckedLine("setting", line) for line in check_settings(config, files, num_pool))
    if config.trust.search or config.tune != TuneConfig():
        check_search(config)
    teachers = {"teacher", "reader", *(f"student {index}" for index in range(len(config.generations) - 1))}
    for role, model in config.models.items():
        states = config.teacher.states if role in teachers else ()
        yield CheckedLine("model", f"{role}: {_describe_model(model, states)}")
    yield from (CheckedLine("setting", line) for line in (*describe_resolved(config), *iter_type_lines(config)))
    yield from (CheckedLine("memory", line) for line in iter_memory_lines(config))
    words = [
        *iter_warnings(config),
        *iter_few_steps(config, num_pool),
        *iter_group_warnings(find_possible_groups(config, seen)),
    ]
    yield from (CheckedLine("warning", f"warning: {line}") for line in words)


def _describe_model(model: ModelConfig, states: Sequence[str]) -> str:
    """Return a model in words; raise a ``ModelError`` if it lacks a layer that ``states`` names."""
    if model.init is not None:
        if (problem := find_depth_problem(states, model.init.num_layers)) is not None:
            raise ModelError(f"teacher.states: {problem} (a model from scratch)")
        return f"{model.init.family} from scratch, {model.init.num_layers} layers of {model.init.hidden_size}"
    ref = models.pin_model(model)
    if find_other_layers(states):
        models.get_state_size(ref, states)
    runs = "" if ref.code is None else f"; its own code runs, {ref.code}"
    return f"{ref.base} at {ref.revision}{runs}"
