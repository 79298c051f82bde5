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

import numpy as np

from curation.cluster import nodes
from curation.config import AskConfig
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.passes.messages import Begun, Call, KnownActor, Look, OpenCall, OpenPass, Part, Starts, Taken
from curation.passes.poison import divide_suspect
from curation.telemetry.standing import Actors

if TYPE_CHECKING:
    import ray

BEAT_SECONDS = 1.0
"""Minimum interval between an actor's reports, in seconds."""
BEATS_PER_SECOND = 200
"""Maximum number of reports of all actors per second; the more actors, the less often each reports."""
CALLS_PER_SECOND = 10
"""Approximate number of calls that begin per second; Ray Data takes some milliseconds of the driver for each."""
SILENT_SECONDS = 10.0
"""Seconds without a report, if these are three intervals too, after which an actor does not count as running."""
STUCK_SECONDS = 30.0
"""Seconds without a report after which an actor's chunks are queued again; what it still writes of them is refused."""
AHEAD = 2
"""Number of calls per call that an actor can work on, so that another one waits and no actor is idle."""
TAKE_SECONDS = 0.5
"""Maximum seconds between a driver's requests for written rows."""


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

    # What the driver asks

    async def open(
        self,
        pass_id: str,
        asked: AskConfig,
        jobs: "list[ray.ObjectRef[Any]]",
        rows: OpenRows,
        suspects: Sequence[Chunk] = (),
    ) -> None:
        """Begin a pass whose chunks and actors are as configured by ``asked``; ``suspects`` are an earlier driver's."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look_after())
        self._charge()  # the time since the last pass is not this one's
        actors = asked.actors
        mine = self._passes[pass_id] = OpenPass(pass_id, actors, jobs, rows, Cutter(asked), Starts(actors.max_restarts))
        for suspect in suspects:
            if (chunk := rows.set_apart(suspect)) is not None:
                (mine.given_up if chunk.is_poison else mine.waiting).append(chunk)
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

    async def end(self, pass_id: str, num_taken: int) -> list[Part]:
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
        begun = [call for call in mine.calls.values() if call.chunk is not None]
        chunks = [*mine.waiting, *mine.given_up, *(call.chunk for call in begun if call.chunk is not None)]
        return Look(
            actors=actors,
            answered=mine.answered + sum(call.answered for call in begun),
            chunks_left=len(chunks) + mine.cutter.chunks(mine.rows.left),
            chunks_in_flight=len(begun),
            actor_seconds=mine.actor_seconds,
            unstarted=mine.starts.words,
            pause=next((actor.pause for actor in self._actors.values() if actor.pause), ""),
            suspects=tuple(chunk for chunk in chunks if chunk.is_suspect),
        )

    async def close(self) -> bool:
        """Stop assigning calls, and return whether no chunk is being worked on."""
        self._is_closed = True
        await self._tell()
        return not any(mine.is_at_work for mine in self._passes.values())

    # What the dataset asks

    async def next(self, index: int) -> Call | None:
        """Return the dataset's row at this index as soon as there is one, or None at the end.

        Ray may read all rows again, from the first one on. A new call is for the pass with the fewest calls, so that a
        small pass beside a large one does not wait for all of it.
        """
        async with self._news:
            while True:
                if index < self._num_calls:  # Ray drops it where it has had it, and it ends where it has ended
                    same = (mine.calls[index].call for mine in self._passes.values() if index in mine.calls)
                    return next(same, Call(index, ""))
                if self._is_closed:
                    return None
                waiting = [mine for mine in self._passes.values() if mine.has_work]
                open_calls = (call for mine in self._passes.values() for call in mine.calls.values())
                num_calls = sum(not call.is_silent for call in open_calls)
                if waiting and num_calls < AHEAD * self._calls * self._num_actors:
                    mine = min(waiting, key=lambda mine: len(mine.calls))
                    mine.calls[index] = OpenCall(call := Call(index, mine.id))
                    self._num_calls = index + 1
                    return call
                await self._news.wait()

    # What an actor says

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

    async def job(self, pass_id: str, actor: str) -> "list[ray.ObjectRef[Any]] | None":
        """Return a pass's job for a process that does not know it, None if the pass has ended; see :class:`Starts`."""
        if (mine := self._passes.get(pass_id)) is None:
            return None
        mine.starts.begin(actor)
        return mine.jobs

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
        """Return a call's next chunk, or ``None`` to end the call.

        A call that has a chunk begins anew after its process died, which makes the chunk suspect. A call ends if no
        chunk is left, if it has lasted long, if another pass waits, or if ``is_last``; then it gets suspect chunks
        alone. The actor's model answers ``slots`` rows concurrently (:meth:`Cutter.rows`).
        """
        if (mine := self._passes.get(call.pass_id)) is None or (opened := mine.calls.get(call.index)) is None:
            return None
        now = time.monotonic()
        self._give_back(mine, opened)
        if opened.since is not None:
            lasts = self._num_actors * self._calls / CALLS_PER_SECOND
            fewer = (other for other in self._passes.values() if len(other.calls) + 1 < len(mine.calls))
            is_last = is_last or now - opened.since > lasts or any(other.has_work for other in fewer)
        if mine.waiting and (mine.waiting[0].is_suspect or not is_last):
            opened.chunk = mine.waiting.popleft()
        elif not is_last:
            num_rows = mine.cutter.rows(mine.rows.left, actors=self._num_actors, calls=self._calls, slots=slots)
            opened.chunk = mine.rows.take(num_rows) or (mine.given_up.popleft() if mine.given_up else None)
        if opened.actor is not None:
            opened.actor.calls.discard(opened)
        if opened.chunk is None:
            del mine.calls[call.index]
            await self._tell()
            return None
        if (known := self._actors.get(actor)) is not None:
            self._charge(known)
            known.calls.add(opened)
        opened.actor, opened.since, opened.begun = known, opened.since or now, now
        opened.seconds, opened.answered, opened.ticket = 0.0, 0, opened.ticket + 1
        return Begun(opened.chunk, opened.ticket)

    async def wrote(self, call: Call, actor: str, ticket: int, places: list[int], rows: bytes) -> bool:
        """Accept rows of an unfinished chunk, unless it is another call's by now, and return whether they are accepted.

        ``places`` are the rows' indices in the chunk.
        """
        mine = self._passes.get(call.pass_id)
        opened = None if mine is None else mine.calls.get(call.index)
        if mine is None or opened is None or opened.chunk is None or opened.ticket != ticket:
            return False
        mine.starts.got_on(actor)
        self._accept(mine, opened, actor, rows)
        opened.written.update(places)
        return True

    async def finish(
        self, call: Call, actor: str, ticket: int, rows: bytes | None, slots: int | None, *, is_last: bool
    ) -> Begun | None:
        """Accept a chunk's last rows unless it is another call's by now; return the next :meth:`begin`."""
        mine = self._passes.get(call.pass_id)
        opened = None if mine is None else mine.calls.get(call.index)
        if mine is None or opened is None or (opened.chunk is not None and opened.ticket != ticket):
            return None  # of a process that is late, when another one goes on with its call
        if opened.chunk is not None and rows is not None:
            num_rows = len(opened.chunk.offsets)
            self._accept(mine, opened, actor, rows)
            mine.answered += num_rows
            if not opened.chunk.is_suspect:
                mine.cutter.learn(num_rows, time.monotonic() - opened.begun)
            if not opened.chunk.is_poison:
                mine.starts.got_on(actor)
            self._leave(opened)
            if not mine.has_work:
                await self._tell()  # the driver may have all of it
        return await self.begin(call, actor, slots, is_last=is_last)

    def _accept(self, mine: OpenPass, opened: OpenCall, actor: str, rows: bytes) -> None:
        if opened.actor is not None:
            self._charge(opened.actor)
        mine.parts.append(Part(rows, actor, round(opened.seconds, 6)))
        opened.seconds = 0.0

    def _give_back(self, mine: OpenPass, opened: OpenCall) -> None:
        """Queue what is left of a call's chunk, if it has one: in parts, unless its process died with its node."""
        chunk, opened.chunk = opened.chunk, None
        if chunk is None:
            return
        mine.answered += len(opened.written)
        rest = chunk.only(np.flatnonzero([place not in opened.written for place in range(len(chunk.offsets))]))
        opened.written.clear()
        if rest is not None:
            is_lost = opened.actor is not None and _is_gone(opened.actor.node)
            parts = [rest] if is_lost else divide_suspect(rest, max_row_retries=mine.actors.max_row_retries)
            mine.given_up.extend(part for part in parts if part.is_poison)
            mine.waiting.extendleft(reversed([part for part in parts if not part.is_poison]))

    def _leave(self, opened: OpenCall) -> None:
        """Detach a call from its chunk and its actor."""
        if opened.actor is not None:
            self._charge(opened.actor)
            opened.actor.calls.discard(opened)
        opened.chunk, opened.actor = None, None
        opened.written.clear()

    # What the work queue does by itself

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
                if not has:  # it idled, and the dataset has given it back
                    del self._actors[name]
                    continue
                hang_seconds = min(mine.actors.hang_seconds for mine, _ in has)
                if silence > hang_seconds and not actor.is_ended:
                    actor.is_ended = True
                    nodes.end_process(actor.node, actor.pid, hang_seconds)
                for mine, opened in has if silence > STUCK_SECONDS else ():
                    self._give_back(mine, opened)
            self._num_actors = max(self._wanted, sum(map(self._is_alive, self._actors.values())))
            await self._tell()

    @property
    def _beat_seconds(self) -> float:
        return max(BEAT_SECONDS, len(self._actors) / BEATS_PER_SECOND)

    def _is_alive(self, actor: KnownActor) -> bool:
        return time.monotonic() - actor.heard <= max(SILENT_SECONDS, 3 * self._beat_seconds)

    def _charge(self, *actors: KnownActor) -> None:
        """Charge the time of some actors, or of all, to calls and passes; call it before one gets or leaves a chunk."""
        now = time.monotonic()
        for actor in actors or self._actors.values():
            passed, actor.charged = now - actor.charged, now
            if not self._is_alive(actor):
                continue
            for opened in actor.calls:
                opened.seconds += passed / len(actor.calls)
            users = [self._passes[opened.call.pass_id] for opened in actor.calls] or list(self._passes.values())
            for user in users:
                user.actor_seconds += passed / len(users)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def _is_gone(node: str) -> bool:
    """Return whether a node has left the cluster; False for an empty name."""
    return bool(node) and all(living["NodeID"] != node for living in nodes.list_living())
