"""Division of a pass's rows into chunks, each of which should take an actor a given number of seconds.

The first chunks are small; the time of finished ones determines the size of the next ones. Near the end of a pass
chunks get smaller, so that no actor works long after the others. A model that answers many rows concurrently takes as
long as its longest answer, so that a chunk's time says nothing about its rows while slots are free: chunks are never
too small to fill the slots.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from pyroaring import BitMap64

from curation.arrays import Bools, Int64s
from curation.config import AskConfig
from curation.refs import TableRef, fingerprint
from curation.tables import io
from curation.tables.row_ids import SCAN_ROWS, find_missing_ids, iter_ordered_ids

GROWTH = 4
"""Maximum ratio of a chunk to the largest finished one, since a small chunk says little about the time per row."""
FILL = 8
"""Rows in all chunks of an actor per slot of its model: while a chunk's longest answer goes on, rows of the other
chunks fill the slots of its finished answers."""
LEAST_SECONDS = 2.0  # minimum number of seconds that a chunk near the end of a pass should take


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows ``start`` to ``stop`` of the examples table, except those whose bit in ``take`` is 0 (numpy packed bits)."""

    start: int
    stop: int
    take: bytes

    @classmethod
    def of(cls, offsets: Int64s) -> Self:
        """Return the chunk of these rows, ascending offsets in the table."""
        start, stop = int(offsets[0]), int(offsets[-1]) + 1
        taken = np.zeros(stop - start, dtype=np.bool_)
        taken[offsets - start] = True
        return cls(start=start, stop=stop, take=np.packbits(taken).tobytes())

    @property
    def name(self) -> str:
        """Name of the chunk, unique among chunks of the same table with other rows."""
        return f"{self.start}-{fingerprint([self.stop, self.take.hex()])}"

    @property
    def offsets(self) -> Int64s:
        """Offsets in the table of the rows to work on."""
        bits = np.unpackbits(np.frombuffer(self.take, dtype=np.uint8), count=self.stop - self.start)
        offsets: Int64s = self.start + np.flatnonzero(bits)
        return offsets


class OpenRows:
    """The rows of a table that a pass has to work on, in the table's order, with one bit per row of the table."""

    def __init__(self, examples: TableRef, takes: Callable[[Int64s], Bools], done: BitMap64) -> None:
        """Take the rows of ``examples`` that ``takes`` (a mask of ids) marks and that are not ``done``."""
        self.requested = 0  # number of rows of the pass, including those that are done
        self.left = 0
        self._stretches: list[Chunk] = []
        start = 0
        for ids_N in iter_ordered_ids(io.open_table(examples), SCAN_ROWS):
            requested_N = takes(ids_N)
            open_N = requested_N & find_missing_ids(ids_N, done)
            self.requested += int(requested_N.sum())
            if open_N.any():
                self._stretches.append(Chunk.of(start + np.flatnonzero(open_N)))
                self.left += int(open_N.sum())
            start += len(ids_N)
        self._offsets: Int64s = np.empty(0, dtype=np.int64)

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows, at most ``num_rows``, or None if none is left."""
        if not len(self._offsets):
            if not self._stretches:
                return None
            self._offsets = self._stretches.pop(0).offsets
        taken, self._offsets = self._offsets[:num_rows], self._offsets[num_rows:]
        self.left -= len(taken)
        return Chunk.of(taken)

    def chunks(self, num_rows: int) -> Iterator[Chunk]:
        """Yield all remaining rows, at most ``num_rows`` at a time."""
        while (chunk := self.take(num_rows)) is not None:
            yield chunk

    def set_apart(self, chunk: Chunk) -> Int64s:
        """Take out a chunk's open rows, before any others; return their indices. Other rows of it may be committed."""
        for place, stretch in enumerate(self._stretches):
            offsets = stretch.offsets
            if len(found := np.flatnonzero(np.isin(chunk.offsets, offsets))):
                self.left -= len(found)
                others = offsets[~np.isin(offsets, chunk.offsets)]
                self._stretches[place : place + 1] = [Chunk.of(others)] if len(others) else []
                return found
        return np.empty(0, dtype=np.int64)


class Cutter:
    """An estimator of the size of a pass's next chunk."""

    def __init__(self, asked: AskConfig) -> None:
        self._seconds, self._most, self._first = asked.chunk_seconds, asked.chunk_rows, asked.first_chunk_rows
        self._largest = 0
        self._pace: float | None = None  # seconds per row of the chunks that finished last

    def rows(self, left: int, *, actors: int, calls: int, slots: int | None = None) -> int:
        """Return the rows of the next chunk, with ``left`` rows for actors that each have ``calls`` calls.

        ``slots`` is the number of rows that the actor's model answers concurrently, or ``None`` if one after another.
        """
        floor = 0 if slots is None else math.ceil(min(FILL * slots / calls, left / actors))
        if self._pace is None or math.isinf(self._seconds):
            return max(self._first, min(floor, self._most))
        rows = min(self._seconds / self._pace, GROWTH * self._largest)
        short = max(left / (2 * actors * calls), LEAST_SECONDS / self._pace)
        return max(1, min(self._most, max(floor, math.ceil(min(rows, short)))))

    def learn(self, rows: int, seconds: float) -> None:
        """Record rows and seconds of a finished chunk."""
        pace = max(seconds, 1e-6) / rows
        self._pace = pace if self._pace is None else (self._pace + pace) / 2
        self._largest = max(self._largest, rows)

    def chunks(self, left: int) -> int:
        """Estimate the number of chunks for ``left`` rows."""
        return math.ceil(left / self.rows(left, actors=1, calls=1)) if left else 0
