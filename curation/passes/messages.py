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
    """A pass's facts that every process knows, besides its job."""

    id: str
    table: str
    """The URI of the table that the pass fills; a pass of the next driver has the same one."""
    versions: Mapping[str, str]
    """Versions of the driver's packages, which an actor on a node that joined later must have too."""
    actors: ActorsConfig


@dataclass(frozen=True, kw_only=True)
class Look:
    """The progress of a pass, and its actors."""

    actors: Actors
    answered: int = 0
    """Number of rows answered for this driver."""
    chunks_left: int = 0
    """Estimated number of chunks without a result."""
    chunks_in_flight: int = 0
    """Number of chunks that actors have begun."""
    actor_seconds: float = 0.0
    """Actors' time that the pass has used, in seconds; see :meth:`WorkQueue.look`."""
    suspects: tuple[Suspect, ...] = ()
    unstarted: tuple[str, ...] = ()
    """Messages on where and why the model does not start, one per actor."""
    pause: str = ""
    """Reason why the model of an actor waits, or empty."""


@dataclass(frozen=True)
class Call:
    """A row of the dataset: a call for chunks of a pass, which are cut as an actor begins them."""

    index: int
    """Index of the row in the dataset."""
    pass_id: str


class Begun(NamedTuple):
    """A chunk that an actor begins."""

    chunk: Chunk
    search: PoisonSearch
    """Rows to work on, and what is known of them."""
    num_written: int = 0
    """Number of rows that earlier calls wrote."""


class Taken(NamedTuple):
    """Results that a driver takes from the work queue."""

    parts: list[bytes]
    """Rows of ``commits.WRITTEN`` as Arrow streams."""
    error: bytes | None = None
    """Pickled error of a call, which ends the pass."""
