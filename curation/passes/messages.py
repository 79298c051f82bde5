"""The messages between a driver, the work queue of its dataset and the actors, and the state of a work queue."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from curation.config import ActorsConfig
from curation.errors import RunFailedError
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.passes.poison import PoisonSearch, Suspect
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass's facts that every process knows, besides its job."""

    id: str
    versions: Mapping[str, str]
    """Versions of the driver's packages, which an actor on a node that joined later must have too."""
    actors: ActorsConfig


@dataclass(frozen=True, kw_only=True)
class Look:
    """The progress of a pass, and its actors."""

    actors: Actors
    answered: int = 0
    chunks_left: int = 0
    chunks_in_flight: int = 0
    actor_seconds: float = 0.0  # actors' time that the pass has used, in seconds; see :meth:`WorkQueue.look`
    suspects: tuple[Suspect, ...] = ()
    unstarted: tuple[str, ...] = ()
    pause: str = ""


@dataclass(frozen=True)
class Call:
    """A row of the dataset: a call for chunks of a pass, which are cut as an actor begins them."""

    index: int
    pass_id: str


class Begun(NamedTuple):
    """A chunk that an actor begins."""

    chunk: Chunk
    search: PoisonSearch
    num_written: int = 0


class Taken(NamedTuple):
    """Results that a driver takes from the work queue."""

    parts: list[bytes]  # rows of ``commits.WRITTEN`` as Arrow streams
    error: bytes | None = None


@dataclass(eq=False)
class Starts:
    """The starts of actors' processes in one pass: failures in a row by actor, and reasons why the model did not start.

    A model that does not start in one process may start in the next one, on another node or on the same one when its
    memory is free. So a failed start counts as a death of the process.
    """

    most: int  # maximum number of restarts of an actor in a row without any work done
    num: Counter[str] = field(default_factory=Counter)  # number of starts of each actor since it last finished any work
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Reasons why the model did not start since then, by actor and node, the latest last."""

    def begin(self, actor: str) -> None:
        """Record that a process of an actor begins the pass; raise ``RunFailedError`` after too many without work."""
        if (num := self.num[actor]) > self.most:
            if nodes := self.refused.get(actor):
                raise RunFailedError(
                    f"the model did not start on {', '.join(nodes)} in {num} tries in a row "
                    f"(teacher.actors.max_restarts: {self.most}); mend the node or take it away, or ask for a smaller "
                    f"model; the last try: {[*nodes.values()][-1]}"
                )
            raise RunFailedError(
                f"an actor's process died {num} times in a row before it had done anything "
                f"(teacher.actors.max_restarts: {self.most}); its last lines are in Ray's logs, worker-*.err"
            )
        self.num[actor] += 1

    def refuse(self, actor: str, node: str, why: str) -> None:
        """Record that the model did not start in an actor's process, which ends."""
        nodes = self.refused.setdefault(actor, {})
        nodes.pop(node, None)
        nodes[node] = why

    def record_work(self, actor: str) -> None:
        """Record that an actor's process has done something."""
        del self.num[actor]
        self.refused.pop(actor, None)

    @property
    def words(self) -> tuple[str, ...]:
        """Messages on the actors whose model did not start in the last try, one per actor."""
        last = {actor: [*nodes.items()][-1] for actor, nodes in self.refused.items()}
        return tuple(
            f"the model did not start on {node}, try {self.num[actor]} of {self.most + 1}: {why}"
            for actor, (node, why) in last.items()
        )


@dataclass(eq=False)
class QueuedChunk:
    """A chunk that has no complete result yet."""

    chunk: Chunk
    search: PoisonSearch
    written: set[int] = field(default_factory=set)  # indices of the rows that calls wrote before finishing the chunk
    version: int = 0  # number of times that rows were written
    calls: "set[OpenCall]" = field(default_factory=set)
    """Calls that work on the chunk: more than one if an actor is silent."""


@dataclass(eq=False)
class OpenCall:
    """A call that has not ended."""

    call: Call
    work: QueuedChunk | None = None  # current chunk, or ``None`` while no actor works on one
    version: int = 0
    """Version of the chunk when the call began it or wrote last; if it differs, another call has written rows."""
    actor: "KnownActor | None" = None
    since: float | None = None  # time at which the call's first chunk was begun
    begun: float = 0.0
    answered: int = 0
    is_replaced: bool = False  # whether the chunk is queued again because the call's actor is silent


@dataclass(eq=False)
class OpenPass:
    """An open pass."""

    this: Pass
    jobs: "list[ray.ObjectRef[Any]]"
    rows: OpenRows
    cutter: Cutter
    starts: Starts
    waiting: deque[QueuedChunk] = field(default_factory=deque)
    calls: dict[int, OpenCall] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)  # written rows that the driver has not taken yet
    num_taken: int = 0
    error: bytes | None = None
    answered: int = 0
    actor_seconds: float = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a chunk waits for an actor."""
        return bool(self.waiting or self.rows.left)

    @property
    def is_at_work(self) -> bool:
        """Whether a call works on a chunk."""
        return any(opened.work is not None for opened in self.calls.values())


@dataclass(eq=False)
class KnownActor:
    """An actor, with the state of its last process."""

    node: str
    pid: int
    calls: set[OpenCall] = field(default_factory=set)
    heard: float = field(default_factory=time.monotonic)
    charged: float = field(default_factory=time.monotonic)  # time up to which the actor's time is charged to passes
    pause: str = ""
    is_ended: bool = False  # whether the work queue has ended the process since its last report
