"""The process that holds a model and works on chunks of tables. It survives rows that kill it.

A dataset of Ray Data maps its rows, which are calls for chunks of a pass, by this class. A call writes fragments and
reports their names to the work queue (:mod:`curation.passes.work_queue`). They are no outputs of the call, since Ray
replays a call that died without the outputs that it had delivered, whichever those were. A process serves pass after
pass, and several at once if they use the same model. If a process dies, Ray restarts it and replays its calls without a
limit; the work queue sets the limit, and hands out what is left of the chunk in parts, to find the row that kills
processes (:mod:`curation.passes.poison`). A process whose model hangs, or does not start, ends itself.
"""

import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np
import pyarrow as pa

from curation.cluster import nodes
from curation.errors import RunFailedError, StartError
from curation.heavy import ray
from curation.json_types import Json
from curation.passes.job import Job, Models, Row
from curation.passes.messages import Begun, Call
from curation.passes.work_queue import BEAT_SECONDS
from curation.tables import commits, io
from curation.telemetry import metrics

POISON = "poison: the process that worked on this row alone died"
BEAT_TIMEOUT = 30.0
"""Maximum seconds to wait for the work queue's reply to a report."""


class ModelActor:
    """One process of a dataset's pool.

    A thread reports to the work queue, and ends the process when the model hangs, because no exception reaches compiled
    code.
    """

    def __init__(self, queue: Any) -> None:
        context = ray.get_runtime_context()
        self._queue, self._id = queue, context.get_actor_id()
        self._sessions: dict[str, _PassSession] = {}
        self._models = Models(on_drop=self._sessions.clear)
        self._entering = threading.Lock()
        self._turns = _Turns()
        self._answered: dict[Call, int] = {}
        """Number of rows done of the chunk of each call that works."""
        self._last_sign, self._hang_seconds = time.monotonic(), math.inf
        ray.get(queue.start.remote(self._id, context.get_node_id(), os.getpid()))
        threading.Thread(target=self._beat, daemon=True).start()

    def __call__(self, calls: pa.Table) -> pa.Table:
        """Work on chunks for the call that is this row of the dataset, and return the row."""
        ((index, pass_id),) = zip(*calls.to_pydict().values(), strict=True)
        call = Call(index, pass_id)
        try:
            self._work(call)
        except Exception as problem:  # it ends one pass, not the dataset
            ray.get(self._queue.fail.remote(pass_id, _pickle_error(problem)))
        return calls

    def _work(self, call: Call) -> None:
        if (session := self._get_session(call.pass_id)) is None:
            return
        with self._turns.together():
            begun: Begun | None = ray.get(self._queue.begin.remote(call, self._id, session.worker.slots))
            while begun is not None and not begun.chunk.is_suspect:
                begun = self._work_on(begun, call, session)
        if begun is not None:
            with self._turns.alone():
                while begun is not None:
                    begun = self._work_on(begun, call, session, is_alone=True)

    def _work_on(self, begun: Begun, call: Call, session: "_PassSession", *, is_alone: bool = False) -> Begun | None:
        """Work on a chunk and return the call's next one, for a call that works alone only a suspect one."""
        seconds, token = time.monotonic(), _call.set(call)
        self._last_sign, self._hang_seconds = seconds, session.job.teacher.actors.hang_seconds
        self._answered[call] = 0
        try:
            rows = self._write_chunk(begun, call, session)
            session.job.telemetry.observe(metrics.CHUNK_SECONDS, time.monotonic() - seconds)
        finally:
            del self._answered[call]
            _call.reset(token)
        slots, is_last = session.worker.slots, is_alone or self._turns.are_awaited
        finishing = self._queue.finish.remote(call, self._id, begun.ticket, rows, slots, is_last=is_last)
        found: Begun | None = ray.get(finishing)
        return found

    def _write_chunk(self, begun: Begun, call: Call, session: "_PassSession") -> bytes | None:
        """Return the chunk's last written rows to report, or ``None`` if it is another call's by now.

        Finished rows are reported at intervals, so that no long answer delays them.
        """
        worker, chunk, parts, last = session.worker, begun.chunk, list[Any](), time.monotonic()
        rows: list[Row] = session.examples.take(chunk.offsets).to_pylist()
        if chunk.is_poison:
            return _serialise_table(session.write([worker.give_up(rows, POISON)], {"deaths": chunk.deaths}))
        places = {row["row_id"]: place for place, row in enumerate(rows)}
        asks_side_by_side = worker.slots is not None and not chunk.is_suspect
        every = session.job.teacher.chunk_seconds if asks_side_by_side else math.inf
        for part in worker.stream(rows):
            if time.monotonic() - last > every and parts:  # the last part ends the chunk
                table = session.write(parts, {})
                written = [places[row_id] for row_id in _read_row_ids(table)]
                about = call, self._id, begun.ticket, written
                if not ray.get(self._queue.wrote.remote(*about, _serialise_table(table))):
                    return None
                parts, last = [], time.monotonic()
            parts.append(part)
        note: Json = {"deaths": chunk.deaths} if chunk.deaths else {}
        if started := session.started():
            note["teacher"] = started
        return _serialise_table(session.write(parts, note))

    def _get_session(self, pass_id: str) -> "_PassSession | None":
        """Return this process's session of a pass, or None if the pass has ended."""
        with self._entering:
            if pass_id not in self._sessions:
                if (jobs := ray.get(self._queue.job.remote(pass_id, self._id))) is None:
                    return None
                (made,) = ray.get(jobs)
                try:
                    session = self._sessions[pass_id] = _PassSession(*made, self._models)
                except StartError as error:  # Ray starts another process where there is room
                    ray.get(self._queue.unstarted.remote(pass_id, self._id, nodes.describe_here(), str(error)))
                    os.write(2, f"{error}\n".encode())
                    os._exit(1)
                session.worker.answered = self._count
            return self._sessions[pass_id]

    def _count(self, rows: int) -> None:
        self._last_sign = time.monotonic()
        self._answered[_call.get()] += rows

    def _beat(self) -> None:
        seconds = BEAT_SECONDS
        while True:
            time.sleep(min(seconds, self._hang_seconds / 4))
            if self._answered and time.monotonic() - self._last_sign > self._hang_seconds:
                faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
                words = f"no progress for longer than teacher.actors.hang_seconds: {self._hang_seconds:g}\n"
                os.write(2, words.encode())
                os._exit(1)
            with suppress(ray.exceptions.RayError):
                beat = self._queue.beat.remote(self._id, dict(self._answered), self._models.pause)
                seconds = ray.get(beat, timeout=BEAT_TIMEOUT)


_call: ContextVar[Call] = ContextVar("_call")
"""Call that this thread works on."""


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
    except Exception:  # a stranger's exception may hold what cannot be pickled, or read again
        return _pickle_error(RunFailedError(f"{type(error).__name__}: {error}"))
    return found


class _PassSession:
    """A pass in this process."""

    def __init__(self, job: Job, versions: Mapping[str, str], models: Models) -> None:
        nodes.require_here(versions)
        self.job = job
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
        """Return duration and facts of the model's start for the first caller, or None if the model ran before."""
        with suppress(IndexError):
            return self._facts.pop()
        return None

    def write(self, parts: list[Any], note: Json) -> pa.Table:
        """Write results of a chunk; return rows of ``commits.WRITTEN``, the first with the note."""
        table = self.worker.write(parts, note) if parts else commits.WRITTEN.empty_table()
        tokens = (0, 0) if self.worker.meter is None else self.worker.meter.take()
        self.job.telemetry.add(metrics.ROWS_LABELLED, len(_read_row_ids(table)))
        return commits.with_note(table, slots=self.worker.slots, tokens=tokens)


def _read_row_ids(written: pa.Table) -> list[int]:
    """Return the ids of the written rows, which are equal for all tables in ``written``."""
    ids: list[int] = np.frombuffer(written["row_ids"][0].as_py() if len(written) else b"", dtype=np.int64).tolist()
    return ids


class _Turns:
    """A lock by which a process's calls work concurrently, while a call that may kill the process works alone."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._num_together = 0
        self._num_waiting = 0
        self._is_taken = False

    @property
    def are_awaited(self) -> bool:
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
