"""What a run would do, what it has done, and whether it can start: ``curate validate``, ``plan`` and ``status``."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from curation import lease, models, tracking
from curation.config import ModelConfig, RunConfig
from curation.config.resolved import resolved, warnings
from curation.domains import get_domain
from curation.errors import ModelError, RowError, UserError
from curation.pipeline.chain import describe
from curation.pipeline.running import open_run
from curation.rundir.graph import Status, statuses
from curation.rundir.manifest import Manifest
from curation.selection.budget import check_pool
from curation.sources import discover, raw_rows, read_rows, require_columns, split_sizes
from curation.standing import Work
from curation.states import beyond, others_of

PROBE_ROWS = 256
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A stage, the rows that it works on and the seconds that they take, where known; ``state`` in words."""

    name: str
    rows: int | None
    seconds: float | None
    state: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All stages of a run, and the speed that a probe measured."""

    stages: list[PlannedStage]
    rows_per_second: float | None


def check(config: RunConfig) -> Iterator[str]:
    """Lines on what was found: files, rows of each split, models, what follows from the domain, and warnings.

    Raises:
        UserError: what is wrong, as `curate run` would say it.
    """
    tracking.require(config.tracking)
    files = {name: discover(source) for name, source in config.sources.items()}
    for name, items in files.items():
        require_columns(items, get_domain(config.sources[name].domain or config.domain).forms)
        yield f"source {name}: {len(items)} files, {sum(file.num_rows for file in items):,} rows"
    sizes = split_sizes(config, files)
    for name, num_rows in sizes.items():
        yield f"split {name}: {num_rows:,} rows"
    check_pool(config.selection.budget, sizes["pool"] // max(1, len(config.generations)))
    teachers = {"teacher", *(f"student {index}" for index in range(len(config.generations) - 1))}
    for role, model in config.models.items():
        states = config.teacher.states if role in teachers else ()
        yield f"{role}: {_described(model, states, trust_remote_code=role in config.runs_code)}"
    yield from resolved(config)
    yield from (f"warning: {line}" for line in warnings(config))


def make_plan(config: RunConfig, *, probe: bool) -> Plan:
    """Every stage with its rows, where it stands, and the seconds of the labelling ones as a probe foresees them.

    The probe labels a few hundred rows with the teacher's un-adapted base in this process; it changes nothing.
    """
    opened = open_run(config, save=False)
    found = opened.statuses
    is_finished = all(status.state in ("done", "skipped") for status in found)
    speed = _probe(config) if probe and not is_finished else None
    stages = []
    for status in found:
        name, rows, seconds = status.stage.name, status.stage.rows, None
        if status.state == "done":
            record = opened.manifest.stages[name]
            rows, seconds = record.rows, record.seconds
        elif status.state == "skipped":
            rows, seconds = 0, 0.0
        elif rows and speed and status.stage.asks_teacher:
            seconds = rows / speed / config.teacher.actors.max
        stages.append(PlannedStage(name=name, rows=rows, seconds=seconds, state=status.words))
    return Plan(stages=stages, rows_per_second=speed)


def status_lines(config: RunConfig) -> Iterator[str]:
    """What is done, what is under way and whether a driver is alive, from the run directory alone."""
    manifest = Manifest.load(config.directory)
    if not manifest.identity:
        yield f"{config.directory}: no run here yet; `curate run` starts it"
        return
    holder = lease.holder(config.directory)
    yield f"{config.directory}: {'not running' if holder is None else f'running ({holder})'}"
    yield from _standing(config, manifest)
    events = [json.loads(line) for line in manifest.events.last(TAIL_BYTES)]
    nodes = [event for event in events if event["event"] == "nodes"]
    events = [event for event in events if event["event"] != "nodes"]
    if nodes and holder is not None:
        yield _nodes(nodes[-1])
    if events and events[-1]["event"] != "finished":
        last = events[-1]
        age = f"last event, {max(0.0, time.time() - last['time']):.0f} s ago: {last['event']}"
        if last["event"] == "progress":
            yield from _progress(last)
            yield age
        else:
            yield f"{age} {json.dumps({key: value for key, value in last.items() if key not in ('time', 'event')})}"


def _standing(config: RunConfig, manifest: Manifest) -> Iterator[str]:
    """The stages on record, and those of them that the configuration asks for otherwise, which count as not done."""
    found: list[Status] = []
    try:
        if manifest.files.keys() >= config.sources.keys():
            found = list(statuses(describe(config, manifest.source_files).stages, manifest.records))
    except UserError as error:  # a model that is away tells nothing of what was done
        yield f"whether stages are to be done again is not known: {error}"
    states = {status.stage.name: status for status in found}
    for name in states or manifest.stages:
        record = manifest.stages.get(name)
        if record is None:
            continue
        rate = f"{record.rows / record.seconds:,.0f} rows/s" if record.seconds else ""
        stands = states.get(name)
        stale = "" if stands is None or stands.state == "done" else f"  to be done again, {stands.words}"
        yield f"{name:<44}{record.rows:>12,} rows {record.seconds:>8.1f} s  {rate}{stale}"
    if left := [status for status in found if status.state not in ("done", "skipped")]:
        done = sum(status.state == "done" for status in found)
        yield f"{done} of {len(found)} stages are done; next is {left[0].stage.name} ({left[0].words})"


def _described(model: ModelConfig, states: Sequence[str], *, trust_remote_code: bool) -> str:
    """A model in words; refused where it lacks a layer that ``states`` name."""
    if model.init is not None:
        if (problem := beyond(states, model.init.num_layers)) is not None:
            raise ModelError(f"teacher.states: {problem} (a model from scratch)")
        return f"{model.init.family} from scratch, {model.init.num_layers} layers of {model.init.hidden_size}"
    ref = models.resolve(str(model.path), model.revision, model.adapter, trust_remote_code=trust_remote_code)
    if others_of(states):
        models.state_size(ref, states)
    return f"{ref.base} at {ref.revision}"


def _probe(config: RunConfig) -> float | None:
    """Rows/s of one teacher in this process, start-up left out.

    None for a teacher that is yet to be made, and where it may be an engine of vLLM, which is not for a process that
    is about to do something else.
    """
    from curation.signals import label_request
    from curation.teachers import load_teacher

    model = config.teacher.model
    if config.teacher.backend in ("vllm", "auto"):
        return None
    if config.teacher.backend != "scripted" and (model is None or model.path is None):
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


def _nodes(event: dict[str, Any]) -> str:
    """How many nodes the cluster has, and what changed last."""
    changes = [f"{word} {', '.join(event[word])}" for word in ("came", "left") if event[word]]
    changed = f", {max(0.0, time.time() - event['time']):.0f} s ago: {'; '.join(changes)}" if changes else ""
    return f"{'nodes':<44}{event['num']:>12,}{changed}"


def _progress(event: dict[str, Any]) -> Iterator[str]:
    """Rows done, speed and time left of the stage under way, and what its actors are at."""
    share = f" ({100 * event['rows'] / event['total']:.0f} %)" if event["total"] else ""
    told = f"{event['stage']:<44}{event['rows']:>12,} of {event['total']:,} rows{share}"
    if "rows_per_second" in event:
        told += f", {event['rows_per_second']:,.0f} rows/s, about {event['seconds_left']:,.0f} s left"
    yield told
    if "work" in event:
        yield f"  {Work.from_json(event['work']).words()}"
