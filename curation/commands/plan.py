"""``curate plan``: shows what a run would do."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from curation import models
from curation.config import RunConfig
from curation.domains import get_domain
from curation.errors import RowError
from curation.pipeline.running import open_run
from curation.registry import BACKENDS
from curation.rundir.graph import State, steps, waited_for
from curation.sources import discover, raw_rows, read_rows

PROBE_ROWS = 256


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
    """The time that it took, or that a probe estimates, if known."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All stages of a run, and the speed that a probe measured."""

    stages: list[PlannedStage]
    rows_per_second: float | None

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


def make_plan(config: RunConfig, *, probe: bool) -> Plan:
    """Every stage with its rows and state, and the time of labelling stages as a probe estimates it.

    The probe labels a few hundred rows with the teacher's un-adapted base in this process. It changes nothing.
    """
    opened = open_run(config, save=False)
    found = opened.statuses
    is_finished = all(status.is_settled for status in found)
    speed = _probe(config) if probe and not is_finished else None
    step_of, stages = steps(opened.chain.stages), []
    for status in found:
        name, rows, seconds = status.stage.name, status.stage.rows, None
        if status.state == "done":
            record = opened.manifest.stages[name]
            rows, seconds = record.rows, record.seconds
        elif status.state == "skipped":
            rows, seconds = 0, 0.0
        elif rows and speed and status.stage.asks_teacher:
            seconds = rows / speed / config.teacher.actors.max
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
    return Plan(stages=stages, rows_per_second=speed)


def _probe(config: RunConfig) -> float | None:
    """Rows/s of one teacher in this process, without start-up.

    None for a teacher that does not exist yet, and for one that may run on vLLM: this process has other work to do
    afterwards, and a vLLM engine should not run in it.
    """
    from curation.signals import label_request
    from curation.teachers import load_teacher

    model = config.teacher.model
    if config.teacher.backend in ("vllm", "auto"):
        return None
    if BACKENDS[config.teacher.backend].weights and (model is None or model.path is None):
        return None
    ref = None if model is None or model.path is None else models.resolve(model.path, model.revision, model.adapter)
    domain = get_domain(config.domain_of("source"))
    files = discover(config.sources[config.splits.source.source])
    rows = (raw for file in files for batch in read_rows(file) for raw in raw_rows(batch))
    requests = []
    for place, raw in enumerate(islice(rows, PROBE_ROWS)):
        try:
            requests.append(label_request(domain, place, domain.read(raw)))
        except RowError:
            continue
    teacher = load_teacher(config.teacher, ref)
    list(teacher.label(requests[:8], config.teacher.decoding, seed=0))
    start = time.monotonic()
    num_rows = sum(batch.num_rows for batch in teacher.label(requests, config.teacher.decoding, seed=0))
    return float(num_rows / (time.monotonic() - start))
