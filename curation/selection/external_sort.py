"""An external merge sort that puts any number of selected rows in the order of their ranks.

Up to ``RUN_ROWS`` rows are sorted in memory. More rows are written to an unnamed temporary file in sorted runs, 20 to
24 bytes a row, and the runs are merged block by block, so that about ``RUN_ROWS`` rows are in memory. The order is
that of :func:`curation.selection.top_n.sort_by_rank`: larger scores first, equal ones by a seeded hash of the row id.
"""

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Floats, Int64s, Uint64s
from curation.hashing import hash64
from curation.selection.order import to_score_keys

RUN_ROWS = 1 << 18
LEAST_BLOCK = 256

Records = npt.NDArray[np.void]


def iter_ranked(batches: Iterable[tuple[Int64s, Floats]], seed: int) -> Iterator[Int64s]:
    """Yield row ids, best first, in parts; ``batches`` have ids and scores [B], the scores of one dtype, none NaN."""
    return iter_sorted((ids_B, score_B, hash64(ids_B, seed)) for ids_B, score_B in batches)


def iter_sorted(batches: Iterable[tuple[Int64s, Floats, Uint64s]]) -> Iterator[Int64s]:
    """Yield one number per row in the order of the rows' ranks, in parts.

    ``batches`` have the numbers, the scores (of one dtype, none NaN) and the hashes of the row ids, each [B].
    """
    with tempfile.TemporaryFile(prefix="curation-sort-") as file:
        runs = _Runs(file)
        for value_B, score_B, tie_B in batches:
            for start in range(0, len(value_B), RUN_ROWS):
                part = slice(start, start + RUN_ROWS)
                key_B = ~to_score_keys(score_B[part])  # so that records sort by rank
                kind = [("key", key_B.dtype), ("tie", np.uint64), ("value", np.int64)]
                records: Any = np.empty(len(key_B), dtype=kind)
                records["key"], records["tie"], records["value"] = key_B, tie_B[part], value_B[part]
                runs.add(records)
        yield from runs.merged()


class _Runs:
    """A collection of rows that are added in any order and sorted ``RUN_ROWS`` at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sizes: list[int] = []
        self._held: list[Records] = []
        self._num_held = 0

    def add(self, records: Records) -> None:
        if self._num_held + len(records) > RUN_ROWS:
            self._spill()
        self._held.append(records)
        self._num_held += len(records)

    def merged(self) -> Iterator[Int64s]:
        """Yield the numbers of all rows in the order of their ranks, in parts."""
        if not self._sizes:
            if self._num_held:
                yield self._take_sorted()["value"].copy()
            return
        kind = self._held[0].dtype
        self._spill()
        self._file.flush()
        ends = np.cumsum(self._sizes)
        starts, most = ends - self._sizes, max(LEAST_BLOCK, RUN_ROWS // len(ends))
        blocks = [np.empty(0, dtype=kind) for _ in ends]
        while True:
            for run, block in enumerate(blocks):
                if not len(block) and starts[run] < ends[run]:
                    self._file.seek(int(starts[run]) * kind.itemsize)
                    blocks[run] = np.fromfile(self._file, kind, min(most, int(ends[run] - starts[run])))
                    starts[run] += len(blocks[run])
            # Behind the last row that was read of a run there may be others that come before rows of other runs.
            unread = [block[-1] for block, start, end in zip(blocks, starts, ends, strict=True) if start < end]
            if not unread:
                parts = blocks
            else:
                last = min(unread, key=lambda record: (record["key"], record["tie"]))
                stops = [_count_up_to(block, last) for block in blocks]
                parts = [block[:stop] for block, stop in zip(blocks, stops, strict=True)]
                blocks = [block[stop:] for block, stop in zip(blocks, stops, strict=True)]
            yield _sort_records(np.concatenate(parts))["value"].copy()
            if not unread:
                return

    def _take_sorted(self) -> Records:
        records, self._held, self._num_held = np.concatenate(self._held), [], 0
        return _sort_records(records)

    def _spill(self) -> None:
        self._sizes.append(self._num_held)
        self._take_sorted().tofile(self._file)


def _sort_records(records: Records) -> Records:
    ordered: Records = records[np.lexsort((records["tie"], records["key"]))]
    return ordered


def _count_up_to(block: Records, last: Any) -> int:
    """Return how many records of a sorted block come no later than ``last``."""
    low, high = (int(np.searchsorted(block["key"], last["key"], side=side)) for side in ("left", "right"))
    return low + int(np.searchsorted(block["tie"][low:high], last["tie"], side="right"))
