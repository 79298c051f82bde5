"""Lance tables: create, open, read and count them; take rows by id."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from curation.arrays import Int64s
from curation.errors import CommitError
from curation.refs import TableRef
from curation.storage.files import sync_names
from curation.storage.paths import PATIENCE_SECONDS, to_place
from curation.tables import schemas
from curation.tables.row_ids import SCAN_ROWS, iter_ordered_ids
from curation.tables.versions import set_torn_aside, sync_version

# Lance's default of ten attempts may be over in a second. Lance reads these in each process that uses a table.
os.environ.setdefault("OBJECT_STORE_CLIENT_MAX_RETRIES", "1000")
os.environ.setdefault("OBJECT_STORE_CLIENT_RETRY_TIMEOUT", str(PATIENCE_SECONDS))

FRAGMENT_ROWS = 1 << 18
"""Maximum number of rows of a fragment written from batches: Lance holds up to 8 MB per column until its end."""
FRAGMENT_BYTES = 1 << 28
MOST_RUNS = 1 << 20
"""Maximum number of runs that :func:`make_offset_finder` holds in memory, in 24 MiB."""


def create(uri: str, schema: pa.Schema) -> TableRef:
    """Return a table's newest complete version; create it if there is none. ``CommitError``: it has other columns."""
    to_place(uri).parent.mkdir(parents=True, exist_ok=True)
    set_torn_aside(uri)
    try:
        # Not write_dataset(mode="create"): of two concurrent calls, the slower one would empty the other's table.
        operation = lance.LanceOperation.Overwrite(schema, [])
        created = lance.LanceDataset.commit(uri, operation, read_version=0, max_retries=0)
    except OSError as refused:
        try:
            present = lance.dataset(uri).schema
        except ValueError:
            raise refused from None
    else:
        present = schema
        sync_version(created)
        sync_names(to_place(uri))
    if present.names[: len(schema)] != schema.names:
        raise CommitError(f"{uri}: has the columns {present.names}, wanted {schema.names}; remove it or change the run")
    return find_latest(uri)


def find_latest(uri: str) -> TableRef:
    """Return the newest version of a table."""
    return TableRef(uri=uri, version=lance.dataset(uri).version)


def write(table: pa.Table, uri: str) -> TableRef:
    """Write a small table at once; replace a table that an interrupted run left there."""
    to_place(uri).parent.mkdir(parents=True, exist_ok=True)
    mode = "overwrite" if to_place(uri).exists() else "create"
    written = lance.write_dataset(table, uri, schema=table.schema, mode=mode, max_rows_per_file=1 << 20)
    return TableRef(uri=uri, version=written.version)


def write_parts(parts: Iterable[pa.Table], schema: pa.Schema, uri: str) -> TableRef:
    """Write a table from parts as they arrive, ``FRAGMENT_ROWS`` rows or ``FRAGMENT_BYTES`` bytes at a time.

    A table that an interrupted run left there is replaced.
    """
    empty = write(schema.empty_table(), uri)
    fragments: list[FragmentMetadata] = []
    held: list[pa.Table] = []
    for part in chain(parts, [None]):
        held += [] if part is None else [part]
        num_rows, num_bytes = sum(table.num_rows for table in held), sum(table.nbytes for table in held)
        if num_rows >= (1 if part is None else FRAGMENT_ROWS) or num_bytes >= FRAGMENT_BYTES:
            fragments += write_fragments(pa.concat_tables(held), uri, schema=schema, mode="append")
            held = []
    if not fragments:
        return empty
    operation = lance.LanceOperation.Append(fragments)
    return TableRef(uri=uri, version=lance.LanceDataset.commit(uri, operation, read_version=empty.version).version)


def open_table(ref: TableRef) -> lance.LanceDataset:
    """Return the Lance dataset at the pinned version."""
    return lance.dataset(ref.uri, version=ref.version)


def read(ref: TableRef, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
    """Return the rows that match an SQL ``filter``, with only the named columns, in the table's own order."""
    return open_table(ref).to_table(columns=None if columns is None else list(columns), filter=filter)


def count(ref: TableRef, filter: str | None = None) -> int:
    """Return the number of rows that match an SQL ``filter``."""
    return int(open_table(ref).count_rows(filter=filter))


def get_table_size(ref: TableRef) -> int:
    """Return the stored size of the table's data files at this version, in bytes."""
    fragments = [fragment.metadata for fragment in open_table(ref).get_fragments()]
    return sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)


def make_answered_filter(ref: TableRef) -> str:
    """Return an SQL filter for the rows of a labels table that have an answer: without error, and not dropped."""
    has_gate = schemas.DROPPED in open_table(ref).schema.names
    return f"error IS NULL AND NOT {schemas.DROPPED}" if has_gate else "error IS NULL"


def count_dropped(ref: TableRef) -> int:
    """Return the number of rows of a labels table that a gate dropped; 0 if there was no gate."""
    table = open_table(ref)
    return int(table.count_rows(filter=schemas.DROPPED)) if schemas.DROPPED in table.schema.names else 0


def take(ref: TableRef, row_ids_N: Int64s, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows with the given ids, each once, in the order of ``row_ids_N``; scan the id column in batches.

    Raises:
        CommitError: an id is not in the table.
    """
    return take_offsets(ref, find_offsets(ref, row_ids_N), columns, row_ids_N)


def find_offsets(ref: TableRef, row_ids_N: Int64s) -> Int64s:
    """Return each distinct id's position, int64 [N], for :func:`take_offsets`; -1 if missing. The ids are scanned."""
    order_N = np.argsort(row_ids_N)
    sorted_N = row_ids_N[order_N]
    offsets_N = np.full(len(row_ids_N), -1, dtype=np.int64)
    start = 0
    for ids in iter_ordered_ids(open_table(ref), SCAN_ROWS):
        place = np.searchsorted(sorted_N, ids)
        place[place == len(sorted_N)] = 0
        hit = np.flatnonzero(sorted_N[place] == ids) if len(sorted_N) else np.empty(0, dtype=np.int64)
        offsets_N[order_N[place[hit]]] = start + hit
        start += len(ids)
    return offsets_N


class Lookup:
    """An index for repeated :func:`take`, which holds the table's runs of consecutive ids (24 bytes each)."""

    def __init__(self, ref: TableRef, runs: Iterable[Int64s] | None = None) -> None:
        """Build the index from ``runs`` (:func:`make_offset_finder`), or read them from the table if not given."""
        self._ref = ref
        parts = [np.zeros((3, 0), dtype=np.int64), *(_iter_runs(ref) if runs is None else runs)]
        start_R, offset_R, size_R = np.concatenate(parts, axis=1)
        order_R = np.argsort(start_R)
        self._start_R, self._offset_R, self._size_R = start_R[order_R], offset_R[order_R], size_R[order_R]

    def __len__(self) -> int:
        """Return the number of rows of the table."""
        return int(self._size_R.sum())

    @property
    def num_runs(self) -> int:
        """Number of runs of consecutive ids."""
        return len(self._start_R)

    def ascending(self, num_rows: int) -> Iterator[Int64s]:
        """Yield all ids of the table in ascending order, at most ``num_rows`` at a time."""
        end_R = np.cumsum(self._size_R)
        for begin in range(0, len(self), num_rows):
            place_N = np.arange(begin, min(begin + num_rows, len(self)))
            run_N = np.searchsorted(end_R, place_N, side="right")
            yield self._start_R[run_N] + place_N - (end_R - self._size_R)[run_N]

    def take(self, row_ids_N: Int64s, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with the given ids, in the order of ``row_ids_N`` (see :func:`take`)."""
        return take_offsets(self._ref, self.offsets(row_ids_N), columns, row_ids_N)

    def offsets(self, row_ids_N: Int64s) -> Int64s:
        """Return each id's position in the table, int64 [N], for :func:`take_offsets`; -1 for an id not in it."""
        if not self.num_runs:
            return np.full(len(row_ids_N), -1, dtype=np.int64)
        run_N = np.maximum(np.searchsorted(self._start_R, row_ids_N, side="right") - 1, 0)
        after_N = row_ids_N - self._start_R[run_N]
        return np.where((after_N >= 0) & (after_N < self._size_R[run_N]), self._offset_R[run_N] + after_N, -1)


def make_offset_finder(ref: TableRef) -> Callable[[Int64s], Int64s]:
    """Return :func:`find_offsets` for many calls: a :class:`Lookup`'s, or a scan per call if a lookup is too large."""
    num_runs, runs = 0, []
    for runs_3R in _iter_runs(ref):
        num_runs += runs_3R.shape[1]
        if num_runs > MOST_RUNS:
            return partial(find_offsets, ref)
        runs.append(runs_3R)
    return Lookup(ref, runs).offsets


def _iter_runs(ref: TableRef) -> Iterator[Int64s]:
    """Yield first id, position and size of each run of consecutive ids, int64 [3, R], in the table's order."""
    offset = 0
    for ids_N in iter_ordered_ids(open_table(ref), SCAN_ROWS):
        (first_R,) = np.nonzero(np.diff(ids_N, prepend=ids_N[0]) != 1)
        yield np.stack([ids_N[first_R], offset + first_R, np.diff(first_R, append=len(ids_N))])
        offset += len(ids_N)


def take_offsets(
    ref: TableRef, offsets_N: Int64s, columns: Sequence[str] | None = None, row_ids_N: Int64s | None = None
) -> pa.Table:
    """Return the rows at the positions from :func:`find_offsets`; ``CommitError`` names an id where it is -1."""
    if (offsets_N < 0).any():
        (missing_M,) = np.nonzero(offsets_N < 0)
        what = f"{len(missing_M)} of {len(offsets_N)} ids that were asked for are not in it"
        if row_ids_N is not None:
            what = f"{len(missing_M)} of {len(offsets_N)} ids are not in it, e.g. {row_ids_N[missing_M[0]]}"
        raise CommitError(f"{ref.uri}: {what}")
    return open_table(ref).take(offsets_N, columns=None if columns is None else list(columns))
