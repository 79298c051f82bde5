"""Exactly-once commits: workers write fragments, and one committer appends them to the table.

The protocol (DESIGN: exactly once): a task writes its own fragment and emits one small row per table that names it, as
its only output. Only the driver commits, every few seconds. Committed rows are done. A fragment that no commit names is
an orphan on disk that nobody reads. After a restart the driver asks what is committed (:attr:`Committer.done`) and does
the rest.

A commit is conditional: it succeeds only on the version whose ids the committer knows. Lance rebases an append over
other appends, even over another driver's append of the same rows, and a commit that timed out can still land later,
next to its own repetition. So a commit here is not an append but an update that names a fragment of the version it was
made for (the table's first, unchanged). Two such updates conflict.

A commit survives a power cut: its fragments are on the disk before the commit names them, and its version is on the
disk before the commit counts as done (:mod:`curation.storage.files`).
"""

import json
import time
from collections.abc import Mapping, Sequence

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from pyroaring import BitMap64

from curation.errors import REFUSALS, CommitError, describe_lance_error
from curation.escaping import get_logger
from curation.storage.lease import Guard, guard_nothing
from curation.tables.compaction import Merger
from curation.tables.row_ids import RowIds, include_all, make_bitmap
from curation.tables.versions import Superseded, rename_files, sync_version

logger = get_logger(__name__)

COMMIT_ATTEMPTS = 8
RETRY_SECONDS = 0.4
"""Seconds before a commit's second attempt, doubled each time to 51 s in all: a store may be away for some time."""
WRITTEN = pa.schema(
    [
        ("uri", pa.string()),
        ("fragments", pa.string()),
        ("row_ids", pa.binary()),
        ("time", pa.float64()),
        ("note", pa.string()),
    ]
)
"""The output of a writing task, one row per table: the fragments as a JSON list, the row ids as int64 bytes, the time
of writing (seconds since 1970) and optionally facts about the worker as a JSON object."""


def read_committed_ids(uri: str) -> BitMap64:
    """Return the newest version's row ids, at most 12.5 MB for each 10^8; ``CommitError`` if one occurs twice."""
    found = RowIds(uri)
    found.follow(lance.dataset(uri))
    return found.ids


def write_fragment(
    table: pa.Table, uri: str, schema: pa.Schema, *, note: Mapping[str, object] | None = None
) -> pa.Table:
    """Write rows as fragments of a table without committing; return the row that names them (schema ``WRITTEN``)."""
    fragments = write_fragments(table, uri, schema=schema, mode="append")
    return make_written_row(uri, fragments, table["row_id"].to_numpy().tobytes(), note=note)


def make_written_row(
    uri: str, fragments: Sequence[FragmentMetadata], row_ids: bytes, *, note: Mapping[str, object] | None = None
) -> pa.Table:
    """Put digests into the names of fragments' files, sync these, and return the row that names them (``WRITTEN``)."""
    described = [fragment.to_json() for fragment in fragments]
    rename_files(uri, described)
    return pa.table(
        {
            "uri": [uri],
            "fragments": [json.dumps(described)],
            "row_ids": [row_ids],
            "time": [time.time()],
            "note": [json.dumps(note) if note else None],
        },
        schema=WRITTEN,
    )


def with_note(written: pa.Table, **facts: object) -> pa.Table:
    """Return rows of ``WRITTEN`` with further facts in the note of the first row."""
    if not written.num_rows:
        return written
    note, *others = written["note"].to_pylist()
    notes = [json.dumps({**({} if note is None else json.loads(note)), **facts}), *others]
    index = written.schema.get_field_index("note")
    return written.set_column(index, WRITTEN.field("note"), pa.array(notes, pa.string()))


class Committer:
    """A writer of one table that calls ``guard`` before each commit and commits no row id twice.

    ``fragment_mb``: size in MiB to which small fragments are merged meanwhile (``compaction.Merger``); None: never.
    """

    def __init__(self, uri: str, guard: Guard = guard_nothing, fragment_mb: int | None = None) -> None:
        self.uri, self._guard = uri, guard
        self._merger = None if fragment_mb is None else Merger(uri, fragment_mb)
        self.num_rows = 0
        """Number of rows committed by this committer."""
        self._row_ids = RowIds(uri)
        self._queue: list[tuple[list[FragmentMetadata], BitMap64]] = []
        """The fragments and row ids of ``WRITTEN`` rows that are not committed yet."""
        self._pending = BitMap64()
        self._superseded = Superseded(guard)
        self._look()

    @property
    def done(self) -> BitMap64:
        """Row ids that any driver committed, as of the last read or commit; do not modify."""
        return self._row_ids.ids

    def add(self, fragments: str, row_ids: bytes) -> None:
        """Queue a ``WRITTEN`` row unless its ids are known; ``CommitError`` if only some are, or one occurs twice."""
        ids_N = np.frombuffer(row_ids, dtype=np.int64)
        ids = make_bitmap(ids_N)
        if len(ids) != len(ids_N):
            raise CommitError(f"{self.uri}: a fragment of {len(ids_N)} rows repeats {len(ids_N) - len(ids)} ids")
        if self._is_new(ids):
            metadata = [FragmentMetadata.from_json(json.dumps(item)) for item in json.loads(fragments)]
            self._queue.append((metadata, ids))
            include_all(self._pending, ids)

    def flush(self) -> None:
        """Commit the queue as one new version; ``CommitError`` if the store, a driver or the lease prevents it."""
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
                reason = describe_lance_error(error) or error
                if attempt == COMMIT_ATTEMPTS:
                    raise CommitError(f"{self.uri}: commit failed {attempt} times, last: {reason}") from error
                logger.warning("%s: commit %d failed (%s); trying again", self.uri, attempt, reason)
                time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
        self.num_rows += num_queued

    def _look(self) -> None:
        """Read the newest version, and drop fragments whose rows it already has from the queue."""
        dataset = lance.dataset(self.uri)
        self._row_ids.follow(dataset)
        self._dataset, self._first = dataset, _get_first_fragment(dataset)
        if self._merger is not None:
            self._merger.forget()
        queue, self._queue, self._pending = self._queue, [], BitMap64()
        for fragments, ids in queue:
            if self._is_new(ids):
                self._queue.append((fragments, ids))
                include_all(self._pending, ids)

    def _is_new(self, ids: BitMap64) -> bool:
        """Return whether no id is committed or queued; ``CommitError`` if only some are."""
        num_known = ids.intersection_cardinality(self.done) + ids.intersection_cardinality(self._pending)
        if 0 < num_known < len(ids):
            raise CommitError(f"{self.uri}: a fragment of {len(ids)} rows repeats {num_known} ids")
        if num_known:
            logger.warning("%s: %d rows were written twice; kept once", self.uri, num_known)
        return num_known == 0

    def _commit(self) -> None:
        """Add the queued fragments to the known version; Lance raises an error if there is a newer version."""
        new = [fragment for fragments, _ in self._queue for fragment in fragments]
        merged = [] if self._merger is None else self._merger.take()
        operation = (
            lance.LanceOperation.Merge(new, self._dataset.schema)
            if self._first is None
            else lance.LanceOperation.Update(
                removed_fragment_ids=[number for item in merged for number in item.old],
                updated_fragments=[self._first],
                new_fragments=[*(fragment for item in merged for fragment in item.new), *new],
                fields_modified=[],
            )
        )
        self._guard()
        self._dataset = lance.LanceDataset.commit(self.uri, operation, read_version=self._dataset.version)
        sync_version(self._dataset)
        if self._first is None:
            self._first = _get_first_fragment(self._dataset)
        self._row_ids.add(new, self._pending)
        if merged:
            self._row_ids.rebase(self._dataset)
        self._queue, self._pending = [], BitMap64()
        self._superseded.follow(self._dataset)
        if self._merger is not None:
            self._merger.start(self._dataset)


def _get_first_fragment(dataset: lance.LanceDataset) -> FragmentMetadata | None:
    return next((fragment.metadata for fragment in dataset.get_fragments()), None)
