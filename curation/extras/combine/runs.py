"""Finished runs to combine, given by their directories."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from curation.commands.export.run import read_run
from curation.errors import CombineError, RunFailedError
from curation.json_types import Json
from curation.metrics import Estimate
from curation.pipeline.running import get_finished_record
from curation.report.collect import collect
from curation.report.record import RunRecord
from curation.report.tested import Tests, describe_asking, read_tests
from curation.storage.paths import to_place


class Member(NamedTuple):
    """A finished run, and its directory."""

    directory: str
    run: RunRecord


class Part(NamedTuple):
    """A run: its benchmark, its last generation's part of its report, the arms by name, and its tests' grades."""

    directory: str
    run: RunRecord
    benchmark: str
    generation: Json
    arms: dict[str, Json]
    tests: Tests


def read_parts(directories: Sequence[str]) -> list[Part]:
    """Return the parts of all runs; refuse fewer than two runs, one twice, and unlike ones."""
    if len(directories) < 2:
        raise CombineError(f"--combine: takes two run directories or more, not {len(directories)}")
    seen: dict[str, str] = {}
    for directory in directories:
        resolved = str(to_place(directory).resolve())
        if resolved in seen:
            raise CombineError(f"--combine: {seen[resolved]} and {directory} are one directory; name each run once")
        seen[resolved] = directory
    members = [load_member(directory) for directory in directories]
    for other in members[1:]:
        require_alike(members[0], other)
    benchmarks = list_benchmarks([member.run for member in members])
    found = []
    for (directory, run), benchmark in zip(members, benchmarks, strict=True):
        last, tests = collect(run)["generations"][-1], read_tests(run.generations[-1].tests)
        found.append(Part(directory, run, benchmark, last, {arm["name"]: arm for arm in last["arms"]}, tests))
    return found


def require_alike(one: Member, other: Member) -> None:
    """Refuse to average two runs of different domains, arms, numbers of generations or constraints on answers."""
    runs = (one.run, other.run)
    facts: list[tuple[str, Sequence[object], str]] = [
        ("domains", [run.domain.name for run in runs], "combine runs of one domain"),
        ("numbers of generations", [len(run.generations) for run in runs], "combine runs with as many"),
    ]
    for section, done in (("teacher", "labels"), ("evaluation", "tests")):
        asked = [describe_asking(run.config, section) for run in runs]
        facts.append((f"ways to ask for {done}", asked, f"set the same {section}.decoding.constrained in both"))
    for records in zip(*(run.generations for run in runs), strict=False):
        arms = [", ".join(sorted(record.selections)) for record in records]
        facts.append(("arms", arms, "set the same selection.arms in both, or leave a run out"))
    for what, (mine, theirs), mend in facts:
        if mine != theirs:
            where = f"{one.directory} and {other.directory} cannot be combined"
            raise CombineError(f"{where}: their {what} are {mine} and {theirs}; {mend}")


def load_member(directory: str) -> Member:
    """Load the finished run in a directory; a ``UserError`` if it is no run or unfinished."""
    try:
        return Member(directory, get_finished_record(read_run(to_place(directory))[0]))
    except RunFailedError as unfinished:
        raise CombineError(f"{unfinished}; or leave the run out") from None


def list_benchmarks(runs: Sequence[RunRecord]) -> list[str]:
    """Return each run's benchmark: the source of its test rows or else pool, with the path where names are alike."""
    found = []
    for run in runs:
        splits = run.config["splits"]
        name = (splits.get("test") or splits["pool"])["from"]
        found.append((name, str(run.config["sources"][name]["path"])))
    names = [name for name, _ in set(found)]
    return [name if names.count(name) == 1 else f"{name} ({path})" for name, path in found]


def to_estimate(value: Json | None) -> Estimate | None:
    """Return a number of a report as an estimate; missing bounds are NaN."""
    if value is None or value["value"] is None:
        return None
    low, high = (math.nan if value[bound] is None else float(value[bound]) for bound in ("low", "high"))
    return Estimate(value=float(value["value"]), low=low, high=high, n=int(value["n"]))
