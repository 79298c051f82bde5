"""Compares files with the digests of when they were written, and tables with their rows."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from curation.errors import RunDirError, TableError
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import Listing, Sealed, SealedTable
from curation.storage.digest import Content
from curation.storage.paths import Place, Remote
from curation.tables import sums, torn
from curation.tables.contents import VERSIONS, VersionRows, files_of, id_files, rows_of
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
    """Stages that were recorded by a version that took no digests."""
    damage: list[Damage] = field(default_factory=list)

    def to_json(self) -> Json:
        """The result as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _FileToRead:
    """A file to read."""

    stage: str
    path: str
    content: Content


Redo = Callable[[str], str]


class Checker:
    """Checks one run directory."""

    def __init__(self, home: Place, found: Verified, redo: Redo) -> None:
        self._home, self._found, self._redo = home, found, redo
        self._listing = Listing(home)
        self._known: set[str] = set()
        self._rows: dict[tuple[str, str], VersionRows | None] = {}

    def check(self, stages: Mapping[str, Sealed], update: Update) -> None:
        """Read all files of the stages, and the ids of their tables."""
        asked = [item for name, sealed in stages.items() for item in self._asked(name, sealed)]
        tables = [(name, table) for name, sealed in stages.items() for table in sealed.tables]
        of_table: dict[str, int] = {}
        for _, table in tables:
            of_table[table.path] = max(of_table.get(table.path, 0), table.rows.num if table.rows else 0)
        total, num_bytes = sum(of_table.values()), max(1, sum(item.content.size for item in asked))
        workers = READ_AT_ONCE if isinstance(self._home, Remote) else os.cpu_count() or 1
        largest_first = sorted(asked, key=lambda item: -item.content.size)
        with ThreadPoolExecutor(workers) as pool:
            waiting = {pool.submit(self._problem, item): item for item in largest_first}
            for done in as_completed(waiting):
                item = waiting[done]
                self._found.files += 1
                self._found.bytes += item.content.size
                self._found.rows = int(total * self._found.bytes / num_bytes)
                if (problem := done.result()) is not None:
                    self._add(item.stage, item.path, problem)
                update(Standing(rows=self._found.rows, total=total))
        self._found.rows = total
        for name, table in tables:
            self._check_rows(name, table)
        self._check_newest(table.path for _, table in tables)

    def _asked(self, name: str, sealed: Sealed) -> Iterator[_FileToRead]:
        """The files of a stage that no earlier stage has."""
        for path, content in self._contents(name, sealed):
            if path not in self._known:
                self._known.add(path)
                yield _FileToRead(name, path, content)

    def _contents(self, name: str, sealed: Sealed) -> Iterator[tuple[str, Content]]:
        yield from sealed.files.items()
        for table in sealed.tables:
            manifest = _FileToRead(name, f"{table.path}/{table.manifest}", table.content)
            yield manifest.path, table.content
            if self._problem(manifest) is not None:
                continue  # what it says of files is not to be believed
            if sums.head(str(self._home / table.path), table.sums.size) != table.sums:
                self._add(name, f"{table.path}.sums", "the digests of the table's files changed")
            digests = sums.read(str(self._home / table.path))
            with suppress(TableError):  # its rows cannot be read then, which is told
                for file in files_of(self._ref(table)):
                    if (content := digests.get(file.name)) is not None:
                        yield f"{table.path}/{file.name}", content
                    else:
                        self._add(name, f"{table.path}/{file.name}", "its digest is missing")

    def _problem(self, item: _FileToRead) -> str | None:
        """The damage of a file."""
        size = self._listing.size(item.path)
        if size is None:
            return "is missing"
        if size != item.content.size:
            return f"has {size:,} bytes, and had {item.content.size:,} when it was written"
        try:
            return None if self._listing.has(item.path, item.content) else "its content changed"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"

    def _check_rows(self, name: str, table: SealedTable) -> None:
        """Compare the rows of a table, and their ids, with those that were recorded."""
        # reading the rows of a damaged file may end the process
        if table.rows is None or any(item.path.startswith(f"{table.path}/") for item in self._found.damage):
            return
        ref = self._ref(table)
        try:
            key = (table.path, id_files(ref))  # added columns leave the ids where they are
            if key not in self._rows:
                self._rows[key] = rows_of(ref)
            now = self._rows[key]
        except TableError as error:
            self._add(name, table.path, f"its rows cannot be read ({str(error).removeprefix(f'{ref.uri}: ')})")
            return
        if now is None or now.num != table.rows.num:
            num = 0 if now is None else now.num
            self._add(name, table.path, f"has {num:,} rows, and had {table.rows.num:,} when it was recorded")
        elif now.num_ids != now.num:
            self._add(name, table.path, f"repeats {now.num - now.num_ids:,} row ids")
        elif now.ids != table.rows.ids:
            self._add(name, table.path, "has other row ids than were committed")

    def _check_newest(self, recorded: Iterable[str]) -> None:
        """Look for versions that a power cut tore, of tables that are being filled."""
        if isinstance(self._home, Remote):
            return
        recorded = set(recorded)
        for versions in sorted(self._home.rglob(VERSIONS)):
            table = str(versions.parent.relative_to(self._home))
            for path in torn.find(versions.parent) if table not in recorded else ():
                self._found.damage.append(
                    Damage(
                        stage=None,
                        path=str(path.relative_to(self._home)),
                        problem="is a version that was cut off while it was written",
                        redo="`curate run` goes on from the version before it",
                    )
                )

    def _ref(self, table: SealedTable) -> TableRef:
        return TableRef(uri=str(self._home / table.path), version=table.version)

    def _add(self, stage: str, path: str, problem: str) -> None:
        damage = Damage(stage=stage, path=path, problem=problem, redo=self._redo(stage))
        if damage not in self._found.damage:
            self._found.damage.append(damage)


def verify_run(home: Place, redo: Redo, update: Update, found: Verified | None = None) -> Verified:
    """Read everything that the records of a run directory name."""
    begun = time.monotonic()
    found = Verified(target=str(home)) if found is None else found
    try:
        manifest = Manifest.load(home)
    except RunDirError as error:
        text = str(error).removeprefix(f"{home / 'manifest.json'}: ")
        found.damage.append(Damage(stage=None, path="manifest.json", problem=text, redo="restore it from a copy"))
        return found
    found.unsealed += [name for name, record in manifest.stages.items() if not record.sealed and not record.released]
    found.files += 1
    Checker(home, found, redo).check(
        {name: Sealed.from_json(record.sealed) for name, record in manifest.stages.items()}, update
    )
    found.seconds += time.monotonic() - begun
    return found
