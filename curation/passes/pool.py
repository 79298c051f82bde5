"""Actors that hold models, and outlive the passes that ask them.

A pool of Ray Data ends with its dataset, so every pass would start the model again. Here the actors stay: passes of one
model hand their chunks to the same actors, one after the other or side by side. Idle actors are ended
(``teacher.actors.max_idle_seconds``). If an actor's process or node dies, Ray restarts the actor and replays its calls,
without a limit; :mod:`curation.passes.recovery` sets one.
"""

import math
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray

from curation.cluster import nodes, ray_private
from curation.config import ActorsConfig
from curation.errors import RunFailedError
from curation.passes.actor import Job, ModelActor, Pass
from curation.passes.recovery import forget
from curation.stopping import LOOK_SECONDS
from curation.telemetry.standing import Actors

GROW_SECONDS = 1.0
"""The interval at which a pool decides whether it needs more or fewer actors."""
STUCK_SECONDS = 30.0
"""If an actor has been restarting for this long, its chunks go to an idle actor."""

Item = Mapping[str, Any]


@dataclass(eq=False)
class _Queue:
    """A pass in the pool: the chunks that wait, and the results of the others."""

    this: Pass
    jobs: "list[ray.ObjectRef[Job]]"
    waiting: deque[Item]
    left: int
    """The number of chunks whose result has not been taken."""
    done: "queue.SimpleQueue[pa.Table | BaseException]" = field(default_factory=queue.SimpleQueue)
    actor_seconds: float = 0.0
    """The time of actors that this pass has used."""

    def under_way(self) -> int:
        """The number of chunks that were handed out and whose result has not been taken."""
        return self.left - len(self.waiting)


@dataclass(eq=False)
class _Actor:
    """An actor of the pool."""

    handle: Any
    """Without this reference Ray ends the actor, after its calls are done."""
    id: str
    """Ray's id."""
    is_ready: bool = False
    """Whether its process has started."""
    calls: "dict[ray.ObjectRef[Any], tuple[_Queue, Item]]" = field(default_factory=dict)
    idle_since: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)
    """The last time it was known to be alive."""


class ActorPool:
    """Between ``min`` and ``max`` actors. Each works on ``num_calls`` chunks at once."""

    def __init__(self, actors: ActorsConfig, *, num_cpus: float, num_calls: int, hold_cpus: bool = True) -> None:
        """An actor computes on ``num_cpus``; with ``hold_cpus``, Ray keeps them from others while the actor lives."""
        self._config, self._num_calls = actors, num_calls
        threads = {"env_vars": {"OMP_NUM_THREADS": str(int(num_cpus))}}  # Ray sets it by the CPUs that are held
        self._make = ray.remote(ModelActor).options(
            **nodes.held({**actors.each, "CPU": num_cpus if hold_cpus else 0}),
            runtime_env=None if hold_cpus or num_cpus < 2 else threads,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=num_calls,
        )
        self._actors: list[_Actor] = []
        self._queues: list[_Queue] = []
        self._lost = 0
        """Deaths of actors that have left the pool."""
        self._lock = threading.RLock()
        self._events: queue.SimpleQueue[tuple[_Actor, ray.ObjectRef[Any]] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._charged = time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="actor-pool", daemon=True)
        self._thread.start()

    def run(
        self,
        table: str,
        job: Job,
        versions: Mapping[str, str],
        items: Sequence[Item],
        charge: Callable[[float], None] = lambda seconds: None,
    ) -> Iterator[pa.Table | None]:
        """Let actors work on the chunks of a pass; yield the result of each when it is done, in any order.

        Yields None now and then while none is.

        ``charge`` receives the seconds of actors that the pass has used so far, before each result and at the end. An
        actor counts from the start of its process on. Its time is divided among the chunks that it has, and an idle
        actor's among all passes under way; between two passes nobody is charged.

        Raises:
            ray.exceptions.RayError: a call failed.
        """
        this = Pass(id=f"pass-{uuid.uuid4().hex}", table=table, versions=versions)
        mine = _Queue(this=this, jobs=[ray.put(job)], waiting=deque(items), left=len(items))
        with self._lock:
            self._divide()  # the time since the last pass is not this one's
            self._queues.append(mine)
        self._events.put(None)
        try:
            while mine.left:
                try:
                    found = mine.done.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    yield None
                    continue
                if isinstance(found, BaseException):
                    raise found
                mine.left -= 1
                charge(self._charge(mine))
                yield found
        finally:
            charge(self._charge(mine))
            with self._lock:
                mine.waiting.clear()
                self._queues.remove(mine)
            forget(table, this.id)

    def _charge(self, mine: _Queue) -> float:
        """The seconds of actors that a pass has used so far."""
        with self._lock:
            self._divide()
            return mine.actor_seconds

    def _divide(self) -> None:
        """Divide the time since the last call among the passes; called before an actor comes, goes or gets a chunk."""
        now = time.monotonic()
        passed, self._charged = now - self._charged, now
        for actor in self._actors if self._queues else ():
            if actor.is_ready:
                users = [mine for mine, _ in filter(None, actor.calls.values())] or self._queues
                for user in users:
                    user.actor_seconds += passed / len(users)

    def read(self) -> Actors:
        """The number of actors by state, and of deaths so far."""
        with self._lock:
            ids, lost = [actor.id for actor in self._actors], self._lost
        states = [state for name in ids if (state := ray_private.actor_state(name)) is not None]
        unknown = len(ids) - len(states)  # asked for just now
        return Actors(
            running=sum(state.state == "ALIVE" for state in states),
            pending=unknown + sum(state.state in ("PENDING_CREATION", "DEPENDENCIES_UNREADY") for state in states),
            restarting=sum(state.state == "RESTARTING" for state in states),
            deaths=lost + sum(state.num_restarts + state.died for state in states),
        )

    def close(self) -> None:
        """End all actors, also those that work."""
        with self._lock:
            self._is_closed = True
            for actor in list(self._actors):
                self._end(actor)
            self._fail(RunFailedError("the actors that worked on this pass were ended"))
        self._events.put(None)

    def _keep(self) -> None:
        """The work of the pool's thread. An error here ends the passes; otherwise they would wait for ever."""
        try:
            self._serve()
        except Exception as error:
            with self._lock:
                self._fail(error)
            raise

    def _serve(self) -> None:
        """Take results, hand out chunks, and add or end actors, until the pool is closed."""
        looked = 0.0
        while not self._is_closed:
            with suppress(queue.Empty):
                event = self._events.get(timeout=GROW_SECONDS)
                with self._lock:
                    self._divide()
                    if event is not None:
                        self._take(*event)
                    self._hand_out()
            if time.monotonic() - looked > GROW_SECONDS:
                looked = time.monotonic()
                with suppress(ray.exceptions.RayError):
                    self._look()

    def _take(self, actor: _Actor, ref: "ray.ObjectRef[Any]") -> None:
        """Take the result of a call."""
        given = actor.calls.pop(ref, None)
        found: Any
        try:
            found = ray.get(ref)
        except ray.exceptions.ActorDiedError as error:  # it could not start, or the pool has ended it
            self._forget(actor)
            if given is not None:
                self._hand_back([given])
            elif not actor.is_ready:
                self._fail(error)
            return
        except BaseException as error:
            found = error
        actor.idle_since = actor.seen = time.monotonic()
        if given is None:
            actor.is_ready = True
        elif given[0] in self._queues:
            given[0].done.put(found)

    def _fail(self, error: BaseException) -> None:
        """End all passes with an error."""
        for mine in self._queues:
            mine.done.put(error)

    def _hand_back(self, given: "Iterable[tuple[_Queue, Item]]") -> None:
        """Put chunks back into the queues of their passes, unless a pass has ended."""
        for mine, chunk in given:
            if mine in self._queues:
                mine.waiting.appendleft(chunk)

    def _hand_out(self) -> None:
        """Give waiting chunks to the actors with the fewest calls, and start more actors if they are needed."""
        if self._is_closed:
            return
        waiting = sum(len(item.waiting) for item in self._queues)
        self._grow(waiting)
        ready = [actor for actor in self._actors if actor.is_ready]
        while waiting and ready:
            # A second chunk waits at an actor, so that it is never idle; near the end it may be idle elsewhere.
            ahead = 2 if waiting > self._num_calls * len(self._actors) else 1
            actor = min(ready, key=lambda actor: len(actor.calls))
            if len(actor.calls) >= ahead * self._num_calls:
                return
            # The pass with the fewest: a small one beside a large one does not wait for all of that.
            mine = min((item for item in self._queues if item.waiting), key=_Queue.under_way)
            chunk = mine.waiting.popleft()
            self._call(actor, actor.handle.work.remote(mine.this, mine.jobs, chunk), (mine, chunk))
            waiting -= 1

    def _grow(self, waiting: int) -> None:
        """Start the initial number of actors; later, if all of them work and chunks wait, double their number."""
        config, num = self._config, len(self._actors)
        under_way = sum(len(actor.calls) for actor in self._actors)
        most = min(config.max, math.ceil((waiting + under_way) / self._num_calls))
        if not waiting or num >= most:
            return
        first = max(config.min, config.initial or config.min)
        if num < first:
            wanted = min(first, most)
        elif all(actor.is_ready and len(actor.calls) >= self._num_calls for actor in self._actors):
            wanted = min(most, 2 * num)
        else:
            return
        for _ in range(wanted - num):
            handle: Any = self._make.remote()
            actor = _Actor(handle, handle._actor_id.hex())
            self._actors.append(actor)
            self._call(actor, actor.handle.ready.remote(), None)

    def _call(self, actor: _Actor, ref: "ray.ObjectRef[Any]", given: "tuple[_Queue, Item] | None") -> None:
        if given is not None:
            actor.calls[ref] = given
        ref.future().add_done_callback(lambda _: self._events.put((actor, ref)))

    def _look(self) -> None:
        """End idle actors, and take the chunks of actors that do not come back."""
        now = time.monotonic()
        with self._lock:
            idle = [actor for actor in self._actors if actor.is_ready and not actor.calls]
            busy = [actor for actor in self._actors if actor.calls]
            is_asked = bool(self._queues)
        for actor in busy:
            state = ray_private.actor_state(actor.id)
            if state is None or state.state == "ALIVE":
                actor.seen = now
        with self._lock:
            for actor in idle if is_asked else ():
                if now - actor.idle_since > self._config.max_idle_seconds and len(self._actors) > self._config.min:
                    self._end(actor)
            stuck = [actor for actor in busy if now - actor.seen > STUCK_SECONDS]
            for actor, _ in zip(stuck, [actor for actor in idle if actor in self._actors], strict=False):
                self._hand_back(actor.calls.values())
                self._end(actor)
            self._hand_out()

    def _end(self, actor: _Actor) -> None:
        self._divide()
        self._forget(actor)
        if actor.calls or not actor.is_ready:
            with suppress(ray.exceptions.RayError):
                ray.kill(actor.handle)
        actor.handle = None
        actor.calls.clear()

    def _forget(self, actor: _Actor) -> None:
        if actor in self._actors:
            self._actors.remove(actor)
            if (state := ray_private.actor_state(actor.id)) is not None:
                self._lost += state.num_restarts + state.died
