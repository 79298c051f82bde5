"""The messages between a driver, the work queue of its dataset and the actors, and the state of a work queue."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from curation.config import ActorsConfig
from curation.errors import RunFailedError
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray


@dataclass(frozen=True, kw_only=True)
class Look:
    """The progress of a pass, and its actors."""

    actors: Actors
    answered: int = 0
    chunks_left: int = 0
    chunks_in_flight: int = 0
    actor_seconds: float = 0.0
    """Actors' time that the pass has used, in seconds; see :meth:`WorkQueue.look`."""
    suspects: tuple[Chunk, ...] = ()
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
    ticket: int
    """Number that the call's messages about the chunk carry, so that those of a process that is late are known."""


class Part(NamedTuple):
    """Rows that a call wrote."""

    rows: bytes
    """Rows of ``commits.WRITTEN`` as an Arrow stream."""
    actor: str
    seconds: float
    """The call's share of the actor's time, without the start of a model; calls that work at once share equally."""


class Taken(NamedTuple):
    """Results that a driver takes from the work queue."""

    parts: list[Part]
    error: bytes | None = None


@dataclass(eq=False)
class Starts:
    """The starts of actors' processes in one pass: failures in a row by actor, and reasons why the model did not start.

    A model that does not start in one process may start in the next one, on another node or on the same one when its
    memory is free. So a failed start counts as a death of the process.
    """

    most: int
    """Maximum number of restarts of an actor in a row without any work done."""
    num: Counter[str] = field(default_factory=Counter)
    """Number of starts of each actor since it last finished any work."""
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Reasons why the model did not start since then, by actor and node; the last one stands last."""

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

    def got_on(self, actor: str) -> None:
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
class OpenCall:
    """A call that has not ended."""

    call: Call
    chunk: Chunk | None = None
    """Current chunk, or ``None`` while no actor works on one."""
    ticket: int = 0
    """Number of chunks begun."""
    written: set[int] = field(default_factory=set)
    """Indices of the chunk's rows that are written."""
    actor: "KnownActor | None" = None
    since: float | None = None
    """Time at which the call's first chunk was begun."""
    begun: float = 0.0
    seconds: float = 0.0
    """Share of the actor's time since the call's last part."""
    answered: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether its chunk was queued again, because its actor is silent."""
        return self.since is not None and self.chunk is None


@dataclass(eq=False)
class OpenPass:
    """An open pass."""

    id: str
    actors: ActorsConfig
    jobs: "list[ray.ObjectRef[Any]]"
    """Reference to its job, and to the versions of the driver's packages, which nodes that join later must have too."""
    rows: OpenRows
    cutter: Cutter
    starts: Starts
    waiting: deque[Chunk] = field(default_factory=deque)
    given_up: deque[Chunk] = field(default_factory=deque)
    """Poison rows, which become error rows last: a model that kills every process fails the pass before."""
    calls: dict[int, OpenCall] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    """Written rows that the driver has not taken yet."""
    num_taken: int = 0
    error: bytes | None = None
    answered: int = 0
    actor_seconds: float = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a chunk waits for an actor."""
        return bool(self.waiting or self.rows.left or self.given_up)

    @property
    def is_at_work(self) -> bool:
        """Whether a call works on a chunk."""
        return any(opened.chunk is not None for opened in self.calls.values())


@dataclass(eq=False)
class KnownActor:
    """An actor, with the state of its last process."""

    node: str
    pid: int
    calls: set[OpenCall] = field(default_factory=set)
    heard: float = field(default_factory=time.monotonic)
    charged: float = field(default_factory=time.monotonic)
    """Time up to which the actor's time is charged to passes."""
    pause: str = ""
    is_ended: bool = False
    """Whether the work queue has ended the process since its last report."""
