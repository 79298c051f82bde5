"""Lance tables: fragments written in workers, appended by one committer, columns added as new versions.

The protocol (DESIGN: exactly once): a task writes its own fragment and emits one small row that names it, as its only
output; the driver alone commits, every few seconds. What is committed is done; a fragment that no commit names is an
orphan on disk that nobody reads. A restart asks :func:`committed_ids` what is missing.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from pyroaring import BitMap64

from curation.errors import CommitError
from curation.refs import TableRef

if TYPE_CHECKING:
    import ray.data

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 5
WRITTEN = pa.schema([("uri", pa.string()), ("fragments", pa.string()), ("row_ids", pa.binary()), ("note", pa.string())])
"""What a writing task emits, a row per table: the fragments' metadata as a JSON list, the row ids as int64 bytes, and,
where there is something to tell of the worker, a JSON object. The tables are committed in the order of the rows."""


def create(uri: str, schema: pa.Schema) -> TableRef:
    """An empty table with ``schema``, or the newest version of the one that is there.

    Raises:
        CommitError: the table that is there has other columns.
    """
    if not Path(uri).exists():
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        lance.write_dataset(schema.empty_table(), uri, mode="create")
    present = lance.dataset(uri).schema
    if present.names[: len(schema)] != schema.names:
        raise CommitError(f"{uri}: has the columns {present.names}, wanted {schema.names}; remove it or change the run")
    return latest(uri)


def latest(uri: str) -> TableRef:
    """The newest version of a table."""
    return TableRef(uri=uri, version=lance.dataset(uri).version)


def write(table: pa.Table, uri: str) -> TableRef:
    """A whole small table at once; replaces what a run that was cut off left there."""
    Path(uri).parent.mkdir(parents=True, exist_ok=True)
    mode = "overwrite" if Path(uri).exists() else "create"
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, schema=table.schema, mode=mode).version)


def open_table(ref: TableRef) -> lance.LanceDataset:
    """The Lance dataset at the pinned version."""
    return lance.dataset(ref.uri, version=ref.version)


def read(ref: TableRef, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
    """The rows that pass an SQL ``filter``, the named columns only, in the table's own order."""
    return open_table(ref).to_table(columns=None if columns is None else list(columns), filter=filter)


def count(ref: TableRef, filter: str | None = None) -> int:
    """The number of rows that pass an SQL ``filter``."""
    return int(open_table(ref).count_rows(filter=filter))


def take(ref: TableRef, row_ids_N: "npt.NDArray[np.int64]", columns: Sequence[str] | None = None) -> pa.Table:
    """The rows with the given ids, each once, in the order of ``row_ids_N``; the id column is scanned in batches.

    Raises:
        CommitError: an id is not in the table.
    """
    order_N = np.argsort(row_ids_N)
    sorted_N = row_ids_N[order_N]
    offsets_N = np.full(len(row_ids_N), -1, dtype=np.int64)
    start = 0
    for ids in _ids_in_order(ref):
        place = np.searchsorted(sorted_N, ids)
        place[place == len(sorted_N)] = 0
        hit = np.flatnonzero(sorted_N[place] == ids) if len(sorted_N) else np.empty(0, dtype=np.int64)
        offsets_N[order_N[place[hit]]] = start + hit
        start += len(ids)
    return _take(ref, row_ids_N, offsets_N, columns)


class Lookup:
    """:func:`take` again and again: holds 16 bytes a row of the table instead of scanning its ids each time."""

    def __init__(self, ref: TableRef) -> None:
        self._ref = ref
        ids_M = np.concatenate([np.empty(0, dtype=np.int64), *_ids_in_order(ref)])
        self._offsets_M = np.argsort(ids_M)
        self._sorted_M = ids_M[self._offsets_M]

    def take(self, row_ids_N: "npt.NDArray[np.int64]", columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with the given ids, in the order of ``row_ids_N`` (see :func:`take`)."""
        place_N = np.minimum(np.searchsorted(self._sorted_M, row_ids_N), len(self._sorted_M) - 1)
        offsets_N = np.full(len(row_ids_N), -1, dtype=np.int64)
        if len(self._sorted_M):
            offsets_N = np.where(self._sorted_M[place_N] == row_ids_N, self._offsets_M[place_N], -1)
        return _take(self._ref, row_ids_N, offsets_N, columns)


def _ids_in_order(ref: TableRef) -> "Iterator[npt.NDArray[np.int64]]":
    for batch in open_table(ref).scanner(columns=["row_id"], scan_in_order=True).to_batches():
        yield batch.column("row_id").to_numpy()


def _take(
    ref: TableRef,
    row_ids_N: "npt.NDArray[np.int64]",
    offsets_N: "npt.NDArray[np.int64]",
    columns: Sequence[str] | None,
) -> pa.Table:
    """The rows at the offsets; -1 marks an id that the table does not hold."""
    if (offsets_N < 0).any():
        missing = row_ids_N[offsets_N < 0]
        raise CommitError(f"{ref.uri}: {len(missing)} of {len(row_ids_N)} ids are not in it, e.g. {missing[0]}")
    return open_table(ref).take(offsets_N, columns=None if columns is None else list(columns))


def committed_ids(uri: str) -> BitMap64:
    """The row ids of the newest version; a bitmap, so that 10^7 dense ids take about a megabyte.

    Raises:
        CommitError: an id stands there twice.
    """
    ids, num_rows = BitMap64(), 0
    for batch in lance.dataset(uri).scanner(columns=["row_id"]).to_batches():
        ids |= _bitmap(batch.column("row_id").to_numpy())
        num_rows += batch.num_rows
    if len(ids) != num_rows:
        raise CommitError(f"{uri}: {num_rows} rows hold {len(ids)} different row ids; restore an older version")
    return ids


def write_fragment(table: pa.Table, uri: str, schema: pa.Schema, *, note: Mapping[str, Any] | None = None) -> pa.Table:
    """Write rows as fragments of a table without committing; the one row that names them (schema ``WRITTEN``)."""
    fragments = write_fragments(table, uri, schema=schema, mode="append")
    return pa.table(
        {
            "uri": [uri],
            "fragments": [json.dumps([fragment.to_json() for fragment in fragments])],
            "row_ids": [table["row_id"].to_numpy().tobytes()],
            "note": [json.dumps(note) if note else None],
        },
        schema=WRITTEN,
    )


class Committer:
    """Appends written fragments to one table; refuses row ids that are committed already."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.num_rows = 0
        """Rows committed by this committer."""
        self._done = committed_ids(uri)
        self._version = lance.dataset(uri).version
        self._fragments: list[FragmentMetadata] = []
        self._pending = BitMap64()

    def add(self, fragments: str, row_ids: bytes) -> None:
        """Queue one ``WRITTEN`` row; a replay of rows that are queued or committed is left out.

        Raises:
            CommitError: only some of the rows are known already, or an id stands twice in the fragment.
        """
        ids_N = np.frombuffer(row_ids, dtype=np.int64)
        ids = _bitmap(ids_N)
        known = len(ids & self._done) + len(ids & self._pending)
        if len(ids) != len(ids_N) or 0 < known < len(ids):
            raise CommitError(
                f"{self.uri}: a fragment of {len(ids_N)} rows repeats {known or len(ids_N) - len(ids)} ids"
            )
        if known:
            logger.warning("%s: %d rows were written twice by a replayed task; kept once", self.uri, known)
            return
        self._fragments += [FragmentMetadata.from_json(json.dumps(item)) for item in _decoded(fragments)]
        self._pending |= ids

    def flush(self) -> None:
        """Commit what is queued, as one new version.

        Raises:
            CommitError: the store refused the commit again and again.
        """
        if not self._pending:
            return
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                append = lance.LanceOperation.Append(self._fragments)
                self._version = lance.LanceDataset.commit(self.uri, append, read_version=self._version).version
                break
            except (OSError, RuntimeError) as error:
                # The outcome is unclear: the commit may have landed. Look before trying again.
                landed = len(committed_ids(self.uri) & self._pending)
                if landed == len(self._pending):
                    self._version = lance.dataset(self.uri).version
                    break
                if landed or attempt == COMMIT_ATTEMPTS:
                    raise CommitError(f"{self.uri}: commit failed {attempt} times, last: {error}") from error
                logger.warning("%s: commit %d failed (%s); trying again", self.uri, attempt, error)
                time.sleep(0.2 * 2**attempt)
        self.num_rows += len(self._pending)
        self._done |= self._pending
        self._pending, self._fragments = BitMap64(), []


def commit_stream(
    written: "ray.data.Dataset",
    *,
    seconds: float,
    on_commit: Callable[[Mapping[str, int]], None] | None = None,
    on_note: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, int]:
    """Consume ``WRITTEN`` rows as they come and commit every ``seconds``; the rows committed, by table.

    ``on_commit`` is told the rows committed so far, by table, after each round; ``on_note`` the notes as they come.
    """
    committers: dict[str, Committer] = {}
    last = time.monotonic()

    def commit() -> None:
        for committer in committers.values():
            committer.flush()
        if on_commit is not None:
            on_commit({uri: committer.num_rows for uri, committer in committers.items()})

    for row in _rows(written):
        if row["uri"] not in committers:
            committers[row["uri"]] = Committer(row["uri"])
        committers[row["uri"]].add(row["fragments"], row["row_ids"])
        if row["note"] is not None and on_note is not None:
            on_note(json.loads(row["note"]))
        if time.monotonic() - last > seconds:
            commit()
            last = time.monotonic()
    commit()
    return {uri: committer.num_rows for uri, committer in committers.items()}


def add_columns(
    ref: TableRef, columns: Sequence[str], added: pa.Schema, compute: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> TableRef:
    """A new version of a table with the columns ``added``, computed fragment by fragment in Ray tasks.

    ``compute`` maps a batch of ``columns`` to a batch of ``added``. Existing files stay untouched. Where versions newer
    than ``ref`` are there (columns added by a run that was cut off), the new one is built on ``ref`` all the same.
    """
    import ray.data

    dataset = open_table(ref)
    if lance.dataset(ref.uri).version != ref.version:
        dataset.restore()  # type: ignore[no-untyped-call]
        dataset = lance.dataset(ref.uri)
    version = dataset.version
    items: list[Any] = [{"fragment": fragment.fragment_id} for fragment in dataset.get_fragments()]
    if items:

        def merge(batch: Mapping[str, Any]) -> pa.Table:
            fragment = lance.dataset(ref.uri, version=version).get_fragment(int(batch["fragment"][0]))
            if fragment is None:
                raise CommitError(f"{ref.uri}: fragment {batch['fragment'][0]} is not in version {version}")
            metadata, _ = fragment.merge_columns(compute, columns=list(columns))
            return pa.table({"fragment": [json.dumps(metadata.to_json())]})

        merged = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(merge, batch_size=1)
        fragments = [FragmentMetadata.from_json(row["fragment"]) for row in _rows(merged)]
        fragments.sort(key=lambda fragment: int(fragment.id))
        schema = pa.schema([*dataset.schema, *added])
        operation = lance.LanceOperation.Merge(fragments, schema)
        version = lance.LanceDataset.commit(ref.uri, operation, read_version=version).version
    return TableRef(uri=ref.uri, version=version)


def _rows(dataset: "ray.data.Dataset") -> Iterator[dict[str, Any]]:
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    for batch in batches:
        yield from batch.to_pylist()


def _decoded(fragments: str) -> list[Any]:
    decoded: list[Any] = json.loads(fragments)
    return decoded


def _bitmap(ids_N: "npt.NDArray[np.int64]") -> BitMap64:
    return BitMap64(ids_N.astype(np.uint64))
