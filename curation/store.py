"""Lance tables: fragments written in workers, appended by one committer, columns added as new versions.

The protocol (DESIGN: exactly once): a task writes its own fragment and emits one small row a table that names it, as
its only output; the driver alone commits, every few seconds. What is committed is done; a fragment that no commit names
is an orphan on disk that nobody reads. A restart asks what is committed (:attr:`Committer.done`) and does the rest.

A commit is conditional: it lands on the version whose ids the committer knows or not at all. Lance rebases an append
over whatever came in between, another driver's append of the same rows too, and lets a commit that timed out land later
beside its own repetition. So a commit is not an append: it is an update that names a fragment of the version it was
made for (the table's first, unchanged), and two of those conflict.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from pyroaring import BitMap64

from curation import lease
from curation.errors import REFUSALS, CommitError
from curation.places import PATIENCE_SECONDS, place
from curation.refs import TableRef
from curation.row_ids import SCAN_ROWS, RowIds, bitmap, in_order
from curation.superseded import Superseded

if TYPE_CHECKING:
    import ray.data

logger = logging.getLogger(__name__)

# Lance's own ten attempts may be over in a second; read by Lance in whatever process writes or reads a table.
os.environ.setdefault("OBJECT_STORE_CLIENT_MAX_RETRIES", "1000")
os.environ.setdefault("OBJECT_STORE_CLIENT_RETRY_TIMEOUT", str(PATIENCE_SECONDS))

COMMIT_ATTEMPTS = 8
RETRY_SECONDS = 0.4
"""Before the second attempt of a commit; doubled for each further one, 51 s in all: a store may be down for a while."""
COMMIT_SHARE = 0.1
"""Of the time, at most, that commits take: a commit names all fragments, so it takes the longer the more there are."""
MOST_SECONDS = 30.0
"""To which that may put off a commit: what a kill costs at most."""
WRITTEN = pa.schema(
    [
        ("uri", pa.string()),
        ("fragments", pa.string()),
        ("row_ids", pa.binary()),
        ("time", pa.float64()),
        ("note", pa.string()),
    ]
)
"""What a writing task emits, a row per table: the fragments' metadata as a JSON list, the row ids as int64 bytes, when
they were written (seconds since 1970) and, where there is something to tell of the worker, a JSON object."""


class Written(NamedTuple):
    """What is told of a ``WRITTEN`` row as it arrives."""

    uri: str
    num_rows: int
    time: float
    note: dict[str, Any]


class Round(NamedTuple):
    """What is told after a round of commits: the rows committed so far, by table, and the seconds of this round."""

    rows: Mapping[str, int]
    seconds: float


def create(uri: str, schema: pa.Schema) -> TableRef:
    """An empty table with ``schema``, or the newest version of the one that is there.

    Raises:
        CommitError: the table that is there has other columns.
    """
    place(uri).parent.mkdir(parents=True, exist_ok=True)
    try:
        # not write_dataset(mode="create"): where two do that at once, the slower one empties what the other made
        operation = lance.LanceOperation.Overwrite(schema, [])
        lance.LanceDataset.commit(uri, operation, read_version=0, max_retries=0)
    except OSError as refused:
        try:
            present = lance.dataset(uri).schema
        except ValueError:
            raise refused from None
    else:
        present = schema
    if present.names[: len(schema)] != schema.names:
        raise CommitError(f"{uri}: has the columns {present.names}, wanted {schema.names}; remove it or change the run")
    return latest(uri)


def latest(uri: str) -> TableRef:
    """The newest version of a table."""
    return TableRef(uri=uri, version=lance.dataset(uri).version)


def write(table: pa.Table, uri: str) -> TableRef:
    """A whole small table at once; replaces what a run that was cut off left there."""
    place(uri).parent.mkdir(parents=True, exist_ok=True)
    mode = "overwrite" if place(uri).exists() else "create"
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
    for ids in in_order(open_table(ref), SCAN_ROWS):
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
        ids_M = np.concatenate([np.empty(0, dtype=np.int64), *in_order(open_table(ref), SCAN_ROWS)])
        self._offsets_M = np.argsort(ids_M)
        self._sorted_M = ids_M[self._offsets_M]

    def take(self, row_ids_N: "npt.NDArray[np.int64]", columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with the given ids, in the order of ``row_ids_N`` (see :func:`take`)."""
        place_N = np.minimum(np.searchsorted(self._sorted_M, row_ids_N), len(self._sorted_M) - 1)
        offsets_N = np.full(len(row_ids_N), -1, dtype=np.int64)
        if len(self._sorted_M):
            offsets_N = np.where(self._sorted_M[place_N] == row_ids_N, self._offsets_M[place_N], -1)
        return _take(self._ref, row_ids_N, offsets_N, columns)


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
    """The row ids of the newest version; a bitmap, 10^8 ids of which every other one is there take 12.5 MB.

    Raises:
        CommitError: an id stands there twice.
    """
    found = RowIds(uri)
    found.follow(lance.dataset(uri))
    return found.ids


def write_fragment(table: pa.Table, uri: str, schema: pa.Schema, *, note: Mapping[str, Any] | None = None) -> pa.Table:
    """Write rows as fragments of a table without committing; the one row that names them (schema ``WRITTEN``)."""
    fragments = write_fragments(table, uri, schema=schema, mode="append")
    return pa.table(
        {
            "uri": [uri],
            "fragments": [json.dumps([fragment.to_json() for fragment in fragments])],
            "row_ids": [table["row_id"].to_numpy().tobytes()],
            "time": [time.time()],
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
        self._row_ids = RowIds(uri)
        self._queue: list[_Queued] = []
        self._pending = BitMap64()
        self._superseded = Superseded(uri)
        self._look()

    @property
    def done(self) -> BitMap64:
        """The row ids that are committed, by whomever, as of the last look or commit; not to be changed."""
        return self._row_ids.ids

    def add(self, fragments: str, row_ids: bytes) -> None:
        """Queue one ``WRITTEN`` row; a replay of rows that are queued or committed is left out.

        Raises:
            CommitError: only some of the rows are known already, or an id stands twice in the fragment.
        """
        ids_N = np.frombuffer(row_ids, dtype=np.int64)
        ids = bitmap(ids_N)
        if len(ids) != len(ids_N):
            raise CommitError(f"{self.uri}: a fragment of {len(ids_N)} rows repeats {len(ids_N) - len(ids)} ids")
        if self._is_new(ids):
            metadata = [FragmentMetadata.from_json(json.dumps(item)) for item in _decoded(fragments)]
            self._queue.append(_Queued(fragments=metadata, ids=ids))
            self._pending.update(ids)

    def flush(self) -> None:
        """Commit what is queued, as one new version.

        Raises:
            CommitError: the store refused the commit again and again, another driver committed some of the rows of a
                queued fragment, or the lease on the run directory was lost.
        """
        if not self._queue:
            return
        num_queued = len(self._pending)
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                if attempt > 1:  # the outcome is unclear: the last commit may have landed, or another driver's
                    self._look()
                if self._queue:
                    self._commit()
                break
            except REFUSALS as error:
                if attempt == COMMIT_ATTEMPTS:
                    raise CommitError(f"{self.uri}: commit failed {attempt} times, last: {error}") from error
                logger.warning("%s: commit %d failed (%s); trying again", self.uri, attempt, error)
                time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
        self.num_rows += num_queued

    def _look(self) -> None:
        """Read the newest version; what is queued and stands there is done."""
        dataset = lance.dataset(self.uri)
        self._row_ids.follow(dataset)
        self._dataset, self._first = dataset, _first(dataset)
        queue, self._queue, self._pending = self._queue, [], BitMap64()
        for queued in queue:
            if self._is_new(queued.ids):
                self._queue.append(queued)
                self._pending.update(queued.ids)

    def _is_new(self, ids: BitMap64) -> bool:
        num_known = ids.intersection_cardinality(self.done) + ids.intersection_cardinality(self._pending)
        if 0 < num_known < len(ids):
            raise CommitError(f"{self.uri}: a fragment of {len(ids)} rows repeats {num_known} ids")
        if num_known:
            logger.warning("%s: %d rows were written twice; kept once", self.uri, num_known)
        return num_known == 0

    def _commit(self) -> None:
        """Add the queued fragments to the version that is known; raises what Lance raises where another one came."""
        new = [fragment for queued in self._queue for fragment in queued.fragments]
        operation = (
            lance.LanceOperation.Merge(new, self._dataset.schema)
            if self._first is None
            else lance.LanceOperation.Update(
                removed_fragment_ids=[], updated_fragments=[self._first], new_fragments=new, fields_modified=[]
            )
        )
        lease.check(self.uri)
        self._dataset = lance.LanceDataset.commit(self.uri, operation, read_version=self._dataset.version)
        if self._first is None:
            self._first = _first(self._dataset)
        self._row_ids.add(new, self._pending)
        self._queue, self._pending = [], BitMap64()
        self._superseded.follow(self._dataset)


def _first(dataset: lance.LanceDataset) -> FragmentMetadata | None:
    return next((fragment.metadata for fragment in dataset.get_fragments()), None)


@dataclass(frozen=True, kw_only=True)
class _Queued:
    """What one ``WRITTEN`` row names."""

    fragments: list[FragmentMetadata]
    ids: BitMap64


def commit_stream(
    written: "ray.data.Dataset",
    committers: Sequence[Committer] = (),
    *,
    seconds: float,
    on_commit: Callable[[Round], None] | None = None,
    on_written: Callable[[Written], None] | None = None,
) -> None:
    """Consume ``WRITTEN`` rows as they come and commit every ``seconds``, and when the stream ends or breaks off.

    Commits that take long are made less often (``COMMIT_SHARE``, ``MOST_SECONDS``).

    A round commits table by table: those of ``committers`` in their order, then the others in that of their first
    rows. So where each task names its tables in that order, a row of a later one is never committed before the same
    task's rows of an earlier one.

    ``on_commit`` is told of each round, ``on_written`` of each row as it comes.
    """
    of = {committer.uri: committer for committer in committers}
    last, pause = time.monotonic(), seconds

    def commit() -> None:
        begun = time.monotonic()
        for committer in of.values():
            committer.flush()
        if on_commit is not None:
            rows = {uri: committer.num_rows for uri, committer in of.items()}
            on_commit(Round(rows, time.monotonic() - begun))

    try:
        for row in _rows(written):
            if row["uri"] not in of:
                of[row["uri"]] = Committer(row["uri"])
            of[row["uri"]].add(row["fragments"], row["row_ids"])
            if on_written is not None:
                note = {} if row["note"] is None else json.loads(row["note"])
                on_written(Written(row["uri"], len(row["row_ids"]) // 8, row["time"], note))
            if (begun := time.monotonic()) - last > pause:
                commit()
                last = time.monotonic()
                pause = max(seconds, min((last - begun) / COMMIT_SHARE, MOST_SECONDS))
    except CommitError:
        raise
    except BaseException:  # a failed task, Ctrl-C, SIGTERM: what has come is work done
        with suppress(CommitError):
            commit()
        raise
    commit()


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
        lease.check(ref.uri)
        version = lance.LanceDataset.commit(ref.uri, operation, read_version=version).version
    return TableRef(uri=ref.uri, version=version)


def _rows(dataset: "ray.data.Dataset") -> Iterator[dict[str, Any]]:
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    for batch in batches:
        yield from batch.to_pylist()


def _decoded(fragments: str) -> list[Any]:
    decoded: list[Any] = json.loads(fragments)
    return decoded
