"""Chunks in which processes died, kept beside the table: the next driver need not search them from the start."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress

from curation.passes.cutting import Chunk
from curation.passes.messages import Look, Suspect
from curation.storage.paths import place, write_atomically


class Suspects:
    """The file of a table; there is none as long as no process died."""

    def __init__(self, table: str) -> None:
        self._path = place(f"{table}.suspects")
        self._kept: tuple[Suspect, ...] = ()

    def read(self) -> tuple[Suspect, ...]:
        """Suspects that the last driver has left."""
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return ()
        self._kept = tuple(
            Suspect(chunk=Chunk(start=start, stop=stop, take=b64decode(take)), known=known)
            for start, stop, take, known in found
        )
        return self._kept

    def keeping(self, look: Callable[[], Look]) -> Callable[[], Look]:
        """The same look, which also keeps the suspects that it sees."""

        def kept() -> Look:
            found = look()
            if found.suspects != self._kept:
                self._kept = found.suspects
                rows = [
                    (of.chunk.start, of.chunk.stop, b64encode(of.chunk.take).decode(), of.known) for of in self._kept
                ]
                write_atomically(self._path, json.dumps(rows).encode())
            return found

        return kept

    def forget(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            self._path.unlink()
