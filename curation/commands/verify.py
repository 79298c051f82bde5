"""Compares the files of a run directory, a filter's output or a trust package with their recorded contents."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from curation.config.filter import WORK
from curation.errors import PackageError, RunDirError
from curation.filter.output import MANIFEST, load_content
from curation.filter.package.checks import check_content
from curation.filter.package.folder import PACKAGE, load
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import load as load_seal
from curation.storage.digest import SHA256, Content, find_problem, is_digest_lost
from curation.storage.json_files import read_json
from curation.storage.paths import Place, Remote, find_files, require_reachable, to_place
from curation.tables.versions import VERSIONS, find_torn
from curation.telemetry.standing import Standing, Update

READ_AT_ONCE = 8
"""Number of objects of a store that are read in parallel; for local files, it is the number of CPUs."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A file or table that is not as it was written: its path in the verified folder, and how to remake it."""

    stage: str | None
    path: str
    problem: str
    redo: str


@dataclass(kw_only=True)
class Verified:
    """Result of a verification: what was read, and what is damaged."""

    target: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    only_sizes: int = 0
    """Number of files of which only the size could be compared: copies of objects that were uploaded in parts."""
    unsealed: list[str] = field(default_factory=list)
    """Stages that were recorded without a list of their files."""
    damage: list[Damage] = field(default_factory=list)


@dataclass(kw_only=True)
class Checker:
    """A check that lists files with their contents when written, then reads and compares all of them."""

    home: Place
    found: Verified
    redo: Callable[[str | None], str]
    """Function that returns how to remake the files of a stage or, for None, files that belong to no stage."""
    files: dict[str, tuple[str | None, Content]] = field(default_factory=dict)
    """Stage and recorded content by path; the first entry for a path is kept."""

    def add_damage(self, stage: str | None, path: str, problem: str, redo: str | None = None) -> None:
        """Record one damaged file or table."""
        self.found.damage.append(Damage(stage=stage, path=path, problem=problem, redo=redo or self.redo(stage)))

    def add_files(
        self, files: Mapping[str, Content | None], rows: int, stage: str | None = None, below: str = ""
    ) -> None:
        """Add files of the folder ``below``, which hold ``rows`` rows; files without content are not read."""
        new = {f"{below}{path}": (stage, content) for path, content in files.items() if content is not None}
        self.files = new | self.files
        self.found.rows += rows

    def read(self, update: Update) -> None:
        """Read the files, the largest first, and record those that are not as they were written."""
        found, there = self.found, find_files(self.home, self.files)
        total = sum(content.size for _, content in self.files.values())
        with ThreadPoolExecutor(READ_AT_ONCE if isinstance(self.home, Remote) else os.cpu_count() or 1) as pool:
            waiting = {}
            for path, (stage, content) in sorted(self.files.items(), key=lambda item: -item[1][1].size):
                found.only_sizes += is_digest_lost(there.get(path), content)
                reading = pool.submit(find_problem, self.home / path, there.get(path), content)
                waiting[reading] = path, stage, content.size
            for done in as_completed(waiting):
                path, stage, size = waiting[done]
                if (problem := done.result()) is not None:
                    self.add_damage(stage, path, problem)
                found.files += 1
                found.bytes += size
                update(Standing(rows=found.rows * found.bytes // max(1, total), total=found.rows))


def verify(target: str, update: Update, allow_code: Collection[str] = ()) -> Verified:
    """Read all recorded files at a path or URL, and compare them with what was written.

    ``allow_code`` lists the code that a package may name besides registered parts.

    Raises:
        RunDirError: the target is neither a run directory nor the output of a filter nor a trust package.
    """
    home, begun = to_place(target).absolute(), time.monotonic()
    require_reachable(home)
    found = Verified(target=str(home))
    if (home / MANIFEST).is_file():
        again = "restore the file, or give `curate filter` another output, for which it labels again"
        checker = Checker(home=home, found=found, redo=lambda _: again)
        try:
            content = load_content(home)
        except (RunDirError, UnicodeDecodeError) as error:
            checker.add_damage(None, MANIFEST, str(error))
        else:
            for file in [] if content is None else content["files"]:
                checker.add_files({file["path"]: Content(file["bytes"], SHA256 + file["sha256"])}, int(file["rows"]))
        _list_run(checker, f"{WORK}/")
    elif (home / PACKAGE).is_file():
        checker = Checker(home=home, found=found, redo=lambda _: "copy it again, or `curate export-trust RUN_DIR`")
        try:  # as `curate filter` reads it
            check_content(load(home, allow_code=allow_code))
        except PackageError as error:
            checker.add_damage(None, PACKAGE, str(error).removeprefix(f"{home}: "))
        else:
            found.files += 1
            listed = read_json(home / PACKAGE)["files"].items()
            checker.add_files({path: Content(file["bytes"], SHA256 + file["sha256"]) for path, file in listed}, 0)
    elif (home / "manifest.json").is_file():
        checker = Checker(home=home, found=found, redo=lambda stage: f"curate run {home} --redo {stage}")
        _list_run(checker)
    else:
        raise RunDirError(
            f"{target}: is not a run directory (no manifest.json), the output of `curate filter` (no {MANIFEST}) or a "
            f"trust package (no {PACKAGE}); give one of them"
        )
    checker.read(update)
    found.seconds = time.monotonic() - begun
    return found


def _list_run(checker: Checker, below: str = "") -> None:
    """Add all files that the records of a run directory name; the directory is ``below`` the verified folder."""
    home, found = checker.home / below.rstrip("/"), checker.found
    try:
        stages = Manifest.load(home).stages
    except RunDirError as error:
        text = str(error).removeprefix(f"{home / 'manifest.json'}: ")
        checker.add_damage(None, f"{below}manifest.json", text, "restore it from a copy")
        return
    found.files += 1
    found.unsealed += [name for name, record in stages.items() if "sums" not in record.sealed]
    for name, record in stages.items():
        if (files := load_seal(home, record.sealed)) is None:
            problem = "the list of the stage's files is missing, or its content changed"
            checker.add_damage(name, below + record.sealed["sums"], problem)
        found.files += "sums" in record.sealed
        checker.add_files(files or {}, record.rows, name, below)
    for versions in () if isinstance(home, Remote) else sorted(home.rglob(VERSIONS)):
        for path in (below + str(path.relative_to(str(home))) for path in find_torn(versions.parent)):
            if path not in checker.files:  # else it is of a finished table, and read like its other files
                problem = "is a version that was cut off while it was written"
                checker.add_damage(None, path, problem, "`curate run` goes on from the version before it")
