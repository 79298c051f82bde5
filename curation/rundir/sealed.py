"""The seal of a recorded stage: a list of its files with sizes and digests, so that loss and damage are seen.

A record names tables, models and exports. Before it is written, :func:`seal` waits until the files of those that lie in
the run directory are on the disk, and lists them in ``.FOLDER.sums.json`` beside the stage's folder; the record holds
the digest of this list alone. :func:`find_lost` compares existence and sizes, and reads no data. ``curate verify``
reads everything.
"""

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from curation.json_types import Json, JsonView
from curation.refs import iter_leaves, iter_table_refs
from curation.storage import durable
from curation.storage.digest import TAG, Content, compute_content, compute_quick_content, has_content
from curation.storage.files import read_file
from curation.storage.inside import HERE, to_record
from curation.storage.json_files import parse_json
from curation.storage.paths import Place, Remote, StoredObject, write_atomically
from curation.tables.digests import DATA, digest_in
from curation.tables.versions import VERSIONS, list_version_files, make_manifest_names

SUMS = ".sums.json"
"""Follows the name of the stage's folder. The list is hidden beside it: within, it would change a model's digest."""


class Lost(NamedTuple):
    """The files of a stage that are missing or have another size."""

    paths: tuple[str, ...]
    broken: tuple[str, ...]
    """Tables that the stage fills row by row and that are there in part: the stage would take their rows as done."""

    @property
    def words(self) -> str:
        """How many, and the first."""
        count = f"{len(self.paths):,} of its files are" if len(self.paths) > 1 else "1 of its files is"
        return f"{count} missing or cut off ({self.paths[0]}{', ...' if len(self.paths) > 1 else ''})"


class Listing:
    """The files below a directory: looked up one by one, or listed at once in an object store."""

    def __init__(self, home: Place, folders: Iterable[str] = ("",)) -> None:
        """List the ``folders`` if ``home`` is in an object store."""
        self._home = home
        self._objects: dict[str, StoredObject] = {}
        for folder in dict.fromkeys(folders) if isinstance(home, Remote) else ():
            below = home / folder if folder else home
            assert isinstance(below, Remote)
            self._objects |= {f"{folder}/{entry.path}".lstrip("/"): entry for entry in below.entries()}

    def size(self, path: str) -> int | None:
        """Return the bytes of a file; None where there is none."""
        if isinstance(self._home, Remote):
            return None if (entry := self._objects.get(path)) is None else entry.size
        try:
            found = os.stat(self._home / path)
        except (OSError, ValueError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def below(self, path: str) -> list[str]:
        """Return a file itself, or the files in a folder, however deep; but not those of a table."""
        if self.size(path) is not None:
            return [path]
        if isinstance(self._home, Remote):
            found = [name for name in self._objects if name.startswith(f"{path}/")]
        else:
            root = self._home / path
            found = [str(file.relative_to(self._home)) for file in sorted(root.rglob("*")) if file.is_file()]
        return [] if any(name.startswith(f"{path}/{VERSIONS}/") for name in found) else found

    def content(self, path: str) -> Content:
        """Return the content of a file: read, or the store's tag."""
        if isinstance(self._home, Remote):
            entry = self._objects[path]
            return Content(entry.size, f"{TAG}{entry.tag}")
        return compute_quick_content(Path(self._home / path))

    def problem(self, path: str, then: Content) -> str | None:
        """Return how a file differs from what it was, here or before it was copied; None where it does not."""
        size = self.size(path)
        if size is None:
            return "is missing"
        if size != then.size:
            return f"has {size:,} bytes, and had {then.size:,} when it was written"
        tag = self.content(path).digest if isinstance(self._home, Remote) else ""
        try:
            return None if has_content(self._home / path, then, tag) else "its content changed"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"


def seal(home: Place, folder: str, outputs: object, others: Iterable[JsonView] = ()) -> Json:
    """List the files in a run directory that the outputs of a stage name; they are on the disk afterwards.

    Args:
        home: The run directory.
        folder: The stage's folder, relative to it.
        outputs: A JSON value that names the files.
        others: Seals of other stages: their files are not read again.

    Returns:
        What :func:`load` finds the list by.

    Raises:
        TableError: a table that the outputs name cannot be read.
        OSError: a file cannot be read, or the list not be written.
    """
    named = to_record(outputs, home)
    refs = {ref: path for ref in iter_table_refs(named) if (path := _parse_path_below(ref.uri))}
    paths = {path for text in iter_leaves(named, str) if (path := _parse_path_below(text))} - {*refs.values()}
    listing = Listing(home, [*refs.values(), *(path.rpartition("/")[0] for path in paths)])
    files: dict[str, Content | None] = {name: None for path in sorted(paths) for name in listing.below(path)}
    for ref, path in refs.items():
        manifest = next((name for name in make_manifest_names(ref.version) if listing.size(f"{path}/{name}")), None)
        if manifest is None:
            continue
        durable.sync_names(home / path)
        for name, size in {manifest: None, **list_version_files(replace(ref, uri=str(home / path)))}.items():
            digest = digest_in(name)
            files[f"{path}/{name}"] = None if digest is None or size is None else Content(size, digest)
    known: dict[str, Content] = {}
    for other in others if any(not name.startswith(f"{folder}/") for name in files) else ():
        known |= load(home, other) or {}
    # what is in the folder may have been made again
    files |= {name: known[name] for name in files.keys() & known.keys() if not name.startswith(f"{folder}/")}
    durable.sync(home / name for name, content in files.items() if content is None)
    text = json.dumps({name: content or listing.content(name) for name, content in files.items()}, indent=0)
    sums = list_of(home / folder)
    write_atomically(sums, text)
    durable.sync_names(sums.parent)
    return {"sums": str(PurePosixPath(folder).with_name(sums.name)), "content": compute_content(text.encode())}


def list_of(folder: Place) -> Place:
    """Return where the list of a stage's files is, by the stage's folder."""
    return folder.with_name(f".{folder.name}{SUMS}")


def load(home: Place, seal: JsonView) -> dict[str, Content] | None:
    """Return the files that a seal lists, by path relative to the run directory; of an earlier format, none.

    None says that the list is missing, or not what was written.

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
    """Return the stages with files that are missing or have another size; of the files, only versions are read."""
    if not any("sums" in seal for seal in seals.values()):
        return {}
    listing, found = Listing(home), dict[str, Lost]()
    for name, seal in seals.items():
        files = load(home, seal)
        lost = [seal["sums"]] if files is None else [path for path in files if _is_lost(listing, path, files[path])]
        tables = {path.partition(f"/{VERSIONS}/")[0] for path in files or () if f"/{VERSIONS}/" in path}
        broken = [
            table
            for table in sorted(tables)
            if table.startswith(f"{name}-")
            and any(path.startswith(f"{table}/") for path in lost)
            and any(listing.below(f"{table}/{part}") for part in (DATA, VERSIONS))
        ]
        if lost:
            found[name] = Lost(tuple(lost), tuple(broken))
    return found


def _is_lost(listing: Listing, path: str, content: Content) -> bool:
    if listing.size(path) != content.size:
        return True
    # of a version, the content counts too: it is small, and without it nothing of its table is read
    return f"/{VERSIONS}/" in path and listing.content(path) != content and listing.problem(path, content) is not None


def _parse_path_below(text: str) -> str | None:
    """Return a path of a record relative to the directory of the record; None for another text."""
    path = str(PurePosixPath(text.removeprefix(HERE)))
    is_below = text.startswith(HERE) and not path.startswith("/") and path != "." and ".." not in path.split("/")
    return path if is_below else None
