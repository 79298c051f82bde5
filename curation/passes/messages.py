"""The messages between a driver, the work queue of its dataset, and the actors: passes, calls, chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from curation.config import ActorsConfig
from curation.passes.cutting import Chunk
from curation.passes.poison import PoisonSearch, Suspect
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
    """The time of actors that the pass has used; see :meth:`WorkQueue.look`."""
    suspects: tuple[Suspect, ...] = ()
    unstarted: tuple[str, ...] = ()
    """Where and why the model does not start, a sentence for each actor."""
    pause: str = ""
    """The reason why the model of an actor waits."""


@dataclass(frozen=True)
class Call:
    """A row of the dataset: a call for chunks of a pass, which are cut as an actor begins them."""

    index: int
    """Place in the dataset."""
    pass_id: str


class Begun(NamedTuple):
    """A chunk that an actor begins."""

    chunk: Chunk
    search: PoisonSearch
    """The rows to work on, and what is known of them."""
    num_written: int = 0
    """The number of rows that earlier calls wrote."""


class Taken(NamedTuple):
    """Results that a driver takes from the work queue."""

    parts: list[bytes]
    """Rows of ``commits.WRITTEN`` as Arrow streams."""
    error: bytes | None = None
    """The pickled error of a call, which ends the pass."""
