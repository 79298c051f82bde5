"""The work queue of a dataset, which assigns chunks to actors and records their progress.

The work queue is a Ray actor on the driver's node. The dataset reads its rows, which are calls for chunks, from the
queue one by one until the driver closes it, so that one dataset serves pass after pass. A call takes chunk after chunk:
one message brings the rows that it wrote and fetches the next chunk. Actors report how many rows they have answered,
which is the progress within a chunk; an actor without reports is frozen, or its process is gone.

The more actors there are, the longer a call lasts and the less often each actor reports, so that neither this process
nor the driver has more work with 2,000 actors than with 200.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from curation.cluster import nodes
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.passes.messages import Begun, Call, KnownActor, Look, OpenCall, OpenPass, Pass, QueuedChunk, Starts, Taken
from curation.passes.poison import PoisonSearch, Suspect
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray

BEAT_SECONDS = 1.0  # minimum interval between an actor's reports, in seconds
BEATS_PER_SECOND = 200
"""Maximum number of reports of all actors per second; the more actors, the less often each reports."""
CALLS_PER_SECOND = 10
"""Approximate number of calls that begin per second; Ray Data takes some milliseconds of the driver for each."""
SILENT_SECONDS = 10.0
"""Seconds without a report, if these are three intervals too, after which an actor does not count as running."""
STUCK_SECONDS = 30.0
"""Seconds without a report after which an actor's chunks are queued again; the first call to write rows wins."""
AHEAD = 2  # number of open calls for each call that an actor can work on, so that one waits and no actor is idle
TAKE_SECONDS = 0.5  # maximum seconds between a driver's requests for written rows


class WorkQueue:
    """The work queue; its methods run one at a time."""

    def __init__(self, *, wanted: int, calls: int) -> None:
        """Start with ``wanted`` actors, each of which works on ``calls`` chunks at once."""
        self._wanted, self._calls = wanted, calls
        self._passes: dict[str, OpenPass] = {}
        self._num_calls = 0
        self._actors: dict[str, KnownActor] = {}
        self._num_actors = wanted
        self._num_seen = 0
        self._deaths = 0
        self._is_closed = False
        self._news = asyncio.Condition()
        self._watch: asyncio.Task[None] | None = None

    # Called by the driver

    async def open(
        self, this: Pass, jobs: "list[ray.ObjectRef[Any]]", rows: OpenRows, cutter: Cutter, suspects: Sequence[Suspect]
    ) -> None:
        """Begin a pass; ``suspects`` are those of an earlier driver."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look_after())
        self._charge()  # the time since the last pass is not charged to this one
        mine = self._passes[this.id] = OpenPass(this, jobs, rows, cutter, Starts(this.actors.max_restarts))
        for chunk, known in suspects:
            if len(places := rows.set_apart(chunk)):
                search = PoisonSearch.from_json(known).only(places.tolist())
                mine.waiting.append(QueuedChunk(Chunk.of(chunk.offsets[places]), search))
        await self._tell()

    async def take(self, pass_id: str, num_taken: int) -> Taken:
        """Return the parts after the first ``num_taken``; wait up to ``TAKE_SECONDS`` for more if there can be any."""
        mine = self._passes[pass_id]
        until = time.monotonic() + TAKE_SECONDS
        while (left := until - time.monotonic()) > 0 and mine.error is None and (mine.has_work or mine.is_at_work):
            async with self._news:
                try:
                    await asyncio.wait_for(self._news.wait(), left)
                except TimeoutError:
                    break
        del mine.parts[: num_taken - mine.num_taken]
        mine.num_taken = num_taken
        return Taken(list(mine.parts), mine.error)

    async def end(self, pass_id: str, num_taken: int) -> list[bytes]:
        """End a pass, even before all chunks have a result, and return the parts that the driver does not have."""
        if (mine := self._passes.get(pass_id)) is None:
            return []
        self._charge()
        for opened in mine.calls.values():
            self._leave(opened)
        del self._passes[pass_id]
        await self._tell()
        return mine.parts[num_taken - mine.num_taken :]

    async def look(self, pass_id: str | None) -> Look:
        """Return the progress of a pass and the numbers of actors.

        An actor's time counts from the start of its process. It is charged to the passes of the actor's chunks; that
        of an idle actor is charged to all open passes, and to none between two passes.
        """
        self._charge()
        living = sum(map(self._is_alive, self._actors.values()))
        actors = Actors(
            running=living,
            pending=max(0, self._wanted - self._num_seen),
            restarting=len(self._actors) - living,
            deaths=self._deaths,
        )
        mine = self._passes.get(pass_id or "")
        if mine is None:
            return Look(actors=actors)
        begun = [call for call in mine.calls.values() if call.work is not None and not call.is_replaced]
        works = [*mine.waiting, *(call.work for call in begun if call.work is not None)]
        return Look(
            actors=actors,
            answered=mine.answered + sum(call.answered for call in begun),
            chunks_left=len(works) + mine.cutter.chunks(mine.rows.left),
            chunks_in_flight=len(begun),
            actor_seconds=mine.actor_seconds,
            unstarted=mine.starts.words,
            pause=next((actor.pause for actor in self._actors.values() if actor.pause), ""),
            suspects=tuple(Suspect(work.chunk, work.search.to_json()) for work in works if not work.search.is_whole),
        )

    async def close(self) -> bool:
        """Stop assigning calls, and return whether no chunk is being worked on."""
        self._is_closed = True
        await self._tell()
        return not any(mine.is_at_work for mine in self._passes.values())

    # Called by the dataset

    async def next(self, index: int) -> Call | None:
        """Return the dataset's row at this index as soon as there is one, or None at the end.

        Ray may read all rows again, from the first one on. A new call is for the pass with the fewest calls, so that a
        small pass beside a large one does not wait for all of it.
        """
        async with self._news:
            while True:
                if index < self._num_calls:  # Ray ignores a row that it has had; an ended call ends again at once
                    same = (mine.calls[index].call for mine in self._passes.values() if index in mine.calls)
                    return next(same, Call(index, ""))
                if self._is_closed:
                    return None
                waiting = [mine for mine in self._passes.values() if mine.has_work]
                open_calls = (call for mine in self._passes.values() for call in mine.calls.values())
                num_calls = sum(not call.is_replaced for call in open_calls)
                if waiting and num_calls < AHEAD * self._calls * self._num_actors:
                    mine = min(waiting, key=lambda mine: len(mine.calls))
                    mine.calls[index] = OpenCall(call := Call(index, mine.this.id))
                    self._num_calls = index + 1
                    return call
                await self._news.wait()

    # Called by actors

    async def start(self, actor: str, node: str, pid: int) -> None:
        """Record that a process of an actor has started."""
        known = self._actors.get(actor)
        if known is None:
            self._num_seen += 1
            self._actors[actor] = KnownActor(node, pid)
        else:
            self._deaths += 1
            self._charge(known)
            self._actors[actor] = KnownActor(node, pid, known.calls)
            for call in known.calls:
                call.actor = self._actors[actor]
        self._num_actors = max(self._num_actors, len(self._actors))
        await self._tell()

    async def beat(self, actor: str, answered: Mapping[Call, int], pause: str = "") -> float:
        """Record rows answered of each call's chunk and why the model waits; return the seconds to the next report."""
        if (known := self._actors.get(actor)) is not None:
            known.heard, known.is_ended, known.pause = time.monotonic(), False, pause
        for call, rows in answered.items():
            if (mine := self._passes.get(call.pass_id)) is not None and call.index in mine.calls:
                mine.calls[call.index].answered = rows
        return self._beat_seconds

    async def job(self, pass_id: str, actor: str) -> "tuple[Pass, list[ray.ObjectRef[Any]]] | None":
        """Return a pass for a process that does not know it, or None if the pass has ended; see :class:`Starts`."""
        if (mine := self._passes.get(pass_id)) is None:
            return None
        mine.starts.begin(actor)
        return mine.this, mine.jobs

    async def unstarted(self, pass_id: str, actor: str, node: str, why: str) -> None:
        """Record that a pass's model did not start in an actor's process on a node, and that the process ends."""
        if (mine := self._passes.get(pass_id)) is not None:
            mine.starts.refuse(actor, node, why)

    async def fail(self, pass_id: str, error: bytes) -> None:
        """End a pass with the pickled error of a call."""
        if (mine := self._passes.get(pass_id)) is not None:
            mine.error = mine.error or error
            await self._tell()

    async def begin(self, call: Call, actor: str, slots: int | None, *, is_last: bool = False) -> Begun | None:
        """Return a call's next chunk, the same one for a call that begins anew, or ``None`` to end the call.

        A call ends if no chunk is left, if it has lasted long, if another pass waits, or if ``is_last``. The actor's
        model answers ``slots`` rows concurrently (:meth:`Cutter.rows`).
        """
        if (found := self._find(call)) is None:
            return None
        mine, opened = found
        now = time.monotonic()
        if opened.since is not None:
            lasts = self._num_actors * self._calls / CALLS_PER_SECOND
            fewer = (other for other in self._passes.values() if len(other.calls) + 1 < len(mine.calls))
            is_last = is_last or now - opened.since > lasts or any(other.has_work for other in fewer)
        if opened.work is None and not is_last:
            if mine.waiting:
                opened.work = mine.waiting.popleft()
            else:
                num_rows = mine.cutter.rows(mine.rows.left, actors=self._num_actors, calls=self._calls, slots=slots)
                if (chunk := mine.rows.take(num_rows)) is not None:
                    opened.work = QueuedChunk(chunk, PoisonSearch.of(len(chunk.offsets)))
        if (work := opened.work) is None:
            del mine.calls[call.index]
            await self._tell()
            return None
        work.calls.add(opened)
        if opened.actor is not None:
            opened.actor.calls.discard(opened)
        if (known := self._actors.get(actor)) is not None:
            self._charge(known)
            known.calls.add(opened)
        opened.since = opened.since or now
        opened.actor, opened.begun, opened.answered, opened.version = known, now, len(work.written), work.version
        search = work.search
        search.drop(work.written)
        lost = bool(search.under_way) and (search.pass_id != mine.this.id or _is_gone(search.node))
        search.begin(max_row_retries=mine.this.actors.max_row_retries, died_with_node=lost)
        search.pass_id, search.node = mine.this.id, "" if known is None else known.node
        if search.is_whole:  # in other chunks, actors record each piece when they begin it (keep)
            search.under_way = [place for piece in search.suspect for place in piece]
        return Begun(work.chunk, search, len(work.written))

    async def keep(self, call: Call, actor: str, chunk: str, search: PoisonSearch) -> None:
        """Record the state of a chunk's poison search, before a process begins a piece of the chunk."""
        if (found := self._find(call)) is not None and (work := found[1].work) is not None and work.chunk.name == chunk:
            if work.search.under_way:
                found[0].starts.record_work(actor)
            work.search = search

    async def wrote(self, call: Call, actor: str, chunk: str, places: list[int], rows: bytes) -> bool:
        """Accept rows of an unfinished chunk that a call wrote, and return whether they are accepted.

        They are refused if another call that works on the same chunk (``STUCK_SECONDS``) has written rows since; the
        other call then keeps the chunk, and this one leaves it.
        """
        if (taken := self._take(call, chunk, rows)) is None:
            return False
        mine, opened, work = taken
        mine.starts.record_work(actor)
        work.written.update(places)
        work.version += 1
        opened.version = work.version
        return True

    async def finish(
        self, call: Call, actor: str, chunk: str, rows: bytes, slots: int | None, *, is_last: bool
    ) -> Begun | None:
        """Accept a chunk's last rows unless another call wrote some (:meth:`wrote`); return the next :meth:`begin`."""
        if (taken := self._take(call, chunk, rows)) is not None:
            mine, opened, work = taken
            num_rows = len(work.chunk.offsets)
            mine.answered += num_rows
            mine.cutter.learn(num_rows, time.monotonic() - opened.begun)
            if work.search.under_way:  # else the rows were only given up
                mine.starts.record_work(actor)
            for other in list(work.calls):
                self._leave(other)
            if work in mine.waiting:
                mine.waiting.remove(work)
            if not mine.has_work:
                await self._tell()  # the pass may be complete
        return await self.begin(call, actor, slots, is_last=is_last)

    def _take(self, call: Call, chunk: str, rows: bytes) -> tuple[OpenPass, OpenCall, QueuedChunk] | None:
        """Accept rows of a call's chunk, or return ``None`` if another call has the chunk."""
        if (found := self._find(call)) is None or (work := found[1].work) is None or work.chunk.name != chunk:
            return None
        mine, opened = found
        if opened.version != work.version:
            self._leave(opened)
            return None
        mine.parts.append(rows)
        return mine, opened, work

    def _find(self, call: Call) -> tuple[OpenPass, OpenCall] | None:
        mine = self._passes.get(call.pass_id)
        opened = None if mine is None else mine.calls.get(call.index)
        return None if mine is None or opened is None else (mine, opened)

    def _leave(self, opened: OpenCall) -> None:
        """Detach a call from its chunk."""
        if opened.work is not None:
            opened.work.calls.discard(opened)
            for other in opened.work.calls:
                other.is_replaced = False
        if opened.actor is not None:
            self._charge(opened.actor)
            opened.actor.calls.discard(opened)
        opened.work, opened.actor, opened.is_replaced = None, None, False

    # Tasks and state of the work queue itself

    async def _look_after(self) -> None:
        """Watch for silent actors: end frozen processes, and queue the chunks of silent actors again."""
        while not self._is_closed:
            await asyncio.sleep(BEAT_SECONDS)
            self._charge()
            for name, actor in list(self._actors.items()):
                if self._is_alive(actor):
                    continue
                silence = time.monotonic() - actor.heard
                has = [(self._passes[opened.call.pass_id], opened) for opened in actor.calls]
                if not has:  # it was idle, and the dataset has released it
                    del self._actors[name]
                    continue
                hang_seconds = min(mine.this.actors.hang_seconds for mine, _ in has)
                if silence > hang_seconds and not actor.is_ended:
                    actor.is_ended = True
                    nodes.end_process(actor.node, actor.pid, hang_seconds)
                for mine, opened in has:
                    if silence > STUCK_SECONDS and opened.work is not None and not opened.is_replaced:
                        opened.is_replaced = True
                        mine.waiting.append(opened.work)
            self._num_actors = max(self._wanted, sum(map(self._is_alive, self._actors.values())))
            await self._tell()

    @property
    def _beat_seconds(self) -> float:
        return max(BEAT_SECONDS, len(self._actors) / BEATS_PER_SECOND)

    def _is_alive(self, actor: KnownActor) -> bool:
        return time.monotonic() - actor.heard <= max(SILENT_SECONDS, 3 * self._beat_seconds)

    def _charge(self, *actors: KnownActor) -> None:
        """Charge the time of some actors, or of all, to passes; call it before an actor gets or leaves a chunk."""
        now = time.monotonic()
        for actor in actors or self._actors.values():
            passed, actor.charged = now - actor.charged, now
            users = [self._passes[opened.call.pass_id] for opened in actor.calls] or list(self._passes.values())
            for user in users if self._is_alive(actor) else ():
                user.actor_seconds += passed / len(users)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def _is_gone(node: str) -> bool:
    """Return whether a node has left the cluster; False for an empty name."""
    return bool(node) and all(living["NodeID"] != node for living in nodes.list_living())
