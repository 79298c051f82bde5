"""The versions of a table: their files, their rows, those that a power cut tore, those that a pass has replaced.

A commit is done when its version is on the disk (:mod:`curation.storage.durable`). The version of a commit that was
under way when the power went may be left without its content, and Lance then opens none at all. It is set aside: the
version before it is whole, and the rows that only the torn one named are done again.
"""

import re
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

import lance

from curation.errors import REFUSALS, TableError, describe_lance_error
from curation.escaping import format_error, get_logger
from curation.refs import TableRef
from curation.stopping import Stopped
from curation.storage import durable
from curation.storage.files import sync_folder
from curation.storage.lease import Guard
from curation.storage.paths import Remote, to_place

VERSIONS = "_versions"
MAGIC = b"LANC"
"""The end of each file that describes a version (https://lance.org/format/table/)."""
EVERY = 100
"""Commits between two removals of replaced versions; each removal reads all existing manifests."""
KEPT_SECONDS = 1800.0
"""Time to keep a version after it was replaced. Lance gives a commit this long, so no pending commit needs an older
version."""

logger = get_logger(__name__)


def make_manifest_names(version: int) -> tuple[str, str]:
    """Return the names under which Lance keeps what a version consists of: newer tables count down."""
    return f"{VERSIONS}/{(1 << 64) - 1 - version:020}.manifest", f"{VERSIONS}/{version}.manifest"


def parse_version(name: str) -> int | None:
    """Return the version that a file of this name describes."""
    found = re.fullmatch(rf"{VERSIONS}/(\d+)\.manifest", name)
    if found is None:
        return None
    number = int(found[1])
    return number if number < 1 << 63 else (1 << 64) - 1 - number


def sync_version(dataset: lance.LanceDataset) -> None:
    """Wait until the file that describes the dataset's version is on the disk; see :mod:`curation.storage.durable`."""
    home = to_place(dataset.uri)
    if not isinstance(home, Remote):
        durable.sync(path for name in make_manifest_names(dataset.version) if (path := home / name).exists())


def list_version_files(ref: TableRef) -> dict[str, int | None]:
    """Return the bytes of the data files and lists of deleted rows that a version names, None where it does not say.

    Raises:
        TableError: the version cannot be read.
    """
    found: dict[str, int | None] = {}
    try:
        for fragment in lance.dataset(ref.uri, version=ref.version).get_fragments():
            found |= {f"data/{file.path}": file.file_size_bytes for file in fragment.metadata.files}
            if (deleted := fragment.deletion_file()) is not None:
                found[deleted] = None
    except (KeyboardInterrupt, SystemExit, Stopped):
        raise
    except BaseException as error:  # of a damaged file, Lance's Rust code may raise what is no Exception
        reason = describe_lance_error(error) or f"it cannot be read ({type(error).__name__}: {format_error(error)})"
        raise TableError(f"{ref.uri}: version {ref.version}: {reason}") from error
    return found


def find_torn(table: Path, after: int | None = None) -> list[Path]:
    """Return the files of the versions after the last whole one, the newest first: those that were cut off.

    ``after``: later ones that Lance cannot open, for whatever reason, count too.
    """
    known = {path: parse_version(f"{VERSIONS}/{path.name}") for path in (table / VERSIONS).glob("*.manifest")}
    torn: list[Path] = []
    for version, path in sorted(((n, path) for path, n in known.items() if n is not None), reverse=True):
        if _is_whole(path) and (after is None or version <= after or _can_open(table, version)):
            break
        torn.append(path)
    return torn


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - len(MAGIC)))
        return file.read() == MAGIC


def _can_open(table: Path, version: int) -> bool:
    try:
        list_version_files(TableRef(uri=str(table), version=version))
    except TableError:
        return False
    return True


def set_torn_aside(uri: str, after: int | None = None) -> None:
    """Rename the files that :func:`find_torn` finds at the end of a local table, so that Lance opens the one before."""
    table = to_place(uri)
    if isinstance(table, Remote):
        return
    torn = find_torn(table, after)
    for path in torn:
        path.replace(path.with_name(f"{path.name}.torn"))
    if torn:
        sync_folder(table / VERSIONS)
        logger.warning(
            "%s: its last %s was cut off or damaged; it goes on from the one before; what only that held is done again",
            uri,
            "version" if len(torn) == 1 else f"{len(torn)} versions",
        )


class Superseded:
    """The versions that one committer made of a table and replaced, which it removes while the pass still runs.

    Each version's manifest names all fragments of the table, so n commits leave n * n / 2 names. No reference can name
    these versions, because a pass returns only its last one. A pass only adds rows, so every later version holds theirs
    too; who has one open for longer than ``KEPT_SECONDS`` may find that its small files were merged and are gone. The
    store refuses a commit that was made for a removed version, however late.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._newest: int | None = None
        self._replaced: deque[tuple[int, float]] = deque()
        """Versions, the oldest first, with the time when each was replaced."""
        self._num_commits = 0

    def follow(self, dataset: lance.LanceDataset) -> None:
        """Note a new version of the committer's; remove old versions when a removal is due.

        Raises:
            CommitError: the lease on the run directory was lost.
        """
        now = time.monotonic()
        if self._newest is not None:
            self._replaced.append((self._newest, now))
        self._newest = dataset.version
        self._num_commits += 1
        if self._num_commits % EVERY == 0:
            self._remove(dataset, now - KEPT_SECONDS)

    def _remove(self, dataset: lance.LanceDataset, before: float) -> None:
        old = []
        while self._replaced and self._replaced[0][1] <= before:
            old.append(self._replaced.popleft()[0])
        self._guard()
        remove_versions(dataset, old)


def remove_older(ref: TableRef, pinned: Collection[int]) -> None:
    """Remove the versions of a table before ``ref`` that are not ``pinned``, with the files that only they name."""
    dataset = lance.dataset(ref.uri, version=ref.version)
    old = [number for item in dataset.versions() if (number := item["version"]) < ref.version]
    remove_versions(dataset, [number for number in old if number not in pinned])


def remove_versions(dataset: lance.LanceDataset, old: Sequence[int]) -> None:
    """Remove versions that no record names and that have no tag, and the files that only they name, if that succeeds.

    A commit that was made for one of them is refused, however late it comes.
    """
    try:
        if old:
            dataset.cleanup_old_versions(versions=list(old), error_if_tagged_old_versions=False)
    except REFUSALS as error:  # `curate clean` removes them later
        logger.warning(
            "%s: %d old versions were not removed (%s)", dataset.uri, len(old), describe_lance_error(error) or error
        )
