"""Compares the files of a run directory, a filter's output or a trust package with what was written."""

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from curation.config.filter import WORK
from curation.errors import PackageError, RunDirError, TableError
from curation.filter.output import MANIFEST, load_content
from curation.filter.package import check_content, load
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import Listing
from curation.rundir.sealed import load as load_seal
from curation.storage.cache import fetch_folder
from curation.storage.digest import SHA256, Content
from curation.storage.paths import Place, Remote, require_reachable, to_place
from curation.tables import io
from curation.tables.digests import digest_in
from curation.tables.versions import VERSIONS, find_torn, list_version_files
from curation.telemetry.standing import Standing, Update

READ_AT_ONCE = 8
"""Objects of a store that are read at once; of local files as many as there are CPUs."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is not as it was written."""

    stage: str | None
    path: str
    """Relative to what was verified."""
    problem: str
    redo: str
    """How to make it again."""


@dataclass(kw_only=True)
class Verified:
    """Result of a verification: what was read, and what is damaged."""

    target: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    unsealed: list[str] = field(default_factory=list)
    """Stages that were recorded without a list of their files."""
    damage: list[Damage] = field(default_factory=list)

    def to_json(self) -> Json:
        """Return the result as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Checker:
    """Reads what is in a directory, and notes in ``found`` what is damaged; ``redo`` says how to make a stage again."""

    home: Place
    found: Verified
    redo: Callable[[str | None], str]
    update: Update

    def add(self, stage: str | None, path: str, problem: str) -> None:
        """Note a damage."""
        self.found.damage.append(Damage(stage=stage, path=path, problem=problem, redo=self.redo(stage)))

    def check(self, files: Mapping[str, tuple[str | None, Content]], num_rows: int) -> None:
        """Read files, which are given with their stages and hold so many rows."""
        listing, num_bytes = Listing(self.home), sum(content.size for _, content in files.values())
        num_read = 0
        workers = READ_AT_ONCE if isinstance(self.home, Remote) else os.cpu_count() or 1
        largest_first = sorted(files, key=lambda path: -files[path][1].size)
        with ThreadPoolExecutor(workers) as pool:
            waiting = {pool.submit(listing.problem, path, files[path][1]): path for path in largest_first}
            for done in as_completed(waiting):
                stage, content = files[waiting[done]]
                if (problem := done.result()) is not None:
                    self.add(stage, waiting[done], problem)
                self.found.files += 1
                num_read += content.size
                self.update(Standing(rows=num_rows * num_read // max(1, num_bytes), total=num_rows))
        self.found.bytes += num_bytes
        self.found.rows += num_rows


def verify(target: str, update: Update, allow_code: Collection[str] = ()) -> Verified:
    """Read all that is at a path or URL, and compare it with what was written.

    ``allow_code``: of a package, what it may name besides registered parts.

    Raises:
        RunDirError: it is no run directory, no output of a filter and no trust package.
    """
    home, begun = to_place(target).absolute(), time.monotonic()
    require_reachable(home)
    found = Verified(target=str(home))
    if (home / MANIFEST).is_file():
        again = "give `curate filter` another output, which labels again, or restore the file"
        _check_filter(Checker(home, found, lambda _: again, update))
        _check_run(Checker(home / WORK, found, lambda _: again, update))
    elif (home / "package.json").is_file():
        again = "copy it again, or `curate export-trust RUN_DIR`"
        _check_package(Checker(home, found, lambda _: again, update), allow_code)
    elif (home / "manifest.json").is_file():
        _check_run(Checker(home, found, lambda stage: f"curate run {home} --redo {stage}", update))
    else:
        raise RunDirError(
            f"{target}: is not a run directory (no manifest.json), the output of `curate filter` (no {MANIFEST}) or a "
            "trust package (no package.json); give one of them"
        )
    found.seconds = time.monotonic() - begun
    return found


def _check_run(checker: Checker) -> None:
    """Read everything that the records of a run directory name."""
    home, found = checker.home, checker.found
    try:
        stages = Manifest.load(home).stages
    except RunDirError as error:
        text = str(error).removeprefix(f"{home / 'manifest.json'}: ")
        found.damage.append(Damage(stage=None, path="manifest.json", problem=text, redo="restore it from a copy"))
        return
    found.files += 1
    found.unsealed += [name for name, record in stages.items() if "sums" not in record.sealed and not record.released]
    files: dict[str, tuple[str | None, Content]] = {}
    for name, record in stages.items():
        sealed = load_seal(home, record.sealed)
        if sealed is None:
            checker.add(name, record.sealed["sums"], "the list of the stage's files is missing, or its content changed")
        found.files += "sums" in record.sealed
        files = {path: (name, content) for path, content in (sealed or {}).items()} | files
    checker.check(files, sum(record.rows for record in stages.values()))
    if isinstance(home, Remote):
        return
    for versions in sorted(home.rglob(VERSIONS)):
        for path in (os.path.relpath(path, home) for path in find_torn(versions.parent)):
            if path not in files:  # of a table that is being filled
                problem = "is a version that was cut off while it was written"
                redo = "`curate run` goes on from the version before it"
                found.damage.append(Damage(stage=None, path=path, problem=problem, redo=redo))


def _check_filter(checker: Checker) -> None:
    """Read the files that the manifest of a filter's output names."""
    home = checker.home
    try:
        content = load_content(home)
    except (RunDirError, UnicodeDecodeError) as error:
        checker.add(None, MANIFEST, str(error))
        return
    if content is None:
        return
    files: dict[str, tuple[str | None, Content]] = {}
    for file in content["files"]:
        path, num_rows = file["path"], int(file["rows"])
        if not path.endswith(".lance"):
            files[path] = None, Content(file["bytes"], SHA256 + file["sha256"])
            continue
        ref = TableRef(uri=str(home / path), version=int(file["version"]))
        try:
            named, now = list_version_files(ref), io.count(ref)
        except TableError as error:
            checker.add(None, path, str(error))
            continue
        if now != num_rows:
            checker.add(None, path, f"has {now:,} rows, and {MANIFEST} names {num_rows:,}")
        for name, size in named.items():
            if size is not None and (digest := digest_in(name)) is not None:
                files[f"{path}/{name}"] = None, Content(size, digest)
    checker.check(files, sum(file["rows"] for file in content["files"]))


def _check_package(checker: Checker, allow_code: Collection[str]) -> None:
    """Read a trust package as `curate filter` does, and compare its files with their digests."""
    home, found = checker.home, checker.found
    try:
        package = load(home, allow_code=allow_code)
        check_content(package)
        files = json.loads((Path(fetch_folder(package.uri)) / "package.json").read_text())["files"].values()
        found.files, found.bytes = len(files) + 1, sum(file["bytes"] for file in files)
    except PackageError as error:
        checker.add(None, "package.json", str(error).removeprefix(f"{home}: "))
