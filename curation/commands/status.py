"""``curate status``: shows what a run or a filter has done and is doing."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from curation.commands.printing import describe_verdict, render_text
from curation.config import PricesConfig, RunConfig
from curation.config.external import PAID
from curation.config.filter import FilterConfig
from curation.errors import UserError
from curation.json_types import Json, JsonView
from curation.pipeline.chain import describe
from curation.pipeline.growth import find_deals
from curation.pipeline.numbers import find_verdict
from curation.rundir.events import parse_events
from curation.rundir.manifest import Manifest
from curation.rundir.status import Status, iter_statuses
from curation.storage import lease
from curation.storage.paths import Place
from curation.teachers.endpoint_paid import read_spending
from curation.telemetry.standing import Standing, Work

TAIL_BYTES = 64 * 1024
LIVE_FIELDS = frozenset({"rows_per_second", "seconds_left", "answered", "work"})
"""Fields of a progress event that say nothing once its driver has ended."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The state of a run or a filter, as recorded in its directory."""

    config: RunConfig | FilterConfig
    home: Place
    """The folder to show to the user."""
    manifest: Manifest
    states: Sequence[Status]
    unknown: str | None
    nothing_yet: str
    """The line to show if the directory has no record."""
    further: Sequence[str] = ()
    """Lines to show after those on the stages."""
    parts: JsonView = field(default_factory=dict)

    @cached_property
    def holder(self) -> lease.Holder | None:
        """The driver that works in the directory."""
        return lease.find_holder(self.manifest.directory)


def look(config: RunConfig) -> Shown:
    """Return the state of a run, from its directory alone."""
    manifest = Manifest.load(config.directory)
    manifest.require_current()
    states: list[Status] = []
    unknown = None
    if manifest.files.keys() >= config.sources.keys():
        try:
            chain = describe(config, manifest.source_files, find_deals(config, manifest))
            states = list(iter_statuses(chain.stages, manifest))
        except UserError as error:  # e.g. a missing model: the finished stages can still be shown
            unknown = str(error)
    nothing = f"{config.directory}: no run here yet; `curate run` starts it"
    known: Json = {"manifest": manifest, "states": states, "unknown": unknown}
    return Shown(config=config, home=config.directory, nothing_yet=nothing, **known)


def describe_status(shown: Shown) -> list[str]:
    """Return lines on what is done, what is running and whether a driver is alive."""
    manifest = shown.manifest
    if not manifest.identity:
        return [shown.nothing_yet]
    facts, states = make_status_json(shown), {status.stage.name: status for status in shown.states}
    recorded = [
        {
            "name": name,
            "rows": record.rows,
            "seconds": record.seconds,
            "stale": "" if name not in states or states[name].state == "done" else states[name].words,
        }
        for name in states or manifest.stages
        if (record := manifest.stages.get(name)) is not None
    ]

    def describe_progress(event: Json) -> str:
        words = {key: event[key] for key in ("unit", "note", "answered") if key in event}
        standing = Standing(rows=event["rows"], total=event["total"], **words)
        return standing.words(event.get("rows_per_second"), event.get("seconds_left"))

    text = render_text(
        "curation.commands:status.j2",
        facts,
        home=shown.home,
        holder=shown.holder,
        recorded=recorded,
        fields=json.dumps(
            {key: value for key, value in (facts["last_event"] or {}).items() if key not in ("time", "event")}
        ),
        verdict_lines=describe_verdict(facts) if shown.states else [],
        further=list(shown.further),
        age=lambda event: f"{max(0.0, time.time() - event['time']):.0f}",
        progress=describe_progress,
        work=lambda work: Work.from_json(work).words(),
    )
    return text.splitlines()


def make_status_json(shown: Shown) -> Json:
    """Return the status as a JSON object: the driver, every stage with its state, and the newest events."""
    manifest, stages = shown.manifest, []
    for status in shown.states:
        record = manifest.stages.get(status.stage.name)
        rows, seconds = (None, None) if record is None else (record.rows, record.seconds)
        about = {"name": status.stage.name, "state": status.state, "words": status.words}
        stages.append({**about, "rows": rows, "seconds": seconds})
    nodes, last, under_way = None, None, {}
    for event in parse_events(manifest.events.last(TAIL_BYTES)):
        if event["event"] == "nodes":
            nodes = event
            continue
        last = event
        if event["event"] == "progress":
            kept = event.items() if shown.holder else [item for item in event.items() if item[0] not in LIVE_FIELDS]
            under_way[event["stage"]] = dict(kept)
        elif event["event"] in ("started", "finished", "failed", "stopped"):
            under_way.pop(event["stage"], None)
    return {
        "directory": str(shown.home),
        "driver": None if shown.holder is None else asdict(shown.holder),
        "stages": stages,
        "unknown": shown.unknown,
        "verdict": find_verdict(manifest) if all(status.is_settled for status in shown.states) else None,
        "under_way": list(under_way.values()),
        "nodes": nodes,
        "last_event": last,
        **shown.parts,
        "endpoint": summarise_spending(shown.config),
    }


def summarise_spending(config: RunConfig | FilterConfig) -> Json | None:
    """Return the questions to a server and their cost, for unanswered ones its maximum; ``None`` without any."""
    endpoint, folder = config.teacher.endpoint, config.directory / PAID
    if endpoint is None or not folder.is_dir() or (spending := read_spending(str(folder))) is None:
        return None
    tokens = spending.tokens
    return {
        "questions": spending.questions,
        "under_way": len(spending.open),
        "prompt_tokens": tokens.prompt,
        "output_tokens": tokens.output,
        "money": spending.money(endpoint.price),
        "limit": endpoint.limit,
        "currency": (config.prices or PricesConfig()).currency,
        "odd": spending.findings,
    }
