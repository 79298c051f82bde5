"""``curate plan``: shows what a run or a filter would do."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from curation.cluster import capacity
from curation.config import RunConfig
from curation.config.filter import FilterConfig
from curation.errors import ConfigError
from curation.json_types import Json
from curation.metrics.totals import make_exact
from curation.pipeline.footprints import iter_memory_lines
from curation.pipeline.forecasting import forecast_run
from curation.pipeline.opened import open_run
from curation.pipeline.stage_times import Basis, count_rows_left, estimate, estimate_run
from curation.pipeline.work import Opened
from curation.rundir import history
from curation.rundir.graph import Known, Outputs, Skipped, Stage, count_steps, list_awaited
from curation.rundir.status import State, iter_statuses
from curation.stages.asking import AskModel
from curation.stages.training import Training
from curation.telemetry.console import say

if TYPE_CHECKING:
    from curation.metrics import Estimate
    from curation.pipeline.forecasting import Forecast
    from curation.pipeline.probing import LeftOut

Forecaster = Callable[[Sequence[Stage], Known], "tuple[Forecast | None, Sequence[LeftOut]]"]
"""Function of remaining stages and known outputs that returns a forecast and the stages missing from it."""


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A stage of a plan, with its state, rows and time."""

    name: str
    step: int
    """Index of the stage's step. Stages of one step are independent; each waits for a stage of the previous step."""
    after: Sequence[str]
    """Names of the stages that this stage waits for."""
    state: State
    words: str
    """State in words, with what changed, which stage it waits for, or why there is nothing to do."""
    rows: int | None
    """Number of rows that the stage processes, if known."""
    seconds: float | None
    """Actual or forecast time in seconds, or None if the stage's model was never measured here."""
    range: tuple[float, float] | None = None
    """Lower and upper bound of a forecast time, in seconds."""
    basis: Basis | None = None
    """Kind of measurements that the forecast is based on."""
    tokens: int | None = None
    """Forecast number of tokens to read and write or to train on, from the means of a probe, if known."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All stages of a run or a filter, with a forecast of those that ask its teacher if a probe was made."""

    stages: list[PlannedStage]
    total: "Estimate"
    """Estimated wall-clock seconds of the remaining work."""
    forecast: "Forecast | None"
    left_out: "Sequence[LeftOut]" = ()
    """Stages that ask a model but are not in the forecast, with the reasons."""
    pool: str | None = None
    """Line on a filter's pool, with the number of its rows and of new ones; None for a run."""
    added: str | None = None
    """Line on the splits that are added to a grown run, and on those that stay unchanged."""
    memory: Sequence[str] = ()
    """One line per actor and training worker of a run, with needed and available memory."""

    def to_json(self) -> Json:
        """Return the plan as a JSON object."""
        stages = [asdict(stage) for stage in self.stages]
        forecast = None if self.forecast is None else self.forecast.to_json()
        left_out = [item._asdict() for item in self.left_out]
        total = {"seconds": None if self._num_unknown else self.total.to_json(), "tokens": self.num_tokens}
        return {
            "pool": self.pool,
            "added": self.added,
            "stages": stages,
            "total": total,
            "forecast": forecast,
            "left_out": left_out,
            "memory": list(self.memory),
        }

    @property
    def num_tokens(self) -> int | None:
        """Number of tokens of all remaining stages whose tokens are known, or None if none are."""
        known = [stage.tokens for stage in self.stages if stage.tokens is not None]
        return sum(known) if known else None

    @property
    def table(self) -> str:
        """One line per stage, in the order in which they run."""
        lines = [line for line in (self.pool, self.added) if line is not None]
        lines.append(f"{'stage':<44}{'rows':>12}{'seconds':>10}{'range':>18}  {'by':<9}state")
        for stage in self.stages:
            rows = "" if stage.rows is None else f"{stage.rows:,}"
            seconds = "" if stage.seconds is None else f"{stage.seconds:,.0f}"
            between = "" if stage.range is None else f"{stage.range[0]:,.0f} to {stage.range[1]:,.0f}"
            lines.append(f"{stage.name:<44}{rows:>12}{seconds:>10}{between:>18}  {stage.basis or '':<9}{stage.words}")
        return "\n".join([*lines, *self._totals, *self.memory])

    @property
    def _num_unknown(self) -> int:
        """Number of remaining stages whose model was never measured."""
        return sum(stage.basis == "rough" and stage.seconds is None for stage in self.stages)

    @property
    def _totals(self) -> list[str]:
        if not self.total.value:
            return []
        if unknown := self._num_unknown:
            return [
                f"from start to end: not known, because {unknown} stages (without seconds) ask or train a model that "
                "was never measured here; the probe measures the first teacher, and a run measures the others"
            ]
        seconds, between = f"{self.total.value:,.0f}", f"{self.total.low:,.0f} to {self.total.high:,.0f}"
        tokens = "" if self.num_tokens is None else f"; about {self.num_tokens:,} tokens"
        lines = [f"{'from start to end, Ray and report too':<56}{seconds:>10}{between:>18}{tokens}"]
        if any(stage.basis in ("similar", "rough") for stage in self.stages):
            lines.append("similar: from stages of the same kind on this machine; rough: from no measurement here")
        return lines

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


def make_plan(
    config: RunConfig | FilterConfig,
    *,
    probe: bool,
    num_rows: int | None = None,
    recut: bool = False,
    gpu: str | None = None,
) -> Plan:
    """Return every stage with its rows and state, and with ``probe`` a forecast of those that ask the first teacher.

    The probe labels a sample of ``num_rows`` rows (None: a moderate number) on Ray, by the actors that the run or the
    filter would start. It changes nothing in the directory. ``recut`` is that of ``curate filter``. ``gpu`` is Ray's
    name of the card that a run's memory is compared with.

    Raises:
        ConfigError: a process of a run does not fit, the card is unknown, or ``gpu`` is given for a filter.
    """
    if gpu is not None and isinstance(config, FilterConfig):
        raise ConfigError("--gpu: compares only the processes of a run with a card, not those of a filter")
    opened: Opened[Any]
    forecaster: Callable[..., Any]
    memory: Sequence[str] = ()
    if isinstance(config, FilterConfig):
        from curation.filter.forecast import forecast_filter
        from curation.filter.opened import look

        opened = output = look(config, recut=recut)
        forecaster = partial(forecast_filter, output)
    else:
        opened = run = open_run(config, save=False)
        forecaster, memory = partial(forecast_run, run), tuple(iter_memory_lines(config, gpu))
    if not opened.is_settled():
        for line in opened.checks():
            say(line)
    ahead = partial(forecaster, num_rows=num_rows) if probe else None
    growth = opened.growth
    return replace(_build_plan(opened, ahead), pool=growth.get("pool"), added=growth.get("added"), memory=memory)


def _build_plan(opened: Opened[Any], forecaster: Forecaster | None) -> Plan:
    ordered, manifest, where = opened.stages, opened.manifest, opened.config.ray
    known: dict[str, Outputs | Skipped] = {}
    found = list(iter_statuses(ordered, manifest.records, known))
    left = [status.stage for status in found if not status.is_settled]
    made, left_out = (None, ()) if forecaster is None else forecaster(left, known)
    ahead = {} if made is None else {stage.name: stage.seconds for stage in made.stages}
    times = [*history.read(manifest.directory)]
    for status in found:  # times of the run itself; of stages that changed since: of the same kind, but not alike
        record = manifest.stages.get(status.stage.name)
        if record is not None and record.seconds:
            time = history.StageTime.of(status.stage, record.rows, record.seconds)
            times.append(time if status.state == "done" else replace(time, like=""))
    estimates = {
        stage.name: estimate(stage, count_rows_left(stage, manifest, known), ahead.get(stage.name), times)
        for stage in left
    }
    step_of, stages = count_steps(ordered), []
    for status in found:
        stage, name = status.stage, status.stage.name
        rows, seconds, between, basis = stage.num_rows, None, None, None
        if status.state == "done":
            rows, seconds = manifest.stages[name].rows, manifest.stages[name].seconds
        elif status.state == "skipped":
            rows, seconds = 0, 0.0
        else:
            about, basis = estimates[name]
            if basis != "rough" or not _has_model(stage):  # of a model that was never measured no time is known
                seconds, between = about.value, (about.low, about.high)
        stages.append(
            PlannedStage(
                name=name,
                step=step_of[name],
                after=list_awaited(stage),
                state=status.state,
                words=status.words,
                rows=rows,
                seconds=seconds,
                range=between,
                basis=basis,
                tokens=None if made is None or status.is_settled else _compute_tokens(stage, made),
            )
        )
    room = capacity.get_local_resources(where) if capacity.find_address(where) == capacity.LOCAL else {}
    seconds_of = {name: about for name, (about, _) in estimates.items()}
    total = estimate_run(ordered, seconds_of, room, where.max_stages) if left else make_exact(0.0)
    return Plan(stages=stages, total=total, forecast=made, left_out=left_out)


def _has_model(stage: Stage) -> bool:
    """Return whether a stage asks or trains a language model."""
    return isinstance(stage, Training) or (isinstance(stage, AskModel) and stage.teacher.asks)


def _compute_tokens(stage: Stage, made: "Forecast") -> int | None:
    """Return the tokens of a stage from its own forecast, else of a stage with a model from the probe's mean row."""
    for item in made.stages:
        if item.name == stage.name:
            return round(item.prompt_tokens.value + item.output_tokens.value)
    means = made.questions[0].measured
    if stage.num_rows is None or not _has_model(stage):
        return None
    return round(
        history.compute_amount(stage, stage.num_rows) * (means.prompt_tokens.value + means.output_tokens.value)
    )
