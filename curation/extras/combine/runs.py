"""Finished runs, given by their directories, and the pages that combine or compare them."""

from collections.abc import Sequence

from curation.config.load import load_config
from curation.errors import CombineError
from curation.extras.combine import combined, compared
from curation.extras.combine.combined import Member
from curation.json_types import Json
from curation.pipeline.running import Unfinished, get_finished_record
from curation.report.html import write_page
from curation.report.tested import describe_asking
from curation.storage.paths import Place, to_place


def combine(directories: Sequence[str], output: str | None) -> tuple[Json, Place, str]:
    """Write ``combined.html`` and ``combined.json``; return the combined report, the page's path and a text table.

    Raises:
        CombineError: there are fewer than two directories, one is named twice, is not a run or is unfinished, or the
            runs differ as :func:`require_alike` forbids.
    """
    members = read(directories, "--combine")
    for other in members[1:]:
        require_alike(members[0], other)
    content = combined.combine(members)
    return content, _write(content, "combined", output), combined.format_combined(content)


def compare(directories: Sequence[str], output: str | None) -> tuple[Json, Place, str]:
    """Write ``compared.html`` and ``compared.json``; return the comparison, the page's path and a text table.

    Raises:
        CombineError: there are fewer than two directories, one is named twice, is no run or is unfinished.
    """
    content = compared.compare(read(directories, "--compare"))
    return content, _write(content, "compared", output), compared.format_compared(content)


def _write(content: Json, name: str, output: str | None) -> Place:
    folder = to_place(output or f"{name}-report")
    if folder.is_file():
        raise CombineError(f"--output: {folder} is a file; name a folder for {name}.html and {name}.json")
    page, _ = write_page(f"curation.extras.combine:{name}.html.j2", name, content, folder)
    return page


def read(directories: Sequence[str], option: str) -> list[Member]:
    """Read the runs that are given to an option of ``curate report``.

    Raises:
        CombineError: there are fewer than two directories, one is named twice, is not a run or is unfinished.
    """
    if len(directories) < 2:
        raise CombineError(f"{option}: takes two run directories or more, not {len(directories)}")
    seen: dict[str, str] = {}
    for directory in directories:
        resolved = str(_check_run_directory(directory).resolve())
        if resolved in seen:
            raise CombineError(f"{option}: {seen[resolved]} and {directory} are one directory; name each run once")
        seen[resolved] = directory
    return [load_member(directory) for directory in directories]


def require_alike(one: Member, other: Member) -> None:
    """Check that two runs can be averaged: same domain, arms, number of generations and constraint on answers.

    Raises:
        CombineError: the runs differ; the message names both directories and their values.
    """
    where = f"{one.directory} and {other.directory} cannot be combined"
    domains = one.run.domain.name, other.run.domain.name
    if domains[0] != domains[1]:
        raise CombineError(f"{where}: their domains are {domains[0]} and {domains[1]}; combine runs of one domain")
    numbers = len(one.run.generations), len(other.run.generations)
    if numbers[0] != numbers[1]:
        raise CombineError(f"{where}: they have {numbers[0]} and {numbers[1]} generations; combine runs with as many")
    for section, done in (("teacher", "labels"), ("evaluation", "tests")):
        asked = [describe_asking(member.run.config, section) for member in (one, other)]
        if asked[0] != asked[1]:
            raise CombineError(
                f"{where}: answers are asked for {asked[0]} in the first's {done}, and {asked[1]} in the second's; "
                f"combine runs with the same {section}.decoding.constrained"
            )
    for mine, theirs in zip(one.run.generations, other.run.generations, strict=True):
        arms = list(mine.selections), list(theirs.selections)
        if set(arms[0]) != set(arms[1]):
            only = [", ".join(name for name in arms[i] if name not in arms[1 - i]) or "none" for i in range(2)]
            dropped = {**mine.dropped, **theirs.dropped}
            if gone := [name for name in set(arms[0]) ^ set(arms[1]) if name in dropped]:
                raise CombineError(
                    f"{where}: the arm {gone[0]} dropped out of one of them ({dropped[gone[0]]}); leave that run out, "
                    "or the arm out of selection.arms in both"
                )
            raise CombineError(
                f"{where}: their arms differ (only the first has: {only[0]}; only the second has: {only[1]}); "
                "set the same selection.arms in both"
            )


def load_member(directory: str) -> Member:
    """Load the finished run in a directory.

    Raises:
        CombineError: the directory is not a run, or the run is unfinished.
    """
    config = load_config(_check_run_directory(directory) / "config.yaml")
    config = config.model_copy(update={"run_dir": directory})
    try:
        return Member(directory=directory, run=get_finished_record(config))
    except Unfinished as unfinished:
        raise CombineError(
            f"{directory}: is unfinished, stage {unfinished.stage} is missing ({unfinished.why}); "
            "finish it with `curate run`, or leave it out"
        ) from None


def _check_run_directory(directory: str) -> Place:
    found = to_place(directory)
    if not all((found / name).is_file() for name in ("manifest.json", "config.yaml")):
        raise CombineError(
            f"{directory}: is not a run directory (manifest.json or config.yaml is missing); "
            "name directories that `curate run` wrote"
        )
    return found
