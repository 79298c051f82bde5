"""Finished runs to combine, given by their directories."""

from collections.abc import Sequence
from typing import NamedTuple

from curation.commands.export.run import read_run
from curation.errors import CombineError, RunFailedError
from curation.json_types import Json
from curation.pipeline.running import get_finished_record
from curation.report.collect import collect
from curation.report.record import RunRecord
from curation.report.tested import Tests, describe_asking, read_tests
from curation.storage.paths import to_place


class Part(NamedTuple):
    """A run with its benchmark, its last generation's part of its report, the arms by name, and its tests' grades."""

    directory: str
    run: RunRecord
    benchmark: str
    generation: Json
    arms: dict[str, Json]
    tests: Tests


def read_parts(directories: Sequence[str]) -> list[Part]:
    """Return the parts of all runs; refuse fewer than two runs, a run twice, and unlike runs."""
    if len(directories) < 2:
        raise CombineError(f"--combine: takes two run directories or more, not {len(directories)}")
    seen: dict[str, str] = {}
    for directory in directories:
        resolved = str(to_place(directory).resolve())
        if resolved in seen:
            raise CombineError(f"--combine: {seen[resolved]} and {directory} are one directory; name each run once")
        seen[resolved] = directory
    runs = [(directory, load_run(directory)) for directory in directories]
    for other in runs[1:]:
        require_alike(runs[0], other)
    # A benchmark is the source of a run's test rows, or else of its pool, with the path where names are alike.
    origins = []
    for _, run in runs:
        splits = run.config["splits"]
        source = (splits.get("test") or splits["pool"])["from"]
        origins.append((source, str(run.config["sources"][source]["path"])))
    sources = [source for source, _ in set(origins)]
    parts = []
    for (directory, run), (source, path) in zip(runs, origins, strict=True):
        benchmark = source if sources.count(source) == 1 else f"{source} ({path})"
        last, tests = collect(run)["generations"][-1], read_tests(run.generations[-1].tests)
        parts.append(Part(directory, run, benchmark, last, {arm["name"]: arm for arm in last["arms"]}, tests))
    return parts


def require_alike(*pair: tuple[str, RunRecord]) -> None:
    """Refuse to average two runs of different domains, arms, numbers of generations or constraints on answers."""
    runs = [run for _, run in pair]
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
            where = f"{' and '.join(directory for directory, _ in pair)} cannot be combined"
            raise CombineError(f"{where}: their {what} are {mine} and {theirs}; {mend}")


def load_run(directory: str) -> RunRecord:
    """Load the finished run in a directory; a ``UserError`` if it is no run or unfinished."""
    try:
        return get_finished_record(read_run(to_place(directory))[0])
    except RunFailedError as unfinished:
        raise CombineError(f"{unfinished}; or leave the run out") from None
