"""Commits of the output of tasks as it arrives."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from curation.errors import CommitError
from curation.json_types import Json
from curation.stopping import iter_checked
from curation.storage.lease import Guard, guard_nothing
from curation.tables.commits import Committer

COMMIT_SHARE = 0.1
"""Maximum share of the time spent on commits. A commit names all fragments, so it takes longer the more there are."""
MOST_SECONDS = 30.0
"""Longest pause between two commits that ``COMMIT_SHARE`` may cause; a kill costs at most this much work."""


class WrittenFragment(NamedTuple):
    """Facts about a ``WRITTEN`` row, reported when the row arrives."""

    uri: str
    num_rows: int
    time: float
    note: Json


OnCommit = Callable[[Mapping[str, int]], None]
"""Function that receives the number of rows committed so far, by table."""


def commit_stream(
    written: Iterable[pa.Table | None],
    committers: Sequence[Committer] = (),
    *,
    seconds: float,
    guard: Guard = guard_nothing,
    fragment_mb: int | None = None,
    on_commit: OnCommit | None = None,
    on_written: Callable[[WrittenFragment], None] | None = None,
    rest: Callable[[], Iterable[pa.Table]] = tuple,
) -> None:
    """Consume tables of ``WRITTEN`` as they arrive; commit every ``seconds``, and when the stream ends or fails.

    If the stream fails (a failed task, Ctrl-C, SIGTERM), ``rest`` returns finished tables that had not arrived. While
    the stream waits, it should yield None now and then, so that arrived rows are committed. Slow commits happen less
    often (``COMMIT_SHARE``, ``MOST_SECONDS``). A round commits table by table: those of ``committers`` in their order,
    then the others, with ``guard`` and ``fragment_mb``, in the order of their first rows. So if each task names its
    tables in this order, a row of a later table is never committed before the same task's rows of an earlier one.
    ``on_commit`` is called after each round, ``on_written`` for each row as it arrives.
    """
    of = {committer.uri: committer for committer in committers}
    last, pause, is_due = time.monotonic(), seconds, False

    def take(table: pa.Table) -> None:
        for row in table.to_pylist():
            if row["uri"] not in of:
                of[row["uri"]] = Committer(row["uri"], guard, fragment_mb)
            of[row["uri"]].add(row["fragments"], row["row_ids"])
            if on_written is not None:
                note = {} if row["note"] is None else json.loads(row["note"])
                on_written(WrittenFragment(row["uri"], len(row["row_ids"]) // 8, row["time"], note))

    def commit() -> None:
        for committer in of.values():
            committer.flush()
        if on_commit is not None:
            on_commit({uri: committer.num_rows for uri, committer in of.items()})

    try:
        for table in iter_checked(written):
            if table is not None:
                is_due = is_due or len(table) > 0
                take(table)
            if is_due and (begun := time.monotonic()) - last > pause:
                commit()
                last, is_due = time.monotonic(), False
                pause = max(seconds, min((last - begun) / COMMIT_SHARE, MOST_SECONDS))
    except CommitError:
        raise
    except BaseException:  # a signal too: what was written before is committed
        with suppress(CommitError):
            for table in rest():
                take(table)
            commit()
        raise
    commit()
