"""The seal of a recorded stage: its files with sizes and digests, so that loss and damage are seen.

A record names tables, models and exports. When it is written, :func:`seal` lists the files of those that lie in the run
directory. The digests of a table's data files are in a file beside it (:mod:`curation.tables.sums`): the record holds
only the digest of that file and of the table's version, and stays small. :func:`find_lost` compares existence and sizes
with a listing; it reads no data. ``curate verify`` reads everything.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from curation.errors import TableError
from curation.json_types import Json, JsonView
from curation.refs import TableRef, leaves, table_refs
from curation.storage import durable
from curation.storage.digest import TAG, Content, has_content, quick_content
from curation.storage.inside import inside
from curation.storage.paths import Place, Remote, StoredObject, place
from curation.tables import sums
from curation.tables.contents import VersionRows, files_of, manifest_names, rows_of


@dataclass(frozen=True, kw_only=True)
class SealedTable:
    """A version of a table."""

    path: str
    """Relative to the run directory."""
    version: int
    manifest: str
    """The file that says what the version consists of, relative to the table."""
    content: Content
    """The content of that file."""
    sums: Content
    """Digest of the first lines of the file with the digests of the table's files."""
    rows: VersionRows | None

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """The inverse of ``asdict``."""
        rows = None if value["rows"] is None else VersionRows(*value["rows"])
        contents = {name: Content(*value[name]) for name in ("content", "sums")}
        return cls(**{**value, **contents, "rows": rows})


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """The files of a stage."""

    files: Mapping[str, Content] = field(default_factory=dict)
    """Files of models, trust functions and exports, by path relative to the run directory."""
    tables: tuple[SealedTable, ...] = ()

    def to_json(self) -> Json:
        """The seal as JSON."""
        value: Json = json.loads(json.dumps(asdict(self)))
        return value

    @property
    def paths(self) -> list[str]:
        """The paths that it names, relative to the run directory."""
        tables = [path for table in self.tables for path in (table.path, f"{table.path}/{table.manifest}")]
        return [*self.files, *tables]

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """The inverse of :meth:`to_json`."""
        files = {name: Content(*content) for name, content in value.get("files", {}).items()}
        return cls(files=files, tables=tuple(map(SealedTable.from_json, value.get("tables", ()))))


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
    """The files below a run directory: listed folder by folder, or at once in an object store."""

    def __init__(self, home: Place, folders: Iterable[str] = ("",)) -> None:
        """``folders``: what is listed in an object store."""
        self._home = home
        self._folders: dict[str, dict[str, int]] = {}
        self._objects: dict[str, StoredObject] = {}
        for folder in dict.fromkeys(folders) if isinstance(home, Remote) else ():
            below = home / folder if folder else home
            assert isinstance(below, Remote)
            self._objects |= {f"{folder}/{entry.path}".lstrip("/"): entry for entry in below.entries()}

    def size(self, path: str) -> int | None:
        """The bytes of a file; None where there is none."""
        if isinstance(self._home, Remote):
            return None if (entry := self._objects.get(path)) is None else entry.size
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            try:
                with os.scandir(self._home / folder) as entries:
                    self._folders[folder] = {item.name: item.stat().st_size for item in entries if item.is_file()}
            except OSError:
                self._folders[folder] = {}
        return self._folders[folder].get(name)

    def below(self, path: str) -> list[str]:
        """A file itself, or the files in a folder, however deep; but not those of a table."""
        if self.size(path) is not None:
            return [path]
        if isinstance(self._home, Remote):
            found = [name for name in self._objects if name.startswith(f"{path}/")]
        else:
            root = self._home / path
            found = [str(file.relative_to(self._home)) for file in sorted(root.rglob("*")) if file.is_file()]
        return [] if any(name.startswith(f"{path}/_versions/") for name in found) else found

    def content(self, path: str) -> Content:
        """The content of a file: read, or the store's tag."""
        if isinstance(self._home, Remote):
            entry = self._objects[path]
            return Content(entry.size, f"{TAG}{entry.tag}")
        return quick_content(Path(self._home / path))

    def has(self, path: str, then: Content) -> bool:
        """Return whether a file of that size has a content still, which may be that of a file on a disk or in a store.

        Raises:
            OSError: the file cannot be read.
        """
        tag = self.content(path).digest if isinstance(self._home, Remote) else ""
        return self.size(path) == then.size and has_content(self._home / path, then, tag)


def seal(home: Place, outputs: object, known: Mapping[str, Content]) -> Sealed:
    """The files in a run directory that outputs name; those that another record holds (``known``) are not read again.

    They are on the disk afterwards: a record may name them.

    Raises:
        TableError: a table that the outputs name cannot be read.
    """
    tables = {path: ref for ref in table_refs(outputs) if (path := _relative(home, ref.uri)) is not None}
    paths = {path for text in leaves(outputs, str) if (path := _relative(home, text)) is not None} - tables.keys()
    listing = Listing(home, [*tables, *(path.rpartition("/")[0] for path in paths)])
    named = [name for path in sorted(paths) for name in listing.below(path)]
    durable.sync(home / name for name in named if name not in known)
    files = {name: known.get(name) or listing.content(name) for name in named}
    refs = dict.fromkeys(ref for ref in table_refs(outputs) if _relative(home, ref.uri) is not None)
    made = [_seal_table(str(_relative(home, ref.uri)), ref, listing) for ref in refs]
    return Sealed(files=files, tables=tuple(table for table in made if table is not None))


def find_lost(home: Place, stages: Mapping[str, Sealed]) -> dict[str, Lost]:
    """The stages with files that are missing or have another size; reads one listing, and the versions of tables."""
    if not any(sealed.files or sealed.tables for sealed in stages.values()):
        return {}
    listing, found = Listing(home), dict[str, Lost]()
    for name, sealed in stages.items():
        lost = [path for path, content in sealed.files.items() if listing.size(path) != content.size]
        broken = []
        for table in sealed.tables:
            if gone := _lost_of(home, table, listing):
                lost += gone
                if table.path.startswith(f"{name}-") and _is_there(table, listing):
                    broken.append(table.path)
        if lost:
            found[name] = Lost(tuple(lost), tuple(broken))
    return found


def clear_damaged(home: Place, name: str, sealed: Sealed) -> None:
    """Remove damaged versions that a stage added to tables of other stages: a new version cannot follow them."""
    for table in sealed.tables:
        if table.path.startswith(f"{name}-"):
            continue  # its own table is made anew elsewhere
        path = inside(home, f"{table.path}/{table.manifest}", f"the record of stage {name} in manifest.json")
        if not isinstance(path, Remote) and path.is_dir():
            shutil.rmtree(path)
        elif path.is_file() and not Listing(home, [table.path]).has(f"{table.path}/{table.manifest}", table.content):
            path.unlink()


def _lost_of(home: Place, table: SealedTable, listing: Listing) -> list[str]:
    manifest = f"{table.path}/{table.manifest}"
    if listing.size(manifest) != table.content.size:
        return [manifest]
    try:
        files = files_of(TableRef(uri=str(home / table.path), version=table.version))
    except TableError:  # as long as it was, and damaged
        return [manifest]
    sizes = {f"{table.path}/{file.name}": file.size for file in files}
    return [path for path, size in sizes.items() if (here := listing.size(path)) is None or here != (size or here)]


def _is_there(table: SealedTable, listing: Listing) -> bool:
    """Whether anything is left of a table's rows or versions."""
    folders = [f"{table.path}/data", f"{table.path}/_versions"]
    return any(name.endswith((".lance", ".manifest")) for folder in folders for name in listing.below(folder))


def _seal_table(path: str, ref: TableRef, listing: Listing) -> SealedTable | None:
    """The seal of a table; None where it does not exist."""
    manifest = next((name for name in manifest_names(ref.version) if listing.size(f"{path}/{name}") is not None), None)
    if manifest is None:
        return None
    known = sums.read(ref.uri)
    new = [file.name for file in files_of(ref) if file.name not in known]
    durable.sync(place(ref.uri) / name for name in [*new, manifest])
    durable.sync_names(place(ref.uri))
    sums.append(ref.uri, {name: listing.content(f"{path}/{name}") for name in new})
    return SealedTable(
        path=path,
        version=ref.version,
        manifest=manifest,
        content=listing.content(f"{path}/{manifest}"),
        sums=sums.head(ref.uri),
        rows=rows_of(ref),
    )


def _relative(home: Place, text: str) -> str | None:
    """A path or URL relative to the run directory; None for one that does not lie in it."""
    if isinstance(home, Remote) or "://" in text:
        root, full = str(home), text
    else:
        if not text.startswith("/") or "\0" in text:
            return None
        root, full = os.path.abspath(home), os.path.normpath(text)
    inside = full.removeprefix(f"{root}/")
    return None if inside == full else str(place(inside))
