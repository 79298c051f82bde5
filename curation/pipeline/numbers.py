"""The stages that compute the numbers of a run's generations after all other stages, and the report's content."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace

from curation import report
from curation.activity import doing
from curation.errors import RunDirError, SourceError
from curation.json_types import Json, JsonView
from curation.pipeline.opened import OpenedRun
from curation.refs import TableRef
from curation.report import ReviewRecord
from curation.report.record import PossibleGroups
from curation.report.verdict import find_gravest, with_verdict
from curation.rundir.events import compute_spent
from curation.rundir.graph import Position, Stage
from curation.rundir.manifest import Manifest, StageRecord
from curation.rundir.run import Run
from curation.rundir.status import Status, iter_statuses
from curation.stages.handover import ComputeNumbers, read_numbers
from curation.stages.preview import find_possible_groups, preview
from curation.storage.inside import from_record
from curation.storage.json_files import read_json
from curation.storage.paths import Place, Remote
from curation.tables import io
from curation.telemetry.console import say

READ = {
    "domain": None,
    "evaluation": ("also", "decoding", "margin", "num_runs"),
    "report_rows": None,
    "splits": None,
    "student": ("learning_rate",),
    "teacher": ("backend", "decoding", "endpoint", "reader"),
}
"""Sections of the configuration on which the numbers depend, with the keys of each, or None for all keys."""
UNSHOWN = ("created", "command", "reproduce")
"""Parts of a report that say when and how it was made, which are not compared."""


def describe_numbers(opened: OpenedRun, record: report.RunRecord) -> list[Stage]:
    """Return the stages that compute the numbers of all generations of a record."""

    def find_groups() -> list[PossibleGroups]:
        files = opened.manifest.source_files
        try:
            return find_possible_groups(opened.config, preview(opened.config, files, opened.deals.taken(files)))
        except (SourceError, OSError):  # the files may be gone since
            return []

    config = {name: record.config.get(name) for name in READ}
    for name, keys in READ.items():
        if keys and isinstance(section := config[name], dict):
            config[name] = {key: section.get(key) for key in keys}
    branches = () if record.chain is None else record.chain.branches.values()
    return [
        ComputeNumbers(
            name=f"{generation.name}/numbers",
            at=Position(generation=generation.index, branch=generation.branch),
            config=config,
            seed=record.seed,
            domain=opened.config.domain_of("pool"),
            prepared=dict(record.prepared),
            prepare_counts=dict(record.prepare_counts),
            overlap=dict(record.overlap),
            record=replace(generation, analysis={}),
            find_groups=find_groups,
            made_by={
                "command": record.command,
                "versions": dict(record.versions),
                "stages": {name: [item.started, item.seconds] for name, item in opened.manifest.stages.items()},
            },
            num_rows=0,
        )
        for line in (record.generations, *branches)
        for generation in line
    ]


def list_missing_numbers(opened: OpenedRun, record: report.RunRecord) -> list[Status]:
    """Return the stages of :func:`describe_numbers` that are not done."""
    found = iter_statuses(describe_numbers(opened, record), opened.manifest)
    return [status for status in found if not status.is_settled]


def compute(opened: OpenedRun, record: report.RunRecord) -> report.RunRecord:
    """Compute the missing numbers in this process; return the record with the numbers of every generation."""
    stages = describe_numbers(opened, record)
    Run(opened.name, opened.manifest, room=dict).do(stages)
    found: dict[str, JsonView] = {}
    for stage in stages:
        at = stage.at
        assert at.generation is not None, "numbers are of a generation"
        content = read_numbers(opened.manifest, at.generation, at.branch)
        if content is None:
            path, home = opened.manifest.stages[stage.name].outputs["metrics"], opened.manifest.directory
            raise RunDirError(
                f"{path}: the numbers of the generation cannot be read as JSON; "
                f"`curate run {home} --redo {stage.name}` computes them again"
            )
        found[stage.name.partition("/")[0]] = content["numbers"]
    return replace(record, numbers=found)


def update_report(record: report.RunRecord, directory: Place) -> Json:
    """Return the report's content; write it to ``directory`` unless the report there has the same content."""
    with doing("collecting the report"):
        content = report.collect(record)
    page, numbers = directory / "report.html", directory / "report.json"
    try:
        known = read_json(numbers) if page.is_file() and numbers.is_file() else None
    except ValueError:
        known = None
    if isinstance(known, dict) and {**known, **dict.fromkeys(UNSHOWN)} == {**content, **dict.fromkeys(UNSHOWN)}:
        say(f"report: {page} is kept: nothing that it shows has changed (`curate report` writes it again)")
        return known
    with doing("writing the report"):
        page, _ = report.write(content, directory)
    say(f"report: {page}")
    return content


def read_numbers_after(manifest: Manifest, stage: StageRecord, generation: int) -> Json | None:
    """Return the content of a generation's ``metrics.json`` if it was computed after the work ``stage`` records.

    The ``numbers`` include the verdict on them. None if they were not computed since then.
    """
    found = read_numbers(manifest, generation)
    if found is None or found["made_by"]["stages"].get(stage.name) != [stage.started, stage.seconds]:
        return None
    judged = with_verdict(found["numbers"], read_reviews(manifest.directory), str(manifest.directory))
    return {**found, "numbers": judged}


def find_verdict(manifest: Manifest) -> Json | None:
    """Return the verdict on a run by the numbers of its generations, or None without numbers."""
    people = read_reviews(manifest.directory)
    found: list[Json | None] = []
    while (content := read_numbers(manifest, len(found))) is not None:
        found.append(with_verdict(content["numbers"], people, str(manifest.directory))["verdict"])
    return find_gravest(found)


def read_reviews(directory: Place) -> list[ReviewRecord]:
    """Return what ``curate review result`` wrote below ``review/``, by name; an object store has no reviews.

    A result that cannot be read is named on the terminal and left out.
    """
    found: list[ReviewRecord] = []
    for path in [] if isinstance(directory, Remote) else sorted((directory / "review").glob("*/review.json")):
        try:
            result = from_record(json.loads(path.read_text()), directory)
            keys = ("num_rows", "selected", "answers")
            review = ReviewRecord(
                name=result["review"],
                generation=result["generation"],
                arm=result["arm"],
                selection=TableRef.from_json(result["selection"]),
                strata=[{key: stratum[key] for key in keys} for stratum in result["strata"]],
                people=result["people"],
            )
            found.append(review)
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"report: {path} cannot be read ({error!r}) and is left out; `curate review result` writes it again")
    return found


MOST_EVENT_BYTES = 1 << 40
"""Maximum bytes of events to read, in effect all: a day of a run adds less than a megabyte."""


def collect_used(manifest: Manifest, names: Iterable[str]) -> dict[str, Json]:
    """Return the amounts that the named stages have used, by name, for finished stages with labels."""
    spent, done = compute_spent(manifest.events.last(MOST_EVENT_BYTES)), manifest.stages
    return {
        name: asdict(spent[name]) | {"bytes": io.get_table_size(TableRef.from_json(done[name].outputs["labels"]))}
        for name in names
        if name in spent and "labels" in done[name].outputs
    }
