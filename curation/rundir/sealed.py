"""The seal of a recorded stage: a list of its files with sizes and digests, to detect loss and damage.

A record names tables, models and exports. Before it is written, :func:`seal` waits until their files in the run
directory are on the disk, and lists them in ``.FOLDER.sums.json`` beside the stage's folder; the record holds
the digest of this list alone. :func:`find_lost` compares existence and sizes, and reads no data. ``curate verify``
reads everything.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

from curation.json_types import Json, JsonView
from curation.refs import iter_leaves, iter_table_refs
from curation.storage import durable
from curation.storage.digest import TAG, Content, compute_content, find_problem, take_content
from curation.storage.files import read_file
from curation.storage.inside import HERE, to_record
from curation.storage.json_files import parse_json
from curation.storage.paths import Place, Remote, StoredObject, find_files, list_files, write_atomically
from curation.tables.digests import DATA, list_contents
from curation.tables.versions import VERSIONS

SUMS = ".sums.json"
"""Suffix of the list's name, after the stage's folder. The list is not within it, where it would change digests."""


class Lost(NamedTuple):
    """The files of a stage that are missing or have another size."""

    paths: tuple[str, ...]
    broken: tuple[str, ...]
    """Tables that the stage fills row by row and that lost some files: the stage would take the rest as done."""

    @property
    def words(self) -> str:
        """The number of lost files and the first path, in words."""
        count = f"{len(self.paths):,} of its files are" if len(self.paths) > 1 else "1 of its files is"
        return f"{count} missing or cut off ({self.paths[0]}{', ...' if len(self.paths) > 1 else ''})"


def seal(home: Place, folder: str, outputs: object, others: Iterable[JsonView] = ()) -> Json:
    """List the files in a run directory that the outputs of a stage name, and sync them to the disk.

    Args:
        home: The run directory.
        folder: The stage's folder, relative to it.
        outputs: A JSON value that names the files.
        others: Seals of other stages: their files are not read again.

    Returns:
        The seal, by which :func:`load` finds and checks the list.

    Raises:
        TableError: a table that the outputs name cannot be read.
        OSError: a file cannot be read, or the list cannot be written.
    """
    named = to_record(outputs, home)
    tables = {ref: path for ref in iter_table_refs(named) if (path := _parse_path_below(ref.uri))}
    paths = {path for text in iter_leaves(named, str) if (path := _parse_path_below(text))} - {*tables.values()}
    files: dict[str, Content | None] = {name: None for path in sorted(paths) for name in _list_below(home, path)}
    for ref, path in tables.items():
        if contents := list_contents(replace(ref, uri=str(home / path))):
            durable.sync_names(home / path)
            files |= {f"{path}/{name}": content for name, content in contents.items()}
    known: dict[str, Content] = {}
    for other in others if any(not name.startswith(f"{folder}/") for name in files) else ():
        known |= load(home, other) or {}
    # what is in the folder may have been made again
    files |= {name: known[name] for name in files.keys() & known.keys() if not name.startswith(f"{folder}/")}
    new = [name for name, content in files.items() if content is None]
    durable.sync(home / name for name in new)
    now = find_files(home, new)
    files |= {name: take_content(home / name, now[name]) for name in new}
    text = json.dumps(files, indent=0)
    sums = list_of(home / folder)
    write_atomically(sums, text)
    durable.sync_names(sums.parent)
    return {"sums": str(PurePosixPath(folder).with_name(sums.name)), "content": compute_content(text.encode())}


def list_of(folder: Place) -> Place:
    """Return the place of the list of a stage's files, given the stage's folder."""
    return folder.with_name(f".{folder.name}{SUMS}")


def load(home: Place, seal: JsonView) -> dict[str, Content] | None:
    """Return the files that a seal lists, by path relative to the run directory; no files for an empty seal.

    Return None if the list is missing or differs from what was written.

    Raises:
        OSError: the list cannot be read.
    """
    if "sums" not in seal:
        return {}
    path = home / seal["sums"]
    try:
        text = path.read_bytes() if isinstance(path, Remote) else read_file(path)
        if compute_content(text) != Content(*seal["content"]):
            return None
        files = {name: Content(*content) for name, content in parse_json(text).items()}
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, TypeError, AttributeError):
        return None
    return files if all(_parse_path_below(f"{HERE}{name}") == name for name in files) else None


def find_lost(home: Place, seals: Mapping[str, JsonView]) -> dict[str, Lost]:
    """Return the stages with files that are missing or have another size; only files of table versions are read."""
    lists = {name: load(home, seal) for name, seal in seals.items()}
    names = {path for files in lists.values() for path in files or ()}
    there, found = find_files(home, names) if names else {}, dict[str, Lost]()
    for name, files in lists.items():
        lost = [path for path, then in (files or {}).items() if _is_lost(home / path, there.get(path), then)]
        tables = {path.partition(f"/{VERSIONS}/")[0] for path in files or () if f"/{VERSIONS}/" in path}
        broken = [
            table
            for table in sorted(tables)
            if table.startswith(f"{name}-")
            and any(path.startswith(f"{table}/") for path in lost)
            and any(list_files(home / table / part) for part in (DATA, VERSIONS))
        ]
        if lost or files is None:
            found[name] = Lost(tuple(lost or [seals[name]["sums"]]), tuple(broken))
    return found


def _is_lost(path: Place, now: StoredObject | None, then: Content) -> bool:
    """Return whether a file is missing or changed: by size, or for a table's version, which is small, by content."""
    if path.parent.name == VERSIONS and now is not None and TAG + now.tag != then.digest:
        return find_problem(path, now, then) is not None
    return now is None or now.size != then.size


def _list_below(home: Place, path: str) -> list[str]:
    """Return the path of a file itself, or the files at any depth in a folder; none for a table."""
    found = [path] if (home / path).is_file() else [f"{path}/{file.path}" for file in list_files(home / path)]
    return [] if any(name.startswith(f"{path}/{VERSIONS}/") for name in found) else found


def _parse_path_below(text: str) -> str | None:
    """Return a record's path relative to the run directory, or None if the text is no such path."""
    path = str(PurePosixPath(text.removeprefix(HERE)))
    is_below = text.startswith(HERE) and not path.startswith("/") and path != "." and ".." not in path.split("/")
    return path if is_below else None
