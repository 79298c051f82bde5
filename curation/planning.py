"""What a run would do, what it has done, and whether it can start: ``curate validate``, ``plan`` and ``status``."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from curation import chain, lease, models, tracking
from curation.config import ModelConfig, RunConfig
from curation.config.resolved import resolved, warnings
from curation.domains import get_domain
from curation.errors import ModelError, RowError
from curation.generation import test_stages
from curation.manifest import Manifest
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
    """Every stage with its rows, whether it is done, and the seconds of the labelling ones as a probe foresees them.

    The probe labels a few hundred rows with the teacher's un-adapted base in this process; it changes nothing.
    """
    sizes = split_sizes(config, {name: discover(source) for name, source in config.sources.items()})
    manifest = Manifest.load(config.directory)
    pending = chain.first_pending(config)
    names = chain.stage_names(config)
    first = len(names) if pending is None or pending.name not in names else names.index(pending.name)
    speed = _probe(config) if probe and pending is not None else None
    asked = {"label-source", "label-pool", *test_stages(config, "teacher")}
    stages = []
    for place, name in enumerate(names):
        rows = _stage_rows(name, config, sizes)
        if place < first:
            record = manifest.stages.get(name)
            if record is None:  # a student where nothing is selected
                stages.append(PlannedStage(name=name, rows=0, seconds=0.0, state="nothing to do"))
            else:
                stages.append(PlannedStage(name=name, rows=record.rows, seconds=record.seconds, state="done"))
            continue
        by_teacher = name.rpartition("/")[2] in asked
        seconds = rows / speed / config.teacher.actors.max if rows and speed and by_teacher else None
        state = pending.why if pending is not None and place == first else "to do"
        stages.append(PlannedStage(name=name, rows=rows, seconds=seconds, state=state))
    return Plan(stages=stages, rows_per_second=speed)


def status_lines(config: RunConfig) -> Iterator[str]:
    """What is done, what is under way and whether a driver is alive, from the run directory alone."""
    manifest = Manifest.load(config.directory)
    if not manifest.identity:
        yield f"{config.directory}: no run here yet; `curate run` starts it"
        return
    holder = lease.holder(config.directory)
    yield f"{config.directory}: {'not running' if holder is None else f'running ({holder})'}"
    for name in chain.stage_names(config):
        if (record := manifest.stages.get(name)) is not None:
            rate = f"{record.rows / record.seconds:,.0f} rows/s" if record.seconds else ""
            yield f"{name:<44}{record.rows:>12,} rows {record.seconds:>8.1f} s  {rate}"
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


def _stage_rows(name: str, config: RunConfig, sizes: dict[str, int]) -> int | None:
    """The rows that a stage works on, where they are known before it is done."""
    stage = name.rpartition("/")[2]
    sizes = sizes | {"pool": sizes["pool"] // max(1, len(config.generations))}
    n = config.selection.budget.n
    if stage == "prepare":
        return sum(sizes.values())
    if stage in ("teacher", "second-teacher"):
        return sizes.get("adapt")
    if stage.startswith(("test-", "grade-test-")):
        return sizes.get("test")
    if stage.startswith("student-") and stage != "student-base":
        return n
    if stage == "pca" or stage.startswith("trust"):
        return sizes["source"]
    if stage == "select":
        return None if n is None else n * len(config.selection.arms)
    splits = [split for split in sizes if stage.endswith(f"-{split}")]
    return sizes[max(splits, key=len)] if splits else None


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
