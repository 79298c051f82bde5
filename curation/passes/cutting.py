"""Cuts the rows of a pass into chunks, each of about so many seconds of an actor.

Nobody knows beforehand how long a row takes: the first chunks are small, and those that come back say how large the
next ones may be. Near the end of a pass chunks get smaller again, so that no actor works for long after the others.

A model that answers many rows side by side needs as long as its longest answer, however few rows it is given, so the
time of a chunk says nothing of its rows while places are free. Its chunks are never smaller than what fills it.
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
"""The most by which a chunk is larger than the largest one that came back: a small one says little of a row."""
FILL = 8
"""Rows that the chunks of an actor hold together, for each one that its model answers side by side: the answers of a
chunk that have ended leave places, which the other chunks fill until its longest answer has ended, too."""
LEAST_SECONDS = 2.0
"""The least that a chunk near the end of a pass is to take."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows ``start`` to ``stop`` of the examples table, less those whose bit in ``take`` is 0 (numpy packed bits)."""

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
        """A name that no chunk of the same table with other rows has."""
        return f"{self.start}-{fingerprint([self.stop, self.take.hex()])}"

    @property
    def offsets(self) -> Int64s:
        """The offsets in the table of the rows to work on."""
        bits = np.unpackbits(np.frombuffer(self.take, dtype=np.uint8), count=self.stop - self.start)
        offsets: Int64s = self.start + np.flatnonzero(bits)
        return offsets


class OpenRows:
    """The rows of a table that a pass is to work on, in the table's order: a bit for each row of the table."""

    def __init__(self, examples: TableRef, takes: Callable[[Int64s], Bools], done: BitMap64) -> None:
        """Take the rows of ``examples`` that ``takes`` (a mask of ids) marks and that are not ``done``."""
        self.wanted = 0
        """The number of rows that the pass takes, those that are done included."""
        self.left = 0
        """The number of rows that have not been taken from here."""
        self._stretches: list[Chunk] = []
        start = 0
        for ids_N in iter_ordered_ids(io.open_table(examples), SCAN_ROWS):
            wanted_N = takes(ids_N)
            open_N = wanted_N & find_missing_ids(ids_N, done)
            self.wanted += int(wanted_N.sum())
            if open_N.any():
                self._stretches.append(Chunk.of(start + np.flatnonzero(open_N)))
                self.left += int(open_N.sum())
            start += len(ids_N)
        self._offsets: Int64s = np.empty(0, dtype=np.int64)

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows, so many of them or fewer; None where none is left."""
        if not len(self._offsets):
            if not self._stretches:
                return None
            self._offsets = self._stretches.pop(0).offsets
        taken, self._offsets = self._offsets[:num_rows], self._offsets[num_rows:]
        self.left -= len(taken)
        return Chunk.of(taken)

    def chunks(self, num_rows: int) -> Iterator[Chunk]:
        """Yield all that is left, so many rows at a time."""
        while (chunk := self.take(num_rows)) is not None:
            yield chunk

    def set_apart(self, chunk: Chunk) -> Int64s:
        """Take out what is left of a chunk, before any other rows are taken; return its places in the chunk.

        Some of a chunk's rows may be committed already; a chunk lies within one stretch of the table.
        """
        for place, stretch in enumerate(self._stretches):
            offsets = stretch.offsets
            if len(found := np.flatnonzero(np.isin(chunk.offsets, offsets))):
                self.left -= len(found)
                others = offsets[~np.isin(offsets, chunk.offsets)]
                self._stretches[place : place + 1] = [Chunk.of(others)] if len(others) else []
                return found
        return np.empty(0, dtype=np.int64)


class Cutter:
    """Says how large the next chunk of a pass is to be."""

    def __init__(self, asked: AskConfig) -> None:
        self._seconds, self._most = asked.chunk_seconds, asked.chunk_rows
        self._first = asked.first_chunk_rows
        self._largest = 0
        self._pace: float | None = None
        """Seconds in which a chunk gets a row done, of the chunks that came back last."""

    def rows(self, left: int, *, actors: int, calls: int, slots: int | None = None) -> int:
        """Return the rows of the next chunk, where ``left`` rows are left for actors that each make so many calls.

        ``slots``: the rows that the actor's model answers side by side; ``None`` where each row takes time of its own.
        """
        floor = 0 if slots is None else math.ceil(min(FILL * slots / calls, left / actors))
        if self._pace is None or math.isinf(self._seconds):
            return max(self._first, min(floor, self._most))
        wanted = min(self._seconds / self._pace, GROWTH * self._largest)
        short = max(left / (2 * actors * calls), LEAST_SECONDS / self._pace)
        return max(1, min(self._most, max(floor, math.ceil(min(wanted, short)))))

    def learn(self, rows: int, seconds: float) -> None:
        """Take note of a chunk that took so long."""
        pace = max(seconds, 1e-6) / rows
        self._pace = pace if self._pace is None else (self._pace + pace) / 2
        self._largest = max(self._largest, rows)

    def chunks(self, left: int) -> int:
        """Estimate how many chunks are left, of so many rows."""
        return math.ceil(left / self.rows(left, actors=1, calls=1)) if left else 0
