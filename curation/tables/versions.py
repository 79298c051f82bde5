"""The versions of a table: their files and digests, setting aside those that a power cut tore, removing old ones.

A commit is done when its version is on the disk (:mod:`curation.storage.files`). If the power fails during a commit,
the version's file may lack its content, and then Lance opens no version at all. Such a torn version is set aside: the
version before it is complete, and the rows that only the torn version named are done again.
"""

import re
import time
from collections import deque
from collections.abc import Collection, Container, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import lance
from lance.fragment import FragmentMetadata

from curation.errors import REFUSALS, TableError, describe_lance_error
from curation.escaping import format_error, get_logger
from curation.json_types import Json
from curation.refs import TableRef
from curation.stopping import Stopped
from curation.storage.digest import QUICK, Content, compute_quick_content
from curation.storage.files import sync, sync_folder
from curation.storage.lease import Guard
from curation.storage.paths import Remote, to_place

VERSIONS, DATA = "_versions", "data"
_DIGEST = re.compile(r"(?:.*/)?([0-9a-f]{32})-[^/]+\.lance")
MAGIC = b"LANC"
"""Last bytes of each file that describes a version (https://lance.org/format/table/)."""
EVERY = 100
"""Number of commits between two removals of replaced versions; each removal reads all existing manifests."""
KEPT_SECONDS = 1800.0
"""Seconds to keep a replaced version: Lance gives a commit this long, so no pending one needs an older version."""

logger = get_logger(__name__)


def make_manifest_names(version: int) -> tuple[str, str]:
    """Return the two names that a version's manifest may have: newer tables count down from 2^64 - 1."""
    return f"{VERSIONS}/{(1 << 64) - 1 - version:020}.manifest", f"{VERSIONS}/{version}.manifest"


def parse_version(name: str) -> int | None:
    """Return the version that a file of this name describes; None if it is no manifest."""
    found = re.fullmatch(rf"{VERSIONS}/(\d+)\.manifest", name)
    if found is None:
        return None
    number = int(found[1])
    return number if number < 1 << 63 else (1 << 64) - 1 - number


def sync_version(dataset: lance.LanceDataset, *, after: int | None = None) -> None:
    """Wait until the files that describe the dataset's version, and those after ``after``, are on the disk."""
    home, first = to_place(dataset.uri), dataset.version if after is None else after + 1
    if not isinstance(home, Remote):
        names = (name for number in range(first, dataset.version + 1) for name in make_manifest_names(number))
        sync(path for name in names if (path := home / name).exists())


def list_version_files(ref: TableRef) -> dict[str, int | None]:
    """Return the size of each data file of a version, and None for files of deletions; ``TableError`` if damaged."""
    found: dict[str, int | None] = {}
    try:
        for fragment in lance.dataset(ref.uri, version=ref.version).get_fragments():
            found |= {f"{DATA}/{file.path}": file.file_size_bytes for file in fragment.metadata.files}
            if (deleted := fragment.deletion_file()) is not None:
                found[deleted] = None
    except (KeyboardInterrupt, SystemExit, Stopped):
        raise
    except BaseException as error:  # on a damaged file, Lance's Rust code may raise a BaseException
        reason = describe_lance_error(error) or f"it cannot be read ({type(error).__name__}: {format_error(error)})"
        raise TableError(f"{ref.uri}: version {ref.version}: {reason}") from error
    return found


def digest_in(name: str) -> str | None:
    """Return the digest in the name of a data file, as in :class:`curation.storage.digest.Content`, or None."""
    found = _DIGEST.fullmatch(name)
    return None if found is None else QUICK + found[1]


def list_contents(ref: TableRef) -> dict[str, Content | None]:
    """Return the contents of a version's files by path, None if unknown; empty if there is no such version."""
    home = to_place(ref.uri)
    manifest = next((name for name in make_manifest_names(ref.version) if (home / name).is_file()), None)
    if manifest is None:
        return {}
    found: dict[str, Content | None] = {manifest: None}
    for name, size in list_version_files(ref).items():
        digest = digest_in(name)
        found[name] = None if size is None or digest is None else Content(size, digest)
    return found


def rename_files(uri: str, fragments: Iterable[Json], old: Container[str] = ()) -> None:
    """Put digests into the names of newly written local data files and the fragments' descriptions, and sync the files.

    ``fragments``: descriptions by ``FragmentMetadata.to_json``, whose paths are changed. ``old``: data files that keep
    their names, since a version names them.
    """
    data = to_place(uri) / DATA
    if isinstance(data, Remote):
        return
    new = [file for fragment in fragments for file in fragment["files"] if file["path"] not in old]
    for file in new:
        written = data / file["path"]
        file["path"] = f"{compute_quick_content(written).digest.removeprefix(QUICK)}-{file['path']}"
        written.replace(data / file["path"])
    sync([*(data / file["path"] for file in new), data])


def find_changed(uri: str, fragments: Iterable[FragmentMetadata]) -> list[str]:
    """Return the names of the fragments' local data files whose content differs from the digest in the name."""
    home = to_place(uri)
    names = {f"{DATA}/{file.path}" for fragment in fragments for file in fragment.files if digest_in(file.path)}
    local = {name: home / name for name in sorted(names)}
    return [
        name
        for name, path in local.items()
        if not isinstance(path, Remote) and compute_quick_content(path).digest != digest_in(name)
    ]


def find_torn(table: Path, after: int | None = None) -> list[Path]:
    """Return the manifests, newest first, that were cut off or, after version ``after``, do not open."""

    def is_whole(path: Path, version: int) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - len(MAGIC)))
            ends_well = file.read() == MAGIC
        if ends_well and after is not None and version > after:
            try:
                list_version_files(TableRef(uri=str(table), version=version))
            except TableError:
                return False
        return ends_well

    return [path for version, path in _list_manifests(table) if not is_whole(path, version)]


def _list_manifests(table: Path) -> list[tuple[int, Path]]:
    """Return the versions of a local table, newest first, each with its manifest."""
    known = ((parse_version(f"{VERSIONS}/{path.name}"), path) for path in (table / VERSIONS).glob("*.manifest"))
    return sorted(((version, path) for version, path in known if version is not None), reverse=True)


def set_torn_aside(uri: str, after: int | None = None) -> None:
    """Rename the manifests that :func:`find_torn` finds in a local table, so that Lance opens a version before.

    Older ones are renamed, too: Lance reads all manifests where it lists or removes versions.
    """
    table = to_place(uri)
    if isinstance(table, Remote):
        return
    torn = find_torn(table, after)
    num_lost = sum(1 for _ in takewhile(lambda item: item[1] in torn, _list_manifests(table)))
    for path in torn:
        path.replace(path.with_name(f"{path.name}.torn"))
    if torn:
        sync_folder(table / VERSIONS)
    if num_lost:
        lost = "version" if num_lost == 1 else f"{num_lost} versions"
        reason = "was cut off or damaged; it continues from the one before, and does again what only that held"
        logger.warning("%s: its last %s %s", uri, lost, reason)


class Superseded:
    """The versions that one committer made of a table and replaced, which it removes while the pass still runs.

    Each version's manifest names all fragments, so n commits leave n * n / 2 names. No reference can name these
    versions, because a pass returns only its last one, and later ones hold the same rows. A reader that has one open
    for longer than ``KEPT_SECONDS`` may find small files merged and removed. The store refuses a commit made for a
    removed version.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._newest: int | None = None
        self._replaced: deque[tuple[int, float]] = deque()
        """Versions, the oldest first, with the time when each was replaced."""
        self._num_commits = 0

    def follow(self, dataset: lance.LanceDataset) -> None:
        """Note the committer's new version; every ``EVERY`` commits, remove old ones if the lease is still held."""
        now = time.monotonic()
        if self._newest is not None:
            self._replaced.append((self._newest, now))
        self._newest = dataset.version
        self._num_commits += 1
        if self._num_commits % EVERY == 0:
            old = []
            while self._replaced and self._replaced[0][1] <= now - KEPT_SECONDS:
                old.append(self._replaced.popleft()[0])
            self._guard()
            remove_versions(dataset, old)


def remove_older(ref: TableRef, pinned: Collection[int]) -> None:
    """Remove the versions of a table before ``ref`` that are not ``pinned``, with the files that only they name."""
    dataset = lance.dataset(ref.uri, version=ref.version)
    old = [number for item in dataset.versions() if (number := item["version"]) < ref.version]
    remove_versions(dataset, [number for number in old if number not in pinned])


def remove_versions(dataset: lance.LanceDataset, old: Sequence[int]) -> None:
    """Remove untagged versions of ``old``, with the files that only they name; warn if the store refuses."""
    try:
        if old:
            dataset.cleanup_old_versions(versions=list(old), error_if_tagged_old_versions=False)
    except REFUSALS as error:  # `curate clean` removes them later
        logger.warning(
            "%s: %d old versions were not removed (%s)", dataset.uri, len(old), describe_lance_error(error) or error
        )
