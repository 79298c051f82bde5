"""Knowledge of a work queue: passes under way, their chunks and calls, actors and the starts of their processes."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from curation.errors import RunFailedError
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.passes.messages import Call, Pass
from curation.passes.poison import PoisonSearch

if TYPE_CHECKING:
    import ray


@dataclass(eq=False)
class Starts:
    """The starts of actors' processes in one pass: how many in a row got nothing done, and why no model started.

    A model that does not start in one process may start in the next one, on another node or on the same one when its
    memory is free. So it counts as a death of the process.
    """

    most: int
    """How often in a row an actor may be restarted before it has done anything."""
    num: Counter[str] = field(default_factory=Counter)
    """Starts of each actor since it last got something done."""
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why the model did not start, by actor and node, since then."""

    def begin(self, actor: str) -> None:
        """Record that a process of an actor begins the pass.

        Raises:
            RunFailedError: the actor was started too often without getting anything done.
        """
        num = self.num[actor]
        if num > self.most and actor in self.refused:
            nodes = self.refused[actor]
            raise RunFailedError(
                f"the model did not start on {', '.join(nodes)} in {num} tries in a row (teacher.actors.max_restarts: "
                f"{self.most}); mend the node or take it away, or ask for a smaller model; the last try: "
                f"{[*nodes.values()][-1]}"
            )
        if num > self.most:
            raise RunFailedError(
                f"an actor's process died {num} times in a row before it had done anything "
                f"(teacher.actors.max_restarts: {self.most}); its last lines are in Ray's logs, worker-*.err"
            )
        self.num[actor] += 1

    def refuse(self, actor: str, node: str, why: str) -> None:
        """Record that the model did not start in an actor's process, which ends."""
        nodes = self.refused.setdefault(actor, {})
        nodes.pop(node, None)  # the last one stands last
        nodes[node] = why

    def got_on(self, actor: str) -> None:
        """Record that an actor's process has done something."""
        del self.num[actor]
        self.refused.pop(actor, None)

    @property
    def words(self) -> tuple[str, ...]:
        """A sentence for each actor whose model did not start in its last try."""
        return tuple(
            f"the model did not start on {node}, try {self.num[actor]} of {self.most + 1}: {why}"
            for actor, nodes in self.refused.items()
            for node, why in [[*nodes.items()][-1]]
        )


@dataclass(eq=False)
class QueuedChunk:
    """A chunk that is to be worked on."""

    chunk: Chunk
    search: PoisonSearch
    written: set[int] = field(default_factory=set)
    """The places of the rows that calls wrote which go on."""
    version: int = 0
    """How often rows were written."""
    calls: "set[OpenCall]" = field(default_factory=set)
    """Two, where one is silent."""


@dataclass(eq=False)
class OpenCall:
    """A call that has not ended."""

    call: Call
    work: QueuedChunk | None = None
    """``None`` until an actor begins a chunk."""
    version: int = 0
    """Version of the work when the call began, or wrote last: another one means that a second call wrote rows."""
    actor: "KnownActor | None" = None
    since: float | None = None
    """When its first chunk was begun."""
    begun: float = 0.0
    answered: int = 0
    is_replaced: bool = False
    """Whether its chunk was handed out again, as its actor is silent."""


@dataclass(eq=False)
class OpenPass:
    """A pass under way."""

    this: Pass
    jobs: "list[ray.ObjectRef[Any]]"
    rows: OpenRows
    cutter: Cutter
    starts: Starts
    waiting: deque[QueuedChunk] = field(default_factory=deque)
    """Chunks to hand out before new ones are cut."""
    calls: dict[int, OpenCall] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    """Rows that were written, until the driver has taken them."""
    num_taken: int = 0
    """The number of parts that the driver has taken."""
    error: bytes | None = None
    answered: int = 0
    actor_seconds: float = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a chunk waits for an actor."""
        return bool(self.waiting or self.rows.left)


@dataclass(eq=False)
class KnownActor:
    """An actor, as its last process was heard."""

    node: str
    pid: int
    calls: set[OpenCall] = field(default_factory=set)
    """Calls that have begun a chunk."""
    heard: float = field(default_factory=time.monotonic)
    charged: float = field(default_factory=time.monotonic)
    """Until when its time is divided among passes."""
    pause: str = ""
    is_ended: bool = False
    """Whether its process was ended from here since it was heard last."""
