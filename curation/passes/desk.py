"""The desk of a dataset of chunks: which chunk is next, who works on it, how far he is, and what is known of it.

An actor of Ray on the driver's node, which driver and actors ask. The dataset reads its rows from here, one by one and
for as long as the driver likes, so that one dataset serves pass after pass. An actor reports every second how many rows
it has answered: that is the progress within a chunk, and an actor that is silent is frozen or its process is gone.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from curation.cluster import nodes
from curation.passes.bisection import Narrowing
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.passes.messages import Begun, Handout, Look, Pass, Suspect, Written
from curation.passes.starts import Starts
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray

BEAT_SECONDS = 1.0
"""The interval at which an actor reports."""
SILENT_SECONDS = 10.0
"""An actor that has not reported for so long is not counted as one that runs."""
STUCK_SECONDS = 30.0
"""Chunks of an actor that has been silent for so long are handed out once more; who answers first has answered."""
AHEAD = 2
"""Chunks handed out for each one that an actor works on: another one waits at it, so that it is never idle."""
KEPT = 64
"""The number of a pass's last chunks whose result is kept; Ray replays no older calls, and a driver that is stopped
has received all older ones."""


@dataclass(eq=False)
class _Handed:
    handout: Handout
    chunk: Chunk | None = None
    """``None`` until an actor begins it."""
    actor: str | None = None
    """Who has begun it."""
    begun: float = 0.0
    answered: int = 0
    is_given_again: bool = False


@dataclass(eq=False)
class _UnderWay:
    """A pass."""

    this: Pass
    jobs: "list[ray.ObjectRef[Any]]"
    rows: OpenRows
    cutter: Cutter
    starts: Starts
    again: deque[Chunk] = field(default_factory=deque)
    """Chunks to hand out before new ones are cut."""
    handed: dict[int, _Handed] = field(default_factory=dict)
    known: dict[str, Narrowing] = field(default_factory=dict)
    """Knowledge by the name of a chunk, where a process has begun it."""
    written: dict[str, set[int]] = field(default_factory=dict)
    """The places of the rows that calls wrote which go on, by the name of their chunk."""
    parts: list[Written] = field(default_factory=list)
    """Rows that such calls wrote, until the driver has taken them."""
    num_taken: int = 0
    """The number of parts that the driver has taken."""
    finished: "OrderedDict[int, tuple[Chunk, bytes]]" = field(default_factory=OrderedDict)
    """Chunks written last, by their places in the dataset."""
    answered: int = 0
    actor_seconds: float = 0.0


@dataclass(eq=False)
class _Actor:
    node: str
    pid: int
    heard: float = field(default_factory=time.monotonic)
    pause: str = ""
    is_ended: bool = False
    """Whether its process was ended from here since it was heard last."""

    @property
    def silence(self) -> float:
        return time.monotonic() - self.heard


class Desk:
    """The desk; its methods run one at a time."""

    def __init__(self, *, wanted: int, calls: int) -> None:
        """``wanted`` actors are started at first, each of which works on ``calls`` chunks at once."""
        self._wanted, self._calls = wanted, calls
        self._passes: dict[str, _UnderWay] = {}
        self._fed: dict[int, _Handed] = {}
        self._num_fed = 0
        self._actors: dict[str, _Actor] = {}
        self._num_seen = 0
        """The number of actors that have ever started."""
        self._deaths = 0
        self._charged = time.monotonic()
        self._is_closed = False
        self._news = asyncio.Condition()
        self._watch: asyncio.Task[None] | None = None

    # What the driver asks

    async def open(
        self,
        this: Pass,
        jobs: "list[ray.ObjectRef[Any]]",
        rows: OpenRows,
        cutter: Cutter,
        suspects: Sequence[Suspect],
    ) -> None:
        """Begin a pass; ``suspects`` are those of an earlier driver."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look_after())
        self._divide()  # the time since the last pass is not this one's
        mine = self._passes[this.id] = _UnderWay(this, jobs, rows, cutter, Starts(this.actors.max_restarts))
        for suspect in suspects:
            if len(places := rows.set_apart(suspect.chunk)):
                chunk = Chunk.of(suspect.chunk.offsets[places])
                mine.again.append(chunk)
                mine.known[chunk.name] = Narrowing.from_json(suspect.known).only(places.tolist())
        await self._tell()

    async def take(self, pass_id: str, num_taken: int) -> list[Written]:
        """Return what calls wrote that go on, but for the first ``num_taken`` parts, which the driver has."""
        if (mine := self._passes.get(pass_id)) is None:
            return []
        del mine.parts[: num_taken - mine.num_taken]
        mine.num_taken = num_taken
        return list(mine.parts)

    async def end(self, pass_id: str) -> list[Written]:
        """End a pass, also before all of its chunks have a result; return what was written last."""
        if (mine := self._passes.pop(pass_id, None)) is None:
            return []
        self._divide()
        for index in mine.handed:
            self._fed.pop(index, None)
        await self._tell()
        return [*mine.parts, *(Written(chunk.name, rows) for chunk, rows in mine.finished.values())]

    async def look(self, pass_id: str | None) -> Look:
        """How far a pass is, and which actors there are.

        Its time of actors: an actor counts from the start of its process on. Its time is divided among the chunks that
        it has, and an idle actor's among all passes under way; between two passes nobody is charged.
        """
        self._divide()
        living = self._living()
        actors = Actors(
            running=len(living),
            pending=max(0, self._wanted - self._num_seen),
            restarting=len(self._actors) - len(living),
            deaths=self._deaths,
        )
        mine = self._passes.get(pass_id or "")
        if mine is None:
            return Look(actors=actors)
        handed = [given for given in mine.handed.values() if given.chunk is not None and not given.is_given_again]
        return Look(
            actors=actors,
            answered=mine.answered + sum(given.answered for given in handed),
            chunks_left=len(handed) + len(mine.again) + mine.cutter.chunks(mine.rows.left),
            chunks_in_flight=sum(given.actor is not None for given in handed),
            actor_seconds=mine.actor_seconds,
            unstarted=mine.starts.words,
            pause=next((known.pause for known in self._actors.values() if known.pause), ""),
            suspects=tuple(
                Suspect(chunk=given.chunk, known=known.to_json())
                for given in handed
                if given.chunk and (known := mine.known.get(given.chunk.name)) is not None and not known.is_whole
            ),
        )

    async def close(self) -> bool:
        """Hand nothing out any more; whether nothing is under way."""
        self._is_closed = True
        await self._tell()
        return not any(given.actor for mine in self._passes.values() for given in mine.handed.values())

    # What the dataset asks

    async def next(self, index: int) -> Handout | None:
        """The dataset's row at this place, as soon as there is one; None at the end.

        Ray may read all of them again, from the first one on.
        """
        async with self._news:
            while True:
                if index in self._fed:
                    return self._fed[index].handout
                if index < self._num_fed:  # done: Ray drops what it has already had
                    return Handout(index=index, pass_id="")
                if self._is_closed:
                    return None
                if (handout := self._hand_out(index)) is not None:
                    return handout
                await self._news.wait()

    def _hand_out(self, index: int) -> Handout | None:
        """A call for the pass with the fewest: a small one beside a large one does not wait for all of that."""
        at_once = self._calls * self._num_actors
        under_way = sum(not given.is_given_again for given in self._fed.values())
        waiting = [mine for mine in self._passes.values() if mine.again or mine.rows.left]
        if not waiting or under_way >= AHEAD * at_once:
            return None
        mine = min(waiting, key=lambda mine: len(mine.handed))
        handout = Handout(index=index, pass_id=mine.this.id)
        self._fed[index] = mine.handed[index] = _Handed(handout)
        self._num_fed = index + 1
        return handout

    # What an actor says

    async def start(self, actor: str, node: str, pid: int) -> None:
        """A process of an actor has started."""
        self._divide()
        if actor in self._actors:
            self._deaths += 1
        else:
            self._num_seen += 1
        self._actors[actor] = _Actor(node, pid)
        await self._tell()

    async def beat(self, actor: str, answered: Mapping[int, int], pause: str = "") -> None:
        """An actor's process lives, has answered so many rows of each chunk, and may say why its model waits."""
        if (known := self._actors.get(actor)) is not None:
            known.heard, known.is_ended, known.pause = time.monotonic(), False, pause
        for index, rows in answered.items():
            if (given := self._fed.get(index)) is not None:
                given.answered = rows

    async def job(self, pass_id: str, actor: str) -> "tuple[Pass, list[ray.ObjectRef[Any]]] | None":
        """A pass for a process that does not know it; None where it has ended.

        Raises:
            RunFailedError: the actor was started too often without getting anything done.
        """
        if (mine := self._passes.get(pass_id)) is None:
            return None
        mine.starts.begin(actor)
        return mine.this, mine.jobs

    async def unstarted(self, pass_id: str, actor: str, node: str, why: str) -> None:
        """The model of a pass did not start in an actor's process on a node, and the process ends."""
        if (mine := self._passes.get(pass_id)) is not None:
            mine.starts.refuse(actor, node, why)

    async def begin(self, handout: Handout, actor: str, slots: int | None) -> Begun | None:
        """Return the chunk for a call that begins, the same one for a call that begins anew; ``None``: none is left.

        The actor's model answers ``slots`` rows side by side (:meth:`Cutter.rows`).
        """
        if (mine := self._passes.get(handout.pass_id)) is None:
            return None
        if (given := mine.handed.get(handout.index)) is None:
            if (done := mine.finished.get(handout.index)) is None:
                return None
            return Begun(chunk=done[0], result=done[1])
        self._divide()
        given.chunk = given.chunk or self._next_chunk(mine, slots)
        if given.chunk is None:
            del mine.handed[handout.index], self._fed[handout.index]
            await self._tell()
            return None
        given.actor, given.begun, given.answered = actor, time.monotonic(), 0
        name = given.chunk.name
        written = frozenset(mine.written.get(name, ()))
        return Begun(chunk=given.chunk, known=mine.known.get(name), written=written)

    def _next_chunk(self, mine: _UnderWay, slots: int | None) -> Chunk | None:
        if mine.again:
            return mine.again.popleft()
        if not mine.rows.left:
            return None
        how_many = mine.cutter.rows(mine.rows.left, actors=self._num_actors, calls=self._calls, slots=slots)
        return mine.rows.take(how_many)

    async def keep(self, handout: Handout, chunk: str, known: Narrowing) -> None:
        """Record what is known of a chunk, before a process goes on with it."""
        if (mine := self._passes.get(handout.pass_id)) is not None and handout.index in mine.handed:
            mine.known[chunk] = known

    async def wrote(self, handout: Handout, places: list[int], rows: bytes) -> bool:
        """Take rows of a chunk that a call wrote which goes on; whether they are taken.

        They are not where another call has written some of them, since both may work on one chunk
        (``STUCK_SECONDS``): that one goes on, and this one has to end.
        """
        mine, given = self._call(handout)
        if mine is None or given is None or given.chunk is None:
            return False
        written = mine.written.setdefault(given.chunk.name, set())
        if not written.isdisjoint(places):
            return await self._leave(mine, given)
        mine.parts.append(Written(f"{given.chunk.name}.{len(written)}", rows))
        written.update(places)
        return True

    async def got_on(self, pass_id: str, actor: str) -> None:
        """An actor's process has done something."""
        if (mine := self._passes.get(pass_id)) is not None:
            mine.starts.got_on(actor)

    async def finish(self, handout: Handout, places: list[int], rows: bytes) -> bool:
        """Take the last rows of a chunk; whether they are taken: as of :meth:`wrote`."""
        mine, given = self._call(handout)
        if mine is None or given is None or (chunk := given.chunk) is None:
            return False
        if not mine.written.get(chunk.name, set()).isdisjoint(places):
            return await self._leave(mine, given)
        self._divide()
        num_rows = len(chunk.offsets)
        mine.answered += num_rows
        mine.cutter.learn(num_rows, time.monotonic() - given.begun)
        for index, other in list(mine.handed.items()):
            if other.chunk is not None and other.chunk.name == chunk.name:
                mine.finished[index] = chunk, rows
                del mine.handed[index], self._fed[index]
        while len(mine.finished) > KEPT:
            mine.finished.popitem(last=False)
        mine.known.pop(chunk.name, None)
        mine.written.pop(chunk.name, None)
        mine.again = deque(waiting for waiting in mine.again if waiting.name != chunk.name)
        await self._tell()
        return True

    def _call(self, handout: Handout) -> tuple[_UnderWay | None, _Handed | None]:
        mine = self._passes.get(handout.pass_id)
        return mine, None if mine is None else mine.handed.get(handout.index)

    async def _leave(self, mine: _UnderWay, left: _Handed) -> bool:
        """Take a call off its chunk, which another call goes on with: False."""
        index = left.handout.index
        del mine.handed[index], self._fed[index]
        for given in mine.handed.values():
            if given.chunk is not None and left.chunk is not None and given.chunk.name == left.chunk.name:
                given.is_given_again = False
        await self._tell()
        return False

    # What the desk does by itself

    async def _look_after(self) -> None:
        """Notice actors that are silent: end a process that is frozen, and hand out again what one does not do."""
        while not self._is_closed:
            await asyncio.sleep(BEAT_SECONDS)
            self._divide()
            for name, actor in list(self._actors.items()):
                if actor.silence <= SILENT_SECONDS:
                    continue
                has = [(mine, given) for mine, given in self._given() if given.actor == name]
                if not has:  # it idled, and the dataset has given it back
                    del self._actors[name]
                    continue
                hang_seconds = min(mine.this.actors.hang_seconds for mine, _ in has)
                if actor.silence > hang_seconds and not actor.is_ended:
                    actor.is_ended = True
                    nodes.end_process(actor.node, actor.pid, hang_seconds)
                for mine, given in has:
                    if actor.silence > STUCK_SECONDS and given.chunk is not None and not given.is_given_again:
                        given.is_given_again = True
                        mine.again.append(given.chunk)
            await self._tell()

    @property
    def _num_actors(self) -> int:
        return max(self._wanted, len(self._living()))

    def _living(self) -> list[_Actor]:
        return [actor for actor in self._actors.values() if actor.silence <= SILENT_SECONDS]

    def _given(self) -> Iterator[tuple[_UnderWay, _Handed]]:
        for mine in self._passes.values():
            for given in mine.handed.values():
                yield mine, given

    def _divide(self) -> None:
        """Divide the time since the last call among the passes; called before an actor comes, goes or gets a chunk."""
        now = time.monotonic()
        passed, self._charged = now - self._charged, now
        for name, actor in self._actors.items() if self._passes else ():
            if actor.silence <= SILENT_SECONDS:
                users = [mine for mine, given in self._given() if given.actor == name] or list(self._passes.values())
                for user in users:
                    user.actor_seconds += passed / len(users)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
