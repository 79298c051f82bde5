"""The search for rows that kill the process working on them, by dividing the chunk that a process died in.

Each part is a chunk of its own, which a process works on alone. A row on which a process died alone is tried again, and
is poison if it kills again.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from curation.passes.cutting import Chunk
from curation.storage.paths import to_place, write_atomically

PARTS = 16
"""Number of parts into which a chunk is cut; one poison row of 256 takes two deaths to find, and two to confirm."""


def divide_suspect(chunk: Chunk, *, max_row_retries: int) -> list[Chunk]:
    """Return the chunks in which a chunk's rows are tried again after a process died in it."""
    offsets = chunk.offsets
    if len(offsets) == 1:
        crashes = chunk.solo_crashes + 1
        is_poison = crashes > max_row_retries
        return [replace(chunk, is_suspect=True, is_poison=is_poison, solo_crashes=crashes, deaths=chunk.deaths + 1)]
    size = -(-len(offsets) // PARTS)
    starts = range(0, len(offsets), size)
    *parts, last = [Chunk.of(offsets[start : start + size], is_suspect=True) for start in starts]
    return [*parts, replace(last, deaths=chunk.deaths + 1)]


class PoisonSuspects:
    """The file beside a table with its suspect chunks, for the next driver to continue the search."""

    def __init__(self, table: str) -> None:
        self._path = to_place(f"{table}.suspects")
        self._kept: tuple[Chunk, ...] = ()

    def read(self) -> tuple[Chunk, ...]:
        """Return the suspects that the last driver recorded."""
        with suppress(FileNotFoundError):
            found = json.loads(self._path.read_bytes())
            self._kept = tuple(Chunk(**chunk | {"take": b64decode(chunk["take"])}) for chunk in found)
        return self._kept

    def keep(self, suspects: Sequence[Chunk]) -> None:
        """Write the suspects if they have changed."""
        if tuple(suspects) != self._kept:
            self._kept = tuple(suspects)
            rows = [asdict(chunk) | {"take": b64encode(chunk.take).decode()} for chunk in suspects]
            write_atomically(self._path, json.dumps(rows).encode())

    def forget(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            self._path.unlink()
