"""Finished runs, given by their directories, and the pages that combine or compare them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from curation.commands.export.run import read_run
from curation.commands.printing import format_percent_interval
from curation.errors import CombineError, RunFailedError
from curation.json_types import Json
from curation.metrics import Estimate
from curation.pipeline.running import get_finished_record
from curation.report.collect import collect
from curation.report.headline import make_environment
from curation.report.html import write_page
from curation.report.record import RunRecord
from curation.report.tested import Tests, describe_asking, read_tests
from curation.storage.paths import Place, to_place


@dataclass(frozen=True, kw_only=True)
class Member:
    """A finished run, and its directory."""

    directory: str
    run: RunRecord


class Part(NamedTuple):
    """A generation of a run: the run's own report, its part of it, the part's arms by name, and the tests' grades."""

    member: Member
    benchmark: str
    report: Json
    generation: Json
    arms: dict[str, Json]
    tests: Tests


def read_parts(members: Sequence[Member], indices: Sequence[int]) -> list[list[Part]]:
    """Return the parts of all runs for each index of a generation, such as -1 for each run's last one."""
    benchmarks = list_benchmarks([member.run for member in members])
    found: list[list[Part]] = [[] for _ in indices]
    for member, benchmark in zip(members, benchmarks, strict=True):
        report = collect(member.run)
        for parts, index in zip(found, indices, strict=True):
            of = report["generations"][index]
            arms, tests = {arm["name"]: arm for arm in of["arms"]}, read_tests(member.run.generations[index].tests)
            parts.append(Part(member, benchmark, report, of, arms, tests))
    return found


def write_several(content: Json, name: str, output: str | None) -> tuple[Place, str]:
    """Write ``<name>.html`` and ``<name>.json`` into a folder; return the page's path, and the numbers as text."""
    folder = to_place(output or f"{name}-report")
    if folder.is_file():
        raise CombineError(f"--output: {folder} is a file; name a folder for {name}.html and {name}.json")
    page, _ = write_page(f"curation.extras.combine:{name}.html.j2", name, content, folder)
    texts = make_environment("curation.extras.combine")
    texts.filters["shown"] = format_percent_interval
    return page, texts.get_template(f"{name}.txt.j2").render(content=content).rstrip("\n")


def read_members(directories: Sequence[str], option: str) -> list[Member]:
    """Read the runs given to an option of ``curate report``: two or more finished ones, each named once."""
    if len(directories) < 2:
        raise CombineError(f"{option}: takes two run directories or more, not {len(directories)}")
    seen: dict[str, str] = {}
    for directory in directories:
        resolved = str(to_place(directory).resolve())
        if resolved in seen:
            raise CombineError(f"{option}: {seen[resolved]} and {directory} are one directory; name each run once")
        seen[resolved] = directory
    return [load_member(directory) for directory in directories]


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
        return Member(directory=directory, run=get_finished_record(read_run(to_place(directory))[0]))
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
