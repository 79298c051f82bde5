"""The process that holds a model and works on chunks of tables. Ray restarts it after a row that kills it.

A dataset of Ray Data maps its rows, which are calls for chunks of a pass, by this class. A call writes fragments and
reports their names to the work queue (:mod:`curation.passes.work_queue`) instead of returning them, since Ray replays
the calls of a dead process without their earlier outputs. A process serves pass after pass, and several at once if they
use the same model. If a process dies, Ray restarts it and replays its calls without a limit; the work queue sets the
limit, and tells the new process which rows are done and which row kills processes (:mod:`curation.passes.poison` finds
it). A process whose model hangs, or does not start, ends itself.
"""

import faulthandler
import math
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import astuple
from typing import Any

import numpy as np
import pyarrow as pa

from curation.cluster import nodes
from curation.errors import RunFailedError, StartError
from curation.heavy import ray
from curation.json_types import Json
from curation.passes.job import Job, Models, Row
from curation.passes.messages import Begun, Call, Pass
from curation.passes.work_queue import BEAT_SECONDS
from curation.tables import commits, io
from curation.telemetry import metrics

POISON = "poison: the process that worked on this row alone died"
KEPT_PASSES = 16  # maximum number of passes that a process remembers; few run at once


class ModelActor:
    """One process of a dataset's pool."""

    def __init__(self, queue: Any) -> None:
        context = ray.get_runtime_context()
        self._queue, self._id = queue, context.get_actor_id()
        self._sessions: OrderedDict[str, _PassSession] = OrderedDict()
        self._models = Models(on_drop=self._sessions.clear)
        self._entering = threading.Lock()
        self._turns = _Turns()
        self._watch = _Watch()
        self._shares = Shares()
        self._answered: dict[Call, int] = {}  # number of rows done of each open call's chunk
        ray.get(queue.start.remote(self._id, context.get_node_id(), os.getpid()))
        threading.Thread(target=self._beat, daemon=True).start()

    def __call__(self, calls: pa.Table) -> pa.Table:
        """Work on chunks for the call that is this row of the dataset, and return the row."""
        ((index, pass_id),) = zip(*calls.to_pydict().values(), strict=True)
        call = Call(index, pass_id)
        try:
            self._work(call)
        except Exception as problem:  # ends one pass, not the dataset
            ray.get(self._queue.fail.remote(pass_id, _pickle_error(problem)))
        return calls

    def _work(self, call: Call) -> None:
        if (session := self._get_session(call.pass_id)) is None:
            return
        with self._turns.together():
            begun: Begun | None = ray.get(self._queue.begin.remote(call, self._id, session.worker.slots))
            while begun is not None and begun.search.is_whole:
                begun = self._work_on(begun, call, session, is_alone=False)
        if begun is not None:
            with self._turns.alone():
                self._work_on(begun, call, session, is_alone=True)

    def _work_on(self, begun: Begun, call: Call, session: "_PassSession", *, is_alone: bool) -> Begun | None:
        """Work on a chunk, and return the call's next one, or None if there is none or the call works alone."""
        token = _call.set(call)
        self._answered[call] = begun.num_written
        try:
            with self._shares.measured() as share, self._watch.busy(session.this.actors.hang_seconds):
                rows = _ChunkWork(session, call, begun, share, queue=self._queue, actor=self._id).done()
        finally:
            del self._answered[call]
            _call.reset(token)
        slots, is_last = session.worker.slots, is_alone or self._turns.has_waiting
        if rows is None:
            following = self._queue.begin.remote(call, self._id, slots, is_last=is_last)
        else:
            following = self._queue.finish.remote(call, self._id, begun.chunk.name, rows, slots, is_last=is_last)
        found: Begun | None = ray.get(following)
        return found

    def _get_session(self, pass_id: str) -> "_PassSession | None":
        """Return this process's session of a pass, or None if the pass has ended."""
        with self._entering:
            if pass_id not in self._sessions:
                if (known := ray.get(self._queue.job.remote(pass_id, self._id))) is None:
                    return None
                this, (job,) = known
                try:
                    session = self._sessions[pass_id] = _PassSession(this, ray.get(job), self._models)
                except StartError as error:  # Ray starts another process where there is room
                    ray.get(self._queue.unstarted.remote(pass_id, self._id, nodes.describe_here(), str(error)))
                    os.write(2, f"{error}\n".encode())
                    os._exit(1)
                session.worker.alive, session.worker.answered = self._watch.alive, self._count
            self._sessions.move_to_end(pass_id)
            while len(self._sessions) > KEPT_PASSES:
                self._sessions.popitem(last=False)
            return self._sessions[pass_id]

    def _count(self, rows: int) -> None:
        self._watch.alive()
        self._answered[_call.get()] += rows

    def _beat(self) -> None:
        seconds = BEAT_SECONDS
        while True:
            time.sleep(seconds)
            with suppress(ray.exceptions.RayError):
                seconds = ray.get(self._queue.beat.remote(self._id, dict(self._answered), self._models.pause))


_call: ContextVar[Call] = ContextVar("_call")  # call that this thread works on


def _serialise_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _pickle_error(error: Exception) -> bytes:
    try:
        found: bytes = ray.cloudpickle.dumps(error)  # type: ignore[no-untyped-call]
        ray.cloudpickle.loads(found)
    except Exception:  # an exception of other code may hold objects that cannot be pickled, or not unpickled
        return _pickle_error(RunFailedError(f"{type(error).__name__}: {error}"))
    return found


class _PassSession:
    """A pass in this process."""

    def __init__(self, this: Pass, job: Job, models: Models) -> None:
        nodes.require_here(this.versions)
        self.this, self.job = this, job
        self.examples = io.open_table(job.examples)
        begun, num_before = time.monotonic(), models.num_starts
        self.worker = job.worker(models)
        self._facts: list[dict[str, float]] = []
        if models.num_starts > num_before:
            self._facts.append({"start_seconds": time.monotonic() - begun, **models.facts})

    def started(self) -> dict[str, float] | None:
        """Return duration and facts of the model's start for the first caller, or None if the model ran before."""
        with suppress(IndexError):
            return self._facts.pop()
        return None


class _ChunkWork:
    """The work of a call on a chunk; finished rows are reported at intervals, so that no long answer delays them."""

    def __init__(
        self, session: "_PassSession", call: Call, begun: Begun, share: Callable[[], float], *, queue: Any, actor: Any
    ) -> None:
        self._session, self._share, self._search = session, share, begun.search
        self._queue, self._actor = queue, actor
        self._about = call, actor, begun.chunk.name  # first arguments of the work queue's methods
        self._rows: list[Row] = session.examples.take(begun.chunk.offsets).to_pylist()
        self._place = {row["row_id"]: place for place, row in enumerate(self._rows)}
        self._parts: list[Any] = []
        self._seconds = 0.0  # call's share of the process's time that is reported already
        asks_side_by_side = session.worker.slots is not None and begun.search.is_whole
        self._every = session.job.teacher.chunk_seconds if asks_side_by_side else math.inf
        self._last = time.monotonic()

    def done(self) -> bytes | None:
        """Work on the chunk and return the last rows to report, or ``None`` if another call wrote rows of it."""
        session, search = self._session, self._search
        for piece in search.pieces():
            if not search.is_whole:
                ray.get(self._queue.keep.remote(*self._about, search))
            for part in session.worker.stream([self._rows[place] for place in piece]):
                if time.monotonic() - self._last > self._every and self._parts:  # the last part ends the chunk
                    table = self._write_results({})
                    places = [self._place[row_id] for row_id in _read_row_ids(table)]
                    if not ray.get(self._queue.wrote.remote(*self._about, places, _serialise_table(table))):
                        return None
                self._parts.append(part)
        if search.poison:
            self._parts.append(session.worker.give_up([self._rows[place] for place in search.poison], POISON))
        note: Json = {"deaths": search.num_deaths} if search.num_deaths else {}
        if started := session.started():
            note["teacher"] = started
        return _serialise_table(self._write_results(note))

    def _write_results(self, note: Json) -> pa.Table:
        worker, seconds = self._session.worker, self._share()
        table = worker.write(self._parts, note) if self._parts else commits.WRITTEN.empty_table()
        spent: Json = {"seconds": round(seconds - self._seconds, 6), "actor": self._actor}
        if worker.meter is not None:
            spent["tokens"] = list(astuple(worker.meter.take()))
        self._parts, self._seconds, self._last = [], seconds, time.monotonic()
        self._session.job.telemetry.add(metrics.ROWS_LABELLED, len(_read_row_ids(table)))
        return commits.with_note(table, spent=spent)


def _read_row_ids(written: pa.Table) -> list[int]:
    """Return the ids of the written rows, which are equal for all tables in ``written``."""
    ids: list[int] = np.frombuffer(written["row_ids"][0].as_py() if len(written) else b"", dtype=np.int64).tolist()
    return ids


class Shares:
    """A clock of each call's share of the process's time without a model's start; concurrent calls share equally."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_calls = 0
        self._share = 0.0  # share of a call that has worked since the start
        self._at = time.monotonic()

    @contextmanager
    def measured(self) -> Iterator[Callable[[], float]]:
        """Measure a call that works within the context; yield a function that returns its seconds so far."""
        begun = self._count(1)
        ended: list[float] = []
        try:
            yield lambda: (ended[0] if ended else self._count(0)) - begun
        finally:
            ended.append(self._count(-1))

    def _count(self, change: int) -> float:
        with self._lock:
            now = time.monotonic()
            if self._num_calls:
                self._share += (now - self._at) / self._num_calls
            self._at, self._num_calls = now, self._num_calls + change
            return self._share


class _Watch:
    """A watchdog that ends the process when the model hangs, because no exception reaches compiled code."""

    def __init__(self) -> None:
        self._last_sign = time.monotonic()
        self._num_busy = 0
        self._seconds = float("inf")
        threading.Thread(target=self._look, daemon=True).start()

    def alive(self) -> None:
        """Record that the model has answered something."""
        self._last_sign = time.monotonic()

    @contextmanager
    def busy(self, seconds: float) -> Iterator[None]:
        """Expect a sign of life at least every ``seconds`` within the context."""
        self.alive()
        self._seconds = seconds
        self._num_busy += 1
        try:
            yield
        finally:
            self._num_busy -= 1

    def _look(self) -> None:
        while True:
            time.sleep(min(5.0, self._seconds / 4) if self._num_busy else 0.5)
            if self._num_busy and time.monotonic() - self._last_sign > self._seconds:
                faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
                os.write(2, f"no progress for longer than teacher.actors.hang_seconds: {self._seconds:g}\n".encode())
                os._exit(1)


class _Turns:
    """A lock by which a process's calls work concurrently, while a call that may kill the process works alone."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._num_together = 0
        self._num_waiting = 0
        self._is_taken = False

    @property
    def has_waiting(self) -> bool:
        """Whether a call waits to work alone."""
        return self._num_waiting > 0

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._is_taken and not self._num_waiting)
            self._num_together += 1
        try:
            yield
        finally:
            with self._free:
                self._num_together -= 1
                self._free.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._free:
            self._num_waiting += 1
            self._free.wait_for(lambda: not self._is_taken and not self._num_together)
            self._num_waiting -= 1
            self._is_taken = True
        try:
            yield
        finally:
            with self._free:
                self._is_taken = False
                self._free.notify_all()
