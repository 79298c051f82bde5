"""The search for rows that kill the process working on them, by dividing the piece of a chunk that a process died in.

When a process dies, Ray lets another one begin its chunk anew. The :class:`PoisonSearch` outlives the process in
:mod:`curation.passes.work_queue`, where an actor records it before it begins a piece of a chunk that killed a process.
A piece that was begun and not finished is cut into parts, which are worked on one by one. A row on which a process
died alone is tried again, and is poison if it kills again. All rows that were worked on without harm form one piece in
the next attempt.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple, Self

from curation.json_types import Json
from curation.passes.cutting import Chunk
from curation.storage.paths import to_place, write_atomically

PARTS = 16
"""Number of parts into which a piece is cut; one poison row of 256 takes two deaths to find, and two to confirm."""


@dataclass(kw_only=True)
class PoisonSearch:
    """The state of a search for poison rows in a chunk, with rows by their index in the chunk."""

    suspect: list[list[int]]  # pieces not known to be harmless; parts of pieces in which a process died come first
    harmless: list[int] = field(default_factory=list)
    poison: list[int] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)  # piece that a process has begun and not finished
    node: str = ""
    pass_id: str = ""  # pass in which the piece was begun, to recognise an earlier driver, whose actors died with it
    solo_crashes: dict[int, int] = field(default_factory=dict)
    """Number of times that a process died on a row alone, by row."""
    num_deaths: int = 0

    @classmethod
    def of(cls, num_rows: int) -> Self:
        """Return the initial state for a chunk with ``num_rows`` rows."""
        return cls(suspect=[list(range(num_rows))])

    @property
    def is_whole(self) -> bool:
        """Whether no process has died in the chunk."""
        return self.num_deaths == 0

    def begin(self, *, max_row_retries: int, died_with_node: bool = False) -> None:
        """Begin a new attempt; the unfinished piece killed the last one, unless its node or driver died."""
        lost, self.under_way = self.under_way, []
        if not lost or died_with_node:
            return
        self.num_deaths += 1
        self.suspect = [piece for piece in self.suspect if piece != lost]
        self.harmless = sorted(set(self.harmless) - set(lost))
        if len(lost) > 1:
            size = -(-len(lost) // PARTS)
            self.suspect[:0] = [lost[start : start + size] for start in range(0, len(lost), size)]
            return
        (row,) = lost
        self.solo_crashes[row] = self.solo_crashes.get(row, 0) + 1
        if self.solo_crashes[row] > max_row_retries:
            self.poison.append(row)
        else:
            self.suspect.insert(0, lost)

    def drop(self, places: Collection[int]) -> None:
        """Remove rows that need no more work, because a call wrote them before its process died."""
        pieces = (self.harmless, self.under_way, *self.suspect)
        self.harmless, self.under_way, *suspect = ([row for row in piece if row not in places] for piece in pieces)
        self.suspect = [piece for piece in suspect if piece]

    def only(self, places: Sequence[int]) -> Self:
        """Return the state restricted to some rows, which are renumbered in this order."""
        at = {place: number for number, place in enumerate(places)}

        def kept(piece: list[int]) -> list[int]:
            return [at[place] for place in piece if place in at]

        return replace(
            self,
            suspect=[left for piece in self.suspect if (left := kept(piece))],
            harmless=kept(self.harmless),
            poison=kept(self.poison),
            under_way=kept(self.under_way),
            solo_crashes={at[row]: number for row, number in self.solo_crashes.items() if row in at},
        )

    def pieces(self) -> Iterator[list[int]]:
        """Yield pieces to work on, harmless rows last; a piece counts as unfinished until the next one is requested.

        The caller records this object's state after each yield, where a successor finds it.
        """
        harmless = self.harmless
        for piece in list(self.suspect):
            self.under_way = piece
            yield piece
            self.suspect.remove(piece)
            self.harmless = sorted([*self.harmless, *piece])
        if harmless:
            self.under_way = harmless
            yield harmless
        self.under_way = []

    def to_json(self) -> str:
        """Return the state as JSON, with indices as runs, since a chunk has thousands and most are in one piece."""
        value = asdict(self) | {name: _group_runs(getattr(self, name)) for name in _ROWS}
        return json.dumps(value | {"suspect": [_group_runs(piece) for piece in self.suspect]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the state from the JSON of :meth:`to_json`."""

        def list_rows(runs: list[list[int]]) -> list[int]:
            return [row for start, stop in runs for row in range(start, stop)]

        value: Json = json.loads(text)
        value |= {name: list_rows(value[name]) for name in _ROWS}
        value["suspect"] = [list_rows(runs) for runs in value["suspect"]]
        value["solo_crashes"] = {int(row): number for row, number in value["solo_crashes"].items()}
        return cls(**value)


_ROWS = ("harmless", "poison", "under_way")  # fields of a :class:`PoisonSearch` that are rows, not pieces


def _group_runs(rows: list[int]) -> list[list[int]]:
    """Return distinct indices as runs, each from its first index to the one after its last."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    return runs


class Suspect(NamedTuple):
    """A chunk in which processes died."""

    chunk: Chunk
    known: str


class PoisonSuspects:
    """The file beside a table with its chunks in which processes died, for the next driver to continue the search."""

    def __init__(self, table: str) -> None:
        self._path = to_place(f"{table}.suspects")
        self._kept: tuple[Suspect, ...] = ()

    def read(self) -> tuple[Suspect, ...]:
        """Return the suspects that the last driver recorded."""
        with suppress(FileNotFoundError):
            self._kept = tuple(
                Suspect(Chunk(start=start, stop=stop, take=b64decode(take)), known)
                for start, stop, take, known in json.loads(self._path.read_bytes())
            )
        return self._kept

    def keep(self, suspects: tuple[Suspect, ...]) -> None:
        """Write the suspects if they have changed."""
        if suspects != self._kept:
            self._kept = suspects
            rows = [(chunk.start, chunk.stop, b64encode(chunk.take).decode(), known) for chunk, known in suspects]
            write_atomically(self._path, json.dumps(rows).encode())

    def forget(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            self._path.unlink()
