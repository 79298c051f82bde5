"""Finds tables by the path or URL of a Lance table, or by a run directory and a stage of its manifest."""

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import lance

from curation.errors import RunDirError, TableError
from curation.refs import TableRef, iter_table_refs
from curation.rundir.manifest import Manifest, record_in
from curation.storage.paths import Place, Remote, to_place, walk
from curation.tables.versions import VERSIONS

NUM_LISTED, NUM_SEARCHED = 20, 2_000
"""Maximum numbers of tables that an error lists, and of folders that are searched for them."""
_FOLDER = re.compile(r"(.+)-[0-9a-f]{8}(?:\.\d+)?")
"""Name of a stage's directory: the stage and the fingerprint of its inputs (``Manifest.directory_of``)."""


@dataclass(frozen=True, kw_only=True)
class FoundTable:
    """A table of a run; ``version`` and ``rows`` are None if it is not on record or cannot be opened."""

    name: str
    """``STAGE``, or ``STAGE/TABLE`` for a stage that wrote several; the path for a table that no stage recorded."""
    uri: str
    version: int | None
    rows: int | None
    state: str
    """``done``; ``missing``: on record but gone; ``not on record``: from a running stage, or from older settings."""


def find(path: str, name: str | None = None) -> tuple[str, int | None]:
    """Return the URI of a table and its recorded version, None for the newest; raise a ``TableError`` without one."""
    table = Path(path)
    if name is None and ("://" in path or (table / VERSIONS).is_dir()):
        return path, None
    if name is None:
        folder = table if table.is_dir() else table.absolute().parent
        near_by = islice(iter_tables(folder, NUM_SEARCHED), NUM_LISTED + 1)
        there = f"tables under {folder}: {_format_names([os.path.relpath(str(other), folder) for other in near_by])}"
        what = "is not a Lance table (it has no _versions)" if table.exists() else "no such table"
        raise TableError(f"{path}: {what}; {there if folder.is_dir() else f'nor is there a folder {folder}'}")
    record = record_of(path)
    if record is None:
        raise TableError(f"{path}: is not a run directory (no manifest.json), so it has no stage {name!r}")
    recorded: dict[str, tuple[str, int | None]] = {
        known: (ref.uri, ref.version) for known, ref in _iter_recorded(Manifest.load(record))
    }
    unfinished = {known: uri for known, uri in _iter_unfinished(record) if known.rpartition("/")[0] not in recorded}
    refs = {known: (uri, None) for known, uri in unfinished.items()} | recorded
    if name in refs:
        return refs[name]
    below = [known for known in refs if known.startswith(f"{name}/")]
    if len(below) == 1 and below[0] in unfinished:
        return refs[below[0]]
    if below:
        raise TableError(f"{path}: stage {name} wrote several tables, name one: {', '.join(below)}")
    near = difflib.get_close_matches(name, refs, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {_format_names(list(refs))}"
    raise TableError(f"{path}: no table of the run is called {name!r}; {hint}")


def record_of(path: str) -> Place | None:
    """Return the folder with the record of a run directory or of a filter's output; None if the path is neither."""
    try:
        return record_in(to_place(path))
    except RunDirError:  # a URL that Lance supports and a run does not
        return None


def list_tables(directory: Place) -> list[FoundTable]:
    """Return the tables of a run: those on record in the order of the stages, then those that no stage recorded."""
    found, seen = [], set()
    for name, ref in _iter_recorded(Manifest.load(directory)):
        seen.add(str(to_place(ref.uri).resolve()))
        rows = _count(ref.uri, ref.version)
        state = "missing" if rows is None else "done"
        found.append(FoundTable(name=name, uri=ref.uri, version=ref.version, rows=rows, state=state))
    for path in sorted(iter_tables(directory)):
        if str(path.resolve()) not in seen:
            rows = _count(str(path), None)
            found.append(FoundTable(name=str(path), uri=str(path), version=None, rows=rows, state="not on record"))
    return found


def _iter_unfinished(directory: Place) -> Iterator[tuple[str, str]]:
    """Yield names (``STAGE/TABLE``) and URIs of the tables in stages' folders, from the newest folder of each stage."""
    newest: dict[str, tuple[float, str]] = {}
    for path in iter_tables(directory):
        inside = os.path.relpath(str(path.parent), str(directory))
        if (folder := _FOLDER.fullmatch(inside)) is None:
            continue
        name, versions = f"{folder[1]}/{path.stem}", path / VERSIONS
        if isinstance(versions, Remote):
            written = max((entry.modified for entry in versions.entries()), default=0.0)
        else:
            written = versions.stat().st_mtime
        if name not in newest or newest[name][0] < written:
            newest[name] = (written, str(path))
    yield from ((name, uri) for name, (_, uri) in newest.items())


def _iter_recorded(manifest: Manifest) -> Iterator[tuple[str, TableRef]]:
    for stage, record in manifest.stages.items():
        refs = list(iter_table_refs(record.outputs))
        for ref in refs:
            yield (stage if len(refs) == 1 else f"{stage}/{to_place(ref.uri).stem}"), ref


def _count(uri: str, version: int | None) -> int | None:
    try:
        return int(lance.dataset(uri, version=version).count_rows())
    except (ValueError, OSError):
        return None


def iter_tables(directory: Place, most: int | None = None) -> Iterator[Place]:
    """Yield the Lance tables under a directory, among at most ``most`` folders; does not descend into tables."""
    for root, folders, _ in islice(walk(directory), most):
        if VERSIONS in folders:
            yield to_place(root)
            folders.clear()
        folders.sort()


def _format_names(names: list[str]) -> str:
    more = ", ..." if len(names) > NUM_LISTED else ""
    return ", ".join(names[:NUM_LISTED]) + more if names else "none"
