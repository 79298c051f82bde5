"""Which row of a chunk kills the process that works on it: found by cutting up what a process died in.

A process that dies takes its chunk along, and Ray has another one begin it anew. What was under way outlives it in
:mod:`curation.passes.work_queue`: the :class:`PoisonSearch`, which the actor keeps there before it begins a piece of a
chunk that killed a process. A piece under way that nobody ended is cut into parts, to be worked on one by one; a row
that its process died on alone is tried again, and is poison when that happens again.

What a death finds beside its cause is cut up as well, and comes together again: pieces that were worked on without
harm are one piece in the next attempt.
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
"""Into how many a piece is cut: one poison row of 256 costs two deaths to find, and two more to be sure."""


@dataclass(kw_only=True)
class PoisonSearch:
    """Knowledge of a chunk's rows, by their place in it."""

    suspect: list[list[int]]
    """Pieces not worked on yet without harm, those that a process died in first."""
    harmless: list[int] = field(default_factory=list)
    poison: list[int] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)
    """The piece that a process has begun and not ended."""
    node: str = ""
    """Where it was begun."""
    pass_id: str = ""
    """For which driver: with a driver all of its actors go."""
    solo_crashes: dict[int, int] = field(default_factory=dict)
    """How often a process died on a row alone."""
    num_deaths: int = 0

    @classmethod
    def of(cls, num_rows: int) -> Self:
        """Return the state of a chunk of so many rows of which nothing is known."""
        return cls(suspect=[list(range(num_rows))])

    @property
    def is_whole(self) -> bool:
        """Whether no process has died in the chunk."""
        return self.num_deaths == 0

    def begin(self, *, max_row_retries: int, taken_along: bool = False) -> None:
        """Begin a new attempt; what is under way killed the last one, unless its node or driver took it along."""
        lost, self.under_way = self.under_way, []
        if not lost or taken_along:
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
        """Forget rows that need no work any more: what a call wrote of a chunk before its process died."""

        def kept(piece: list[int]) -> list[int]:
            return [place for place in piece if place not in places]

        self.suspect = [left for piece in self.suspect if (left := kept(piece))]
        self.harmless, self.under_way = kept(self.harmless), kept(self.under_way)

    def only(self, places: Sequence[int]) -> Self:
        """Return what is known of some of the rows alone, which are numbered anew in this order."""
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
        """Yield pieces to work on, one by one, the harmless rows last; each is under way until the next is asked.

        The caller keeps this object in between, as it is then, for a successor to find.
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
        """Return all of it as JSON, places in runs: a chunk has thousands, most of them in one piece."""
        value = asdict(self) | {name: _group_runs(getattr(self, name)) for name in ("harmless", "poison", "under_way")}
        return json.dumps(value | {"suspect": [_group_runs(piece) for piece in self.suspect]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the inverse of :meth:`to_json`."""
        value: Json = json.loads(text)
        value |= {name: _list_places(value[name]) for name in ("harmless", "poison", "under_way")}
        value["suspect"] = [_list_places(runs) for runs in value["suspect"]]
        value["solo_crashes"] = {int(row): number for row, number in value["solo_crashes"].items()}
        return cls(**value)


def _group_runs(places: list[int]) -> list[list[int]]:
    """Return places, each at most once, as runs from the first of them to the one after the last."""
    runs: list[list[int]] = []
    for row in places:
        if runs and runs[-1][1] == row:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    return runs


def _list_places(runs: list[list[int]]) -> list[int]:
    return [place for start, stop in runs for place in range(start, stop)]


class Suspect(NamedTuple):
    """A chunk in which processes died."""

    chunk: Chunk
    known: str
    """The :class:`PoisonSearch` as JSON."""


class PoisonSuspects:
    """A table's chunks in which processes died, kept beside it: the next driver need not search them from the start.

    There is no file as long as no process died.
    """

    def __init__(self, table: str) -> None:
        self._path = to_place(f"{table}.suspects")
        self._kept: tuple[Suspect, ...] = ()

    def read(self) -> tuple[Suspect, ...]:
        """Return suspects that the last driver has left."""
        with suppress(FileNotFoundError):
            self._kept = tuple(
                Suspect(Chunk(start=start, stop=stop, take=b64decode(take)), known)
                for start, stop, take, known in json.loads(self._path.read_bytes())
            )
        return self._kept

    def keep(self, suspects: tuple[Suspect, ...]) -> None:
        """Write the suspects, where they are not those of the last time."""
        if suspects != self._kept:
            self._kept = suspects
            rows = [(chunk.start, chunk.stop, b64encode(chunk.take).decode(), known) for chunk, known in suspects]
            write_atomically(self._path, json.dumps(rows).encode())

    def forget(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            self._path.unlink()
