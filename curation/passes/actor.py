"""The process that holds a model and works on chunks of tables. It survives rows that kill it.

One call works on one chunk of one pass and returns the names of the fragments that it wrote. A process serves pass
after pass, and several at once if they ask the same model. If a process dies, Ray restarts it and replays its calls,
without a limit; :mod:`curation.passes.recovery` sets one. It also tells the new process what is done, and which row
kills (:mod:`curation.passes.bisection` finds it). A process whose model hangs ends itself.
"""

import faulthandler
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray

from curation.cluster.nodes import require_here
from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.errors import RowError
from curation.passes.bisection import Narrowing
from curation.passes.models import Models
from curation.passes.recovery import Memory, here, is_gone
from curation.passes.shares import Shares
from curation.refs import ModelRef, TableRef, fingerprint
from curation.tables import commits, io
from curation.teachers.metered import Metered
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry

Part = TypeVar("Part")
Row = dict[str, Any]

POISON = "poison: the process that worked on this row alone died"
KEPT_PASSES = 16
"""The number of passes that a process remembers; few are under way at once."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows ``start`` to ``stop`` of the examples table, less those whose bit in ``take`` is 0 (numpy packed bits)."""

    start: int
    stop: int
    take: bytes

    @property
    def name(self) -> str:
        """A name that no chunk of the same table with other rows has."""
        return f"{self.start}-{fingerprint([self.stop, self.take.hex()])}"

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offsets in the table of the rows to work on."""
        bits = np.unpackbits(np.frombuffer(self.take, dtype=np.uint8), count=self.stop - self.start)
        offsets: npt.NDArray[np.int64] = self.start + np.flatnonzero(bits)
        return offsets


class Job(Protocol):
    """The description of a pass that every process receives, pickled."""

    @property
    def examples(self) -> TableRef:
        """The table that the chunks are of."""

    @property
    def teacher(self) -> AskConfig:
        """The size of the chunks and the number of actors."""

    @property
    def told(self) -> Telemetry:
        """Emits the metrics of the pass."""

    def worker(self, models: Models) -> "ChunkWorker[Any]":
        """The object that works on the chunks of the pass in a process, with its model."""


@dataclass(frozen=True, kw_only=True)
class TeacherJob:
    """The part that all jobs which ask a teacher share."""

    examples: TableRef
    """The rows to ask about."""
    domain: DomainConfig
    teacher: AskConfig
    model: ModelRef | None
    """``None`` for a teacher without weights."""
    decoding: DecodingConfig
    engine: AskConfig | None = None
    """How the teacher is started, for all passes that ask it; unset: as ``teacher`` says."""
    told: Telemetry = field(default_factory=Telemetry)
    """Emits the metrics of the pass."""

    def load(self, models: Models) -> Metered:
        """The teacher, started if it does not run yet; it counts the tokens of this pass."""
        return Metered(models.teacher(self.teacher, self.engine or self.teacher, self.model))


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a process knows about a pass besides its job."""

    id: str
    table: str
    """The URI of the table that the pass fills; a pass of the next driver has the same one."""
    versions: Mapping[str, str]
    """The driver's versions. An actor on a node that joined later must have the same ones."""


class ChunkWorker(ABC, Generic[Part]):
    """Works on the chunks of one pass in one process."""

    alive = staticmethod(lambda: None)
    """A worker calls it whenever the model has answered something, as a sign of life."""
    meter: Metered | None = None
    """The teacher that it asks; ``None`` if the model is no teacher."""

    @abstractmethod
    def work(self, rows: list[Row]) -> Part:
        """Work on some rows of a chunk; call :meth:`alive` now and then."""

    @abstractmethod
    def give_up(self, rows: list[Row], error: str) -> Part:
        """The result for rows that cannot be worked on."""

    @abstractmethod
    def write(self, parts: list[Part], note: dict[str, Any]) -> pa.Table:
        """Write the results of a chunk; return rows of ``commits.WRITTEN``, the first with the note."""


def failed(told: Telemetry, problems: Iterable[str]) -> dict[str, Any]:
    """The error rows of a chunk for its note: how many of each kind."""
    kinds = Counter(RowError(problem).kind for problem in problems)
    for kind, number in kinds.items():
        told.add(metrics.ERROR_ROWS, number, kind=kind)
    return {"errors": dict(kinds)} if kinds else {}


class ModelActor:
    """One process of a pool."""

    def __init__(self) -> None:
        self._node, self._id = here(), ray.get_runtime_context().get_actor_id()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._models = Models(on_drop=self._sessions.clear)
        self._entering = threading.Lock()
        self._turns = _Turns()
        self._watch = _Watch()
        self._shares = Shares()

    def ready(self) -> None:
        """Return once the process runs."""

    def work(self, this: Pass, jobs: "list[ray.ObjectRef[Job]]", chunk: Mapping[str, Any]) -> pa.Table:
        """Work on a chunk of a pass and write its fragments; rows of ``commits.WRITTEN``.

        ``jobs`` holds one reference. Ray does not resolve it inside a list, so a job is fetched once a pass, not once a
        chunk.
        """
        begun, part = time.monotonic(), Chunk(**chunk)
        session = self._session(this, jobs)
        known = session.memory.recall(part.name)
        if isinstance(known, pa.Table):  # the call had returned, but its node was lost: Ray replays it
            return known
        rows = session.examples.take(part.offsets).to_pylist()
        known = known or Narrowing.of(len(rows))
        taken_along = known.pass_id != this.id or is_gone(known.node)
        known.begin(max_row_retries=session.job.teacher.actors.max_row_retries, taken_along=taken_along)
        known.node, known.pass_id = self._node, this.id
        with self._shares.measured() as share:
            written = self._written(session, part, rows, known)
        spent: dict[str, Any] = {"seconds": round(share(), 6), "actor": self._id}
        if session.worker.meter is not None:
            spent["tokens"] = list(astuple(session.worker.meter.take()))
        written = commits.with_note(written, spent=spent)
        session.memory.finish(part.name, written)
        if known.poison:  # if the driver dies before the commit, the next one need not search again
            session.memory.keep(part.name, known)
        session.job.told.observe(metrics.CHUNK_SECONDS, time.monotonic() - begun)
        session.job.told.add(metrics.ROWS_LABELLED, len(rows))
        return written

    def _written(self, session: "_Session", chunk: Chunk, rows: list[Row], known: Narrowing) -> pa.Table:
        memory, worker = session.memory, session.worker
        parts: list[Any] = []
        turn = self._turns.together() if known.is_whole else self._turns.alone()
        with turn, self._watch.busy(session.job.teacher.actors.hang_seconds):
            for piece in known.pieces():
                memory.keep(chunk.name, known)
                parts.append(worker.work([rows[place] for place in piece]))
                memory.got_on()
        if known.poison:
            parts.append(worker.give_up([rows[place] for place in known.poison], POISON))
        note: dict[str, Any] = {"deaths": known.num_deaths} if known.num_deaths else {}
        if started := session.started():
            note["teacher"] = started
        return worker.write(parts, note)

    def _session(self, this: Pass, jobs: "list[ray.ObjectRef[Job]]") -> "_Session":
        with self._entering:
            if this.id not in self._sessions:
                self._sessions[this.id] = _Session(this, ray.get(jobs[0]), self._models, self._watch.alive)
            self._sessions.move_to_end(this.id)
            while len(self._sessions) > KEPT_PASSES:
                self._sessions.popitem(last=False)
            return self._sessions[this.id]


class _Session:
    """A pass in this process."""

    def __init__(self, this: Pass, job: Job, models: Models, alive: Any) -> None:
        require_here(this.versions)
        self.job, self.memory = job, Memory(this.id, this.table)
        self.memory.count_start(job.teacher.actors.max_restarts)
        self.examples = io.open_table(job.examples)
        begun, num_before = time.monotonic(), models.num_starts
        self.worker = job.worker(models)
        self.worker.alive = alive
        self._facts: list[dict[str, float]] = []
        if models.num_starts > num_before:
            seconds = time.monotonic() - begun
            self._facts.append({"start_seconds": seconds, **models.facts})
            job.told.observe(metrics.TEACHER_START_SECONDS, seconds)
            job.told.add(metrics.ACTOR_STARTS, 1)

    def started(self) -> dict[str, float] | None:
        """The seconds and facts of the model's start, for the first call that asks; None if it ran already."""
        try:
            return self._facts.pop()
        except IndexError:
            return None


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
