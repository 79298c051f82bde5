"""The seal of a recorded stage: a list of its files with sizes and digests, to detect loss and damage.

Before the record of a stage is written, :func:`seal` waits until the files in the run directory that it names are on
the disk, and lists them in ``.FOLDER.sums.json`` beside the stage's folder; the record holds the digest of this list
alone. :func:`find_lost` compares existence and sizes, and reads no data. ``curate verify`` reads everything.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

from curation.json_types import Json, JsonView
from curation.refs import iter_leaves, iter_table_refs
from curation.storage.digest import TAG, Content, compute_content, compute_quick_content, find_problem
from curation.storage.files import read_file, sync, sync_names
from curation.storage.inside import HERE, to_record
from curation.storage.json_files import parse_json
from curation.storage.paths import Place, Remote, find_files, list_files, write_atomically
from curation.tables.versions import DATA, VERSIONS, list_contents


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
    """List the files in a run directory that the outputs of a stage name, sync them, and return the seal of the list.

    ``folder``: the stage's, relative to ``home``. ``others``: seals of other stages, whose files are not read again.
    ``TableError``, ``OSError``: something cannot be read or written.
    """
    named = to_record(outputs, home)
    tables = {ref: path for ref in iter_table_refs(named) if (path := _parse_path_below(ref.uri))}
    paths = {path for text in iter_leaves(named, str) if (path := _parse_path_below(text))} - {*tables.values()}
    files: dict[str, Content | None] = {}
    for path in sorted(paths):
        below = [path] if (home / path).is_file() else [f"{path}/{file.path}" for file in list_files(home / path)]
        if not any(name.startswith(f"{path}/{VERSIONS}/") for name in below):
            files |= dict.fromkeys(below)
    for ref, path in tables.items():
        if contents := list_contents(replace(ref, uri=str(home / path))):
            sync_names(home / path)
            files |= {f"{path}/{name}": content for name, content in contents.items()}
    outside = {name for name in files if not name.startswith(f"{folder}/")}  # its own files may be new
    for other in others if outside else ():
        files |= {name: content for name, content in (load(home, other) or {}).items() if name in outside}
    new = [name for name, content in files.items() if content is None]
    sync(home / name for name in new)
    there = find_files(home, new)
    for name in new:
        now, at = there[name], home / name
        files[name] = Content(now.size, TAG + now.tag) if isinstance(at, Remote) else compute_quick_content(at)
    text = json.dumps(files, indent=0)
    sums = list_of(home / folder)
    write_atomically(sums, text)
    sync_names(sums.parent)
    return {"sums": str(PurePosixPath(folder).with_name(sums.name)), "content": compute_content(text.encode())}


def list_of(folder: Place) -> Place:
    """Return the place of the list of a stage's files: beside the stage's folder, whose digest it would change."""
    return folder.with_name(f".{folder.name}.sums.json")


def load(home: Place, seal: JsonView) -> dict[str, Content] | None:
    """Return the files that a seal lists, by path; none for an empty seal; None if the list is not as written."""
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
    """Return the stages with files that are missing or have another size; of a table's versions, other content."""
    lists = {name: load(home, seal) for name, seal in seals.items()}
    names = {path for files in lists.values() for path in files or ()}
    there, found = find_files(home, names) if names else {}, dict[str, Lost]()
    for name, files in lists.items():
        lost = []
        for path, then in (files or {}).items():
            now = there.get(path)
            is_cut = now is None or now.size != then.size
            if not is_cut and now is not None and PurePosixPath(path).parent.name == VERSIONS:  # a small file
                is_cut = TAG + now.tag != then.digest and find_problem(home / path, now, then) is not None
            if is_cut:
                lost.append(path)
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


def _parse_path_below(text: str) -> str | None:
    """Return a record's path relative to the run directory, or None if the text is no such path."""
    path = str(PurePosixPath(text.removeprefix(HERE)))
    is_below = text.startswith(HERE) and not path.startswith("/") and path != "." and ".." not in path.split("/")
    return path if is_below else None
