"""Contents of one version of a table: its files, and its rows with their ids."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import lance
import numpy as np
from pyroaring import BitMap64

from curation.errors import TableError, of_lance
from curation.escaping import message
from curation.hashing import hash64
from curation.refs import TableRef
from curation.stopping import Stopped
from curation.storage import durable
from curation.storage.paths import Remote, place
from curation.tables.row_ids import digest_of, include, name_of, scan

VERSIONS = "_versions"


class TableFile(NamedTuple):
    """A file of a table."""

    name: str
    size: int | None
    """Bytes of the file; None where the version does not say."""


class VersionRows(NamedTuple):
    """The rows of a version."""

    num: int
    num_ids: int
    """How many different ids they have."""
    ids: str
    """A digest of the ids, which does not depend on their order."""


@contextmanager
def readable(ref: TableRef) -> Iterator[None]:
    """Turn every error of Lance into ours; of a damaged file, its Rust code may raise what is no ``Exception``.

    Raises:
        TableError: what was read cannot be read.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, Stopped, TableError):
        raise
    except BaseException as error:
        reason = of_lance(error) or f"it cannot be read ({type(error).__name__}: {message(error)})"
        raise TableError(f"{ref.uri}: version {ref.version}: {reason}") from error


def manifest_names(version: int) -> tuple[str, str]:
    """The names under which Lance keeps what a version consists of: newer tables count down."""
    return f"{VERSIONS}/{(1 << 64) - 1 - version:020}.manifest", f"{VERSIONS}/{version}.manifest"


def version_of(name: str) -> int | None:
    """The version that a file of this name describes."""
    found = re.fullmatch(rf"{VERSIONS}/(\d+)\.manifest", name)
    if found is None:
        return None
    number = int(found[1])
    return number if number < 1 << 63 else (1 << 64) - 1 - number


def sync_version(dataset: lance.LanceDataset) -> None:
    """Wait until the file that describes the dataset's version is on the disk; see :mod:`curation.storage.durable`."""
    home = place(dataset.uri)
    if not isinstance(home, Remote):
        durable.sync(path for name in manifest_names(dataset.version) if (path := home / name).exists())


def files_of(ref: TableRef) -> list[TableFile]:
    """The data files and lists of deleted rows that a version names.

    Raises:
        TableError: the version cannot be read.
    """
    found: list[TableFile] = []
    with readable(ref):
        for fragment in lance.dataset(ref.uri, version=ref.version).get_fragments():
            metadata = fragment.metadata
            found += [TableFile(f"data/{file.path}", file.file_size_bytes) for file in metadata.files]
            if (deleted := fragment.deletion_file()) is not None:
                found.append(TableFile(deleted, None))
    return found


def id_files(ref: TableRef) -> str:
    """A digest of the names of the files that hold a version's row ids, and of its deletions.

    Raises:
        TableError: the version cannot be read.
    """
    with readable(ref):
        fragments = lance.dataset(ref.uri, version=ref.version).get_fragments()
        return digest_of(name_of(fragment.metadata) for fragment in fragments).hexdigest()


def rows_of(ref: TableRef) -> VersionRows | None:
    """The rows of a version, by reading its ids alone; None for a table without ids.

    Raises:
        TableError: the version cannot be read.
    """
    with readable(ref):
        dataset = lance.dataset(ref.uri, version=ref.version)
        if "row_id" not in dataset.schema.names:
            return None
        ids, num, total = BitMap64(), 0, 0
        for ids_N in scan(dataset, None, in_order=False):
            include(ids, ids_N)
            num += len(ids_N)
            total = (total + int(hash64(ids_N, 0).sum(dtype=np.uint64))) % (1 << 64)
        return VersionRows(num, len(ids), f"{total:016x}")
