"""The process that holds a model and works on chunks of tables. It survives rows that kill it.

A dataset of Ray Data maps its rows, which are chunks, by this class. One call works on one chunk of one pass and gives
one small row, the names of the fragments that it wrote last. A process serves pass after pass, and several at once if
they ask the same model. If a process dies, Ray restarts it and replays its calls, without a limit; the desk
(:mod:`curation.passes.desk`) sets one. It also tells the new process what is done, and which row kills
(:mod:`curation.passes.bisection` finds it). A process whose model hangs, or does not start, ends itself.
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
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from curation.cluster import nodes
from curation.errors import RunFailedError, StartError
from curation.heavy import ray
from curation.json_types import Json
from curation.passes.bisection import Narrowing
from curation.passes.desk import BEAT_SECONDS
from curation.passes.job import Job, Row
from curation.passes.messages import Begun, Handout, Pass, Written
from curation.passes.models import Models
from curation.passes.shares import Shares
from curation.periodic import every
from curation.tables import commits, io
from curation.telemetry import metrics

POISON = "poison: the process that worked on this row alone died"
KEPT_PASSES = 16
"""The number of passes that a process remembers; few are under way at once."""
RESULT = pa.schema([("pass_id", pa.string()), ("chunk", pa.string()), ("written", pa.binary()), ("error", pa.binary())])
"""The row that a call returns: rows of ``commits.WRITTEN`` as an Arrow stream, or a pickled error; neither where the
pass has ended."""


class ModelActor:
    """One process of a dataset's pool."""

    def __init__(self, desk: Any) -> None:
        context = ray.get_runtime_context()
        self._desk, self._node, self._id = desk, context.get_node_id(), context.get_actor_id()
        self._sessions: OrderedDict[str, _PassSession] = OrderedDict()
        self._models = Models(on_drop=self._sessions.clear)
        self._entering = threading.Lock()
        self._turns = _Turns()
        self._watch = _Watch()
        self._shares = Shares()
        self._answered: dict[int, int] = {}
        """Rows done of the chunks under way, by index."""
        ray.get(desk.start.remote(self._id, self._node, os.getpid()))
        self._beating = every(BEAT_SECONDS, self._beat)
        self._beating.__enter__()

    def __call__(self, calls: pa.Table) -> pa.Table:
        """Work on a chunk and write its fragments: a row of ``RESULT`` for a row of the dataset."""
        ((index, pass_id),) = zip(*calls.to_pydict().values(), strict=True)
        handout = Handout(index=index, pass_id=pass_id)
        found = Written("", b"")
        error = None
        try:
            found = self._work(handout) or found
        except Exception as problem:  # it ends one pass, not the dataset
            error = _pickled(problem)
        row = {"pass_id": pass_id, "chunk": found.name, "written": found.rows or None, "error": error}
        return pa.Table.from_pylist([row], schema=RESULT)

    def _work(self, handout: Handout) -> Written | None:
        if (session := self._session(handout.pass_id)) is None:
            return None
        given: Begun | None = ray.get(self._desk.begin.remote(handout, self._id, session.worker.slots))
        if given is None:
            return None
        if given.result is not None:  # the call had returned, but its node was lost: Ray replays it
            return Written(given.chunk.name, given.result)
        begun = time.monotonic()
        with self._shares.measured() as share:
            call = _Call(session, handout, given, share, desk=self._desk, actor=self._id, node=self._node)
            turn = self._turns.together() if call.is_whole else self._turns.alone()
            token = _index.set(handout.index)
            self._answered[handout.index] = len(given.written)
            try:
                with turn, self._watch.busy(session.this.actors.hang_seconds):
                    found = call.work()
            finally:
                del self._answered[handout.index]
                _index.reset(token)
        session.job.telemetry.observe(metrics.CHUNK_SECONDS, time.monotonic() - begun)
        return found

    def _session(self, pass_id: str) -> "_PassSession | None":
        """The pass in this process; None where it has ended."""
        with self._entering:
            if pass_id not in self._sessions:
                if (known := ray.get(self._desk.job.remote(pass_id, self._id))) is None:
                    return None
                this, (job,) = known
                try:
                    self._sessions[pass_id] = _PassSession(this, ray.get(job), self._models)
                except StartError as error:
                    self._end(pass_id, error)
                self._sessions[pass_id].worker.alive = self._watch.alive
                self._sessions[pass_id].worker.answered = self._count
            self._sessions.move_to_end(pass_id)
            while len(self._sessions) > KEPT_PASSES:
                self._sessions.popitem(last=False)
            return self._sessions[pass_id]

    def _end(self, pass_id: str, why: StartError) -> NoReturn:
        """End the process, in which a model did not start: Ray starts another one, where there is room."""
        ray.get(self._desk.unstarted.remote(pass_id, self._id, nodes.here(), str(why)))
        os.write(2, f"{why}\n".encode())
        os._exit(1)

    def _count(self, rows: int) -> None:
        self._watch.alive()
        self._answered[_index.get()] += rows

    def _beat(self) -> None:
        with suppress(ray.exceptions.RayError):
            self._desk.beat.remote(self._id, dict(self._answered), self._models.pause)


_index: ContextVar[int] = ContextVar("_index")
"""The place in the dataset of the chunk that this thread works on."""


def _is_gone(node: str) -> bool:
    """Whether a node has left the cluster; false if none is named."""
    return bool(node) and all(living["NodeID"] != node for living in nodes.living())


def _streamed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _pickled(error: Exception) -> bytes:
    try:
        found: bytes = ray.cloudpickle.dumps(error)  # type: ignore[no-untyped-call]
        ray.cloudpickle.loads(found)
    except Exception:  # a stranger's exception may hold what cannot be pickled, or read again
        return _pickled(RunFailedError(f"{type(error).__name__}: {error}"))
    return found


class _PassSession:
    """A pass in this process."""

    def __init__(self, this: Pass, job: Job, models: Models) -> None:
        nodes.require_here(this.versions)
        self.this, self.job, self.is_new = this, job, True
        self.examples = io.open_table(job.examples)
        begun, num_before = time.monotonic(), models.num_starts
        self.worker = job.worker(models)
        self._facts: list[dict[str, float]] = []
        if models.num_starts > num_before:
            seconds = time.monotonic() - begun
            self._facts.append({"start_seconds": seconds, **models.facts})
            job.telemetry.observe(metrics.TEACHER_START_SECONDS, seconds)
            job.telemetry.add(metrics.ACTOR_STARTS, 1)

    def started(self) -> dict[str, float] | None:
        """The seconds and facts of the model's start, for the first call that asks; None if it ran already."""
        try:
            return self._facts.pop()
        except IndexError:
            return None


class _Call:
    """The work of one call on its chunk.

    Rows that have ended are handed in by the clock while the others go on, where the model answers rows side by side: a
    long answer keeps no others from being committed. They go to the desk and are no outputs of the call, since Ray
    replays a call that died without the outputs that it had delivered, whichever those were.
    """

    def __init__(
        self,
        session: "_PassSession",
        handout: Handout,
        given: Begun,
        share: Callable[[], float],
        *,
        desk: Any,
        actor: str | None,
        node: str,
    ) -> None:
        self._session, self._handout, self._name, self._share = session, handout, given.chunk.name, share
        self._desk, self._actor = desk, actor
        self._rows: list[Row] = session.examples.take(given.chunk.offsets).to_pylist()
        self._place = {row["row_id"]: place for place, row in enumerate(self._rows)}
        self._known = known = given.known or Narrowing.of(len(self._rows))
        known.drop(given.written)
        taken_along = known.pass_id != session.this.id or _is_gone(known.node)
        known.begin(max_row_retries=session.this.actors.max_row_retries, taken_along=taken_along)
        known.node, known.pass_id = node, session.this.id
        self._parts: list[Any] = []
        """Results that are not written yet."""
        self._seconds = 0.0
        """The call's share of the process's time that is told already."""
        asks_side_by_side = session.worker.slots is not None and known.is_whole
        self._every = session.job.teacher.chunk_seconds if asks_side_by_side else math.inf
        self._last = time.monotonic()

    @property
    def is_whole(self) -> bool:
        """Whether no process has died in the chunk."""
        return self._known.is_whole

    def work(self) -> Written | None:
        """Return what was written last; ``None`` where another call has written some of the rows."""
        session, known = self._session, self._known
        for piece in known.pieces():
            ray.get(self._desk.keep.remote(self._handout, self._name, known))
            for part in session.worker.stream([self._rows[place] for place in piece]):
                if time.monotonic() - self._last > self._every and self._parts:  # the last part ends the chunk
                    if self._hand_in(self._desk.wrote, {}) is None:
                        return None
                    self._get_on()
                self._parts.append(part)
            self._get_on()
        if known.poison:
            self._parts.append(session.worker.give_up([self._rows[place] for place in known.poison], POISON))
        note: Json = {"deaths": known.num_deaths} if known.num_deaths else {}
        if started := session.started():
            note["teacher"] = started
        return self._hand_in(self._desk.finish, note)

    def _get_on(self) -> None:
        """Tell the desk, once, that this process has got something done."""
        if self._session.is_new:
            self._session.is_new = False
            ray.get(self._desk.got_on.remote(self._handout.pass_id, self._actor))

    def _hand_in(self, take: Any, note: Json) -> Written | None:
        """Write the results that there are, and give them to a method of the desk; ``None`` where it refuses them."""
        worker, seconds = self._session.worker, self._share()
        table = worker.write(self._parts, note) if self._parts else commits.WRITTEN.empty_table()
        spent: Json = {"seconds": round(seconds - self._seconds, 6), "actor": self._actor}
        if worker.slots is not None:
            spent["slots"] = worker.slots
        if worker.meter is not None:
            spent["tokens"] = list(astuple(worker.meter.take()))
        ids = np.frombuffer(table["row_ids"][0].as_py() if len(table) else b"", dtype=np.int64).tolist()
        written = Written(self._name, _streamed(commits.with_note(table, spent=spent)))
        self._parts, self._seconds, self._last = [], seconds, time.monotonic()
        self._session.job.telemetry.add(metrics.ROWS_LABELLED, len(ids))
        places = [self._place[row_id] for row_id in ids]
        return written if ray.get(take.remote(self._handout, places, written.rows)) else None


class _Watch:
    """Ends the process when the model hangs, because no exception reaches compiled code."""

    def __init__(self) -> None:
        self._last_sign = time.monotonic()
        self._num_busy = 0
        self._seconds = float("inf")
        threading.Thread(target=self._look, daemon=True).start()

    def alive(self) -> None:
        """The model has answered something."""
        self._last_sign = time.monotonic()

    @contextmanager
    def busy(self, seconds: float) -> Iterator[None]:
        """Within the context, expect a sign of life at least every ``seconds``."""
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
                os.write(2, f"nothing came for longer than teacher.actors.hang_seconds: {self._seconds:g}\n".encode())
                os._exit(1)


class _Turns:
    """Lets calls of one process work side by side, except one that may kill the process: it works alone."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._num_together = 0
        self._num_waiting = 0
        self._is_taken = False

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
