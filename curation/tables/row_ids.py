"""The row ids of a table as a cached bitmap, so that a resume can quickly find which of 10^8 rows a table holds.

The table is the only source of ids. ``<table>.ids`` beside it is a cache: the bitmap of some fragments of the table,
and their names, which Lance draws at random and never reuses. Only the other fragments of the table are read. If none
of its fragments is known, or there are more ids than rows (it was overwritten, or restored), all are read.
"""

import hashlib
import json
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping

import lance
import numpy as np
from lance.fragment import FragmentMetadata
from pyroaring import BitMap64

from curation.arrays import Bools, Int64s
from curation.errors import CommitError
from curation.escaping import get_logger
from curation.stopping import iter_checked
from curation.storage.paths import to_place, write_atomically

logger = get_logger(__name__)

SCAN_ROWS = 1 << 20
"""The number of ids read and processed at a time: 8 MiB."""
UNION_ROWS = 1 << 16
"""Minimum number of ids of a dense range for which a union of bitmaps is cheaper than adding each id."""
READ_AHEAD_BYTES = 32 << 20
SAVE_SECONDS = 30.0
"""Seconds between two writes of the cache, which is also written after a read that took longer than 1/30 of this."""


class RowIds:
    """The row ids of a growing table, with a cache beside the table."""

    def __init__(self, uri: str) -> None:
        self.ids = BitMap64()
        """Row ids of the version followed last; every second id of a range of 10^8 takes 12.5 MB."""
        self._path = to_place(f"{uri}.ids")
        self._names: set[str] = set()
        """Names (:func:`name_of`) of the fragments whose ids are loaded."""
        self._saved = time.monotonic()
        self._load()

    def follow(self, dataset: lance.LanceDataset) -> None:
        """Load the ids of this version; ``CommitError`` if one occurs twice in it."""
        begun = time.monotonic()
        fragments = {name_of(fragment.metadata): fragment for fragment in dataset.get_fragments()}
        if self._names.isdisjoint(fragments) or not self._add_unknown(dataset, fragments):
            self.ids, self._names = BitMap64(), set()
            if not self._add_unknown(dataset, fragments):
                raise CommitError(
                    f"{dataset.uri}: {dataset.count_rows()} rows hold {len(self.ids)} different row ids; restore an "
                    "older version"
                )
        if time.monotonic() - begun > SAVE_SECONDS / 30:
            self.save()

    def _add_unknown(self, dataset: lance.LanceDataset, fragments: Mapping[str, lance.LanceFragment]) -> bool:
        """Load the ids of unknown fragments; return whether there are as many ids as rows in the version.

        Known fragments that the version lacks were merged into others; if they were dropped, there are too many ids.
        """
        unknown = [fragment for name, fragment in fragments.items() if name not in self._names]
        new = BitMap64()
        for ids_N in scan(dataset, unknown, in_order=False) if unknown else ():
            include(new, ids_N)
        self.ids.update(new)
        self._names = set(fragments)
        return len(self.ids) == dataset.count_rows()

    def add(self, fragments: Iterable[FragmentMetadata], ids: BitMap64) -> None:
        """Add the ids that were just committed."""
        self._names.update(map(name_of, fragments))
        include_all(self.ids, ids)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def rebase(self, dataset: lance.LanceDataset) -> None:
        """Switch to a version that has the same rows in other fragments."""
        self._names = {name_of(fragment.metadata) for fragment in dataset.get_fragments()}

    def save(self) -> None:
        """Write the cache; if that fails, the next reader reads the table."""
        self._saved = time.monotonic()
        content = self.ids.serialize()
        head = {"fragments": sorted(self._names), "content": hashlib.sha256(content).hexdigest()}
        try:
            write_atomically(self._path, json.dumps(head).encode() + b"\n" + content)
        except OSError as error:
            logger.warning("%s: not written (%s)", self._path, error)

    def _load(self) -> None:
        try:
            text, _, content = self._path.read_bytes().partition(b"\n")
        except (FileNotFoundError, IsADirectoryError):
            return
        try:
            head = json.loads(text)
            if hashlib.sha256(content).hexdigest() != head["content"]:
                raise ValueError("its content is damaged")
            self._names, self.ids = set(map(str, head["fragments"])), BitMap64.deserialize(content)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s: ignored (%s)", self._path, error)


def iter_ordered_ids(dataset: lance.LanceDataset, num_rows: int) -> Iterator[Int64s]:
    """Yield the row ids in the table's own order, ``num_rows`` at a time; the last batch may be smaller."""
    parts: list[Int64s] = []
    held = 0
    for ids_N in scan(dataset, None, in_order=True):
        parts.append(ids_N)
        held += len(ids_N)
        if held >= num_rows:
            whole_N = np.concatenate(parts)
            stop = held - held % num_rows
            yield from (whole_N[start : start + num_rows] for start in range(0, stop, num_rows))
            parts, held = [whole_N[stop:]], held - stop
    if held:
        yield np.concatenate(parts)


def find_missing_ids(ids_N: Int64s, done: BitMap64) -> Bools:
    """Return which of the ids are not in ``done``, bool [N]; very cheap if it has all or none of a dense range."""
    if not len(ids_N):
        return np.zeros(0, dtype=np.bool_)
    low, high = int(ids_N.min()), int(ids_N.max())
    if low >= 0 and high - low < 8 * len(ids_N):
        known = BitMap64(range(low, high + 1)) & done
        if len(known) == high - low + 1:
            return np.zeros(len(ids_N), dtype=np.bool_)
    else:
        known = make_bitmap(ids_N) & done
    return np.isin(ids_N.astype(np.uint64), np.frombuffer(known.to_array(), dtype=np.uint64), invert=True)


def make_bitmap(ids_N: Int64s) -> BitMap64:
    """Return the ids as a bitmap, made of ranges if the ids are mostly consecutive, which is ten times faster."""
    unsigned_N = ids_N.astype(np.uint64)
    for ordered in (False, True):
        if ordered:
            unsigned_N.sort()
        last = np.append(np.flatnonzero(np.diff(unsigned_N) != 1), len(unsigned_N) - 1)
        if 16 * len(last) < len(unsigned_N) and ids_N.min() >= 0:  # for an id of -1, the range's end exceeds uint64
            found = BitMap64()
            for start, stop in zip(unsigned_N[np.append(0, last[:-1] + 1)], unsigned_N[last], strict=True):
                found.add_range(int(start), int(stop) + 1)
            return found
    return BitMap64(unsigned_N)


def include(known: BitMap64, ids_N: Int64s) -> None:
    """Add ids to a bitmap: many dense ids by a union, which walks through all of ``known``, others one by one."""
    if len(ids_N) >= UNION_ROWS and int(ids_N.max()) - int(ids_N.min()) < 8 * len(ids_N):
        known.update(make_bitmap(ids_N))
    else:
        known.update(array("Q", ids_N.astype(np.uint64).tobytes()))


def include_all(known: BitMap64, ids: BitMap64) -> None:
    """Add the ids of another bitmap, at a cost independent of ``known``; each id takes 8 bytes meanwhile."""
    known.update(ids.to_array())


def scan(
    dataset: lance.LanceDataset, fragments: list[lance.LanceFragment] | None, *, in_order: bool
) -> Iterator[Int64s]:
    """Yield the row ids of a table, or of some of its fragments, in batches."""
    scanner = dataset.scanner(
        columns=["row_id"],
        fragments=fragments,
        batch_size=SCAN_ROWS,
        io_buffer_size=READ_AHEAD_BYTES,
        scan_in_order=in_order,
    )
    for batch in iter_checked(scanner.to_batches()):
        yield batch.column("row_id").to_numpy()


def name_of(fragment: FragmentMetadata) -> str:
    """Return the identity of a fragment's rows: the file of its first columns, and its deletions."""
    return f"{fragment.files[0].path} {fragment.physical_rows} {fragment.deletion_file}"
