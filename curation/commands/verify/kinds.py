"""Kinds of directories that can be verified: a run directory, the output of a filter, a trust package."""

import json
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from curation.commands.verify.check import Damage, Verified, verify_run
from curation.config.filter import WORK
from curation.errors import PackageError, RunDirError, TableError
from curation.filter.output import MANIFEST, load_content
from curation.filter.package import check_content, load
from curation.refs import TableRef
from curation.storage.cache import fetched
from curation.storage.digest import file_sha256, quick_content
from curation.storage.paths import Place, Remote, place, require_reachable
from curation.tables import sums
from curation.tables.contents import files_of, rows_of
from curation.telemetry.standing import Update


def verify(target: str, update: Update, allow_code: Collection[str] = ()) -> Verified:
    """Read all that is at a path or URL, and compare it with what was written.

    ``allow_code``: of a package, what it may name besides registered parts.

    Raises:
        RunDirError: it is none of the three.
    """
    home = place(target).absolute()
    require_reachable(home)
    if (home / MANIFEST).is_file():
        return _verify_filter(home, update)
    if (home / "package.json").is_file():
        return _verify_package(home, allow_code)
    if (home / "manifest.json").is_file():
        return verify_run(home, lambda stage: f"curate run {home} --redo {stage}", update)
    raise RunDirError(
        f"{target}: is not a run directory (no manifest.json), the output of `curate filter` (no {MANIFEST}) or a "
        "trust package (no package.json); give one of them"
    )


def _verify_filter(home: Place, update: Update) -> Verified:
    begun, again = time.monotonic(), "give `curate filter` another output, which labels again, or restore the file"
    found = Verified(target=str(home))
    try:
        content = load_content(home)
    except (RunDirError, UnicodeDecodeError) as error:
        found.damage.append(Damage(stage=None, path=MANIFEST, problem=str(error), redo=again))
        content = None
    for file in content["files"] if content is not None else ():
        path, problems = file["path"], list[str]()
        if path.endswith(".lance"):
            problems += _table_problems(home, path, int(file["version"]), int(file["rows"]), found)
        else:
            found.files += 1
            found.bytes += file["bytes"]
            if (problem := _file_problem(home / path, file["bytes"], file["sha256"])) is not None:
                problems.append(problem)
        found.damage += [Damage(stage=None, path=path, problem=problem, redo=again) for problem in problems]
    found.seconds = time.monotonic() - begun
    verify_run(home / WORK, lambda stage: again, update, found)
    return found


def _file_problem(path: Place, size: int, sha256: str) -> str | None:
    if not path.is_file():
        return "is missing"
    if isinstance(path, Remote):
        path = fetched(str(path.parent)) / path.name
    if (now := path.stat().st_size) != size:
        return f"has {now:,} bytes, and had {size:,} when it was written"
    return None if file_sha256(path) == sha256 else "its content changed"


def _table_problems(home: Place, path: str, version: int, num_rows: int, found: Verified) -> Iterator[str]:
    ref = TableRef(uri=str(home / path), version=version)
    digests = sums.read(ref.uri)
    problems = 0
    try:
        for file in files_of(ref):
            found.files += 1
            found.bytes += file.size or 0
            if isinstance(home, Remote) or file.name not in digests:
                continue
            local = Path(home / path / file.name)
            if not local.is_file() or quick_content(local) != digests[file.name]:
                problems += 1
                yield f"{file.name} {'changed' if local.is_file() else 'is missing'}"
        rows = None if problems else rows_of(ref)  # reading the rows of a damaged file may end the process
    except TableError as error:
        yield str(error)
        return
    if rows is not None and (rows.num, rows.num_ids) != (num_rows, num_rows):
        yield f"has {rows.num:,} rows with {rows.num_ids:,} row ids, and {MANIFEST} names {num_rows:,}"


def _verify_package(home: Place, allow_code: Collection[str]) -> Verified:
    begun, found = time.monotonic(), Verified(target=str(home))
    try:
        package = load(home, allow_code=allow_code)
        check_content(package)
        files = json.loads((fetched(package.uri) / "package.json").read_text())["files"].values()
        found.files, found.bytes = len(files) + 1, sum(file["bytes"] for file in files)
    except PackageError as error:
        text = str(error).removeprefix(f"{home}: ")
        found.damage.append(
            Damage(
                stage=None, path="package.json", problem=text, redo="copy it again, or `curate export-trust RUN_DIR`"
            )
        )
    found.seconds = time.monotonic() - begun
    return found
