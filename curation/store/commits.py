"""Fragments written in workers, appended by one committer.

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
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from pyroaring import BitMap64

from curation.errors import REFUSALS, CommitError
from curation.lease import Guard, unguarded
from curation.row_ids import RowIds, bitmap
from curation.superseded import Superseded

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 8
RETRY_SECONDS = 0.4
"""Before the second attempt of a commit; doubled for each further one, 51 s in all: a store may be down for a while."""
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
    """Appends written fragments to one table, each time after a call of ``guard``; refuses row ids that are there."""

    def __init__(self, uri: str, guard: Guard = unguarded) -> None:
        self.uri, self._guard = uri, guard
        self.num_rows = 0
        """Rows committed by this committer."""
        self._row_ids = RowIds(uri)
        self._queue: list[_Queued] = []
        self._pending = BitMap64()
        self._superseded = Superseded(uri, guard)
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
        self._guard()
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


def _decoded(fragments: str) -> list[Any]:
    decoded: list[Any] = json.loads(fragments)
    return decoded
