"""The messages between a driver, the desk of its dataset, and the actors: passes, calls, chunks, written rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from curation.config import ActorsConfig
from curation.passes.bisection import Narrowing
from curation.passes.cutting import Chunk
from curation.telemetry.standing import Actors


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass as a process knows it, besides its job."""

    id: str
    table: str
    """The URI of the table that the pass fills; a pass of the next driver has the same one."""
    versions: Mapping[str, str]
    """The driver's versions. An actor on a node that joined later must have the same ones."""
    actors: ActorsConfig


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A chunk in which processes died."""

    chunk: Chunk
    known: str
    """The :class:`Narrowing` as JSON."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How far a pass is, and its actors."""

    actors: Actors
    answered: int = 0
    """Rows answered for this driver."""
    chunks_left: int = 0
    """About how many chunks have no result yet."""
    chunks_in_flight: int = 0
    """How many of them actors have begun."""
    actor_seconds: float = 0.0
    """The time of actors that the pass has used; see :meth:`Desk.look`."""
    suspects: tuple[Suspect, ...] = ()
    unstarted: tuple[str, ...] = ()
    """Where and why the model does not start, a sentence for each actor."""
    pause: str = ""
    """The reason why the model of an actor waits."""


@dataclass(frozen=True, kw_only=True)
class Handout:
    """A row of the dataset: a call for a chunk of a pass, which is cut when an actor begins it."""

    index: int
    """Place in the dataset."""
    pass_id: str


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A chunk that an actor begins, and what is known of it."""

    chunk: Chunk
    known: Narrowing | None = None
    """Knowledge of earlier processes; ``None`` where none has begun it."""
    written: frozenset[int] = frozenset()
    """The places of the rows that earlier calls wrote."""
    result: bytes | None = None
    """The rows that were written last, where it is done."""


class Written(NamedTuple):
    """Rows of a chunk that are written: all that were left of it, or the part that has ended."""

    name: str
    """No other part of the pass has it."""
    rows: bytes
    """Rows of ``commits.WRITTEN`` as an Arrow stream."""
