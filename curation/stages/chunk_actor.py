"""What the actors of a pass have in common: a chunk of rows in, written fragments out, whatever its rows do to it.

One call handles one chunk and emits the fragments' names (DESIGN: the *only* output of its task). Ray restarts a
process that died and replays its calls, for ever; :mod:`curation.stages.memory` bounds that, and tells a successor
which row kills (:mod:`curation.stages.narrowing`) and what is done already. A model that hangs ends its process too.
"""

import faulthandler
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation import store, telemetry
from curation.config import AskConfig
from curation.errors import RowError
from curation.nodes import require_here
from curation.refs import TableRef, fingerprint
from curation.stages.memory import Memory, here, is_gone
from curation.stages.narrowing import Narrowing
from curation.telemetry import Telemetry

Part = TypeVar("Part")
Row = dict[str, Any]

POISON = "poison: the process that worked on this row alone died"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows ``start`` to ``stop`` of the examples table, less those whose bit in ``take`` is 0 (numpy packed bits)."""

    start: int
    stop: int
    take: bytes

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> "Chunk":
        """The chunk that Ray Data hands to an actor, a batch of one."""
        return cls(start=int(batch["start"][0]), stop=int(batch["stop"][0]), take=batch["take"][0])

    @property
    def name(self) -> str:
        """It, and no chunk of the same table with other rows."""
        return f"{self.start}-{fingerprint([self.stop, self.take.hex()])}"

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offsets in the table of the rows to work on."""
        bits = np.unpackbits(np.frombuffer(self.take, dtype=np.uint8), count=self.stop - self.start)
        offsets: npt.NDArray[np.int64] = self.start + np.flatnonzero(bits)
        return offsets


class Job(Protocol):
    """What an actor is told of its pass; pickled to every actor."""

    @property
    def examples(self) -> TableRef:
        """The table that the chunks are of."""

    @property
    def teacher(self) -> AskConfig:
        """How large the chunks are, and how many actors work on them."""

    @property
    def told(self) -> Telemetry:
        """Emits the metrics of the pass."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What an actor knows of the pass beside its job."""

    id: str
    table: str
    """What is filled; it outlives the driver, whose pass this is."""
    versions: Mapping[str, str]
    """Those of the driver, to which an actor on a node that has joined the cluster since is held."""


class ChunkActor(ABC, Generic[Part]):
    """Works on chunks of a table, one call a chunk; a subclass says how, and loads its model once this is set up."""

    def __init__(self, job: Job, of: Pass) -> None:
        self._begun = time.monotonic()
        require_here(of.versions)
        self._examples, self.told, actors = job.examples, job.told, job.teacher.actors
        self._node, self._max_row_retries = here(), actors.max_row_retries
        self._pass_id, self._memory = of.id, Memory(of.id, of.table)
        self._memory.count_start(actors.max_restarts)
        self._turns = _Turns()
        self._last_sign = time.monotonic()
        self._num_busy = 0
        threading.Thread(target=self._watch, args=(actors.hang_seconds,), daemon=True).start()

    @abstractmethod
    def work(self, rows: list[Row]) -> Part:
        """What becomes of some rows of a chunk; calls :meth:`alive` now and then."""

    @abstractmethod
    def give_up(self, rows: list[Row], error: str) -> Part:
        """What stands for rows that cannot be worked on."""

    @abstractmethod
    def write(self, parts: list[Part], note: dict[str, Any]) -> pa.Table:
        """Write what became of a chunk's rows; rows of ``commits.WRITTEN``, the first with the note."""

    def loaded(self) -> None:
        """The model is there."""
        self.told.observe(telemetry.TEACHER_START_SECONDS, time.monotonic() - self._begun)
        self.told.add(telemetry.ACTOR_STARTS, 1)

    def failed(self, problems: Iterable[str]) -> dict[str, Any]:
        """What a chunk's note says of its error rows: how many of each kind."""
        kinds = Counter(RowError(problem).kind for problem in problems)
        for kind, number in kinds.items():
            self.told.add(telemetry.ERROR_ROWS, number, kind=kind)
        return {"errors": dict(kinds)} if kinds else {}

    def alive(self) -> None:
        """A sign of life: the model has given something."""
        self._last_sign = time.monotonic()

    def __call__(self, batch: Mapping[str, Any]) -> pa.Table:
        """Work on a chunk (columns of :class:`Chunk`, one row) and write its fragments; rows of ``commits.WRITTEN``."""
        begun, chunk = time.monotonic(), Chunk.of(batch)
        known = self._memory.recall(chunk.name)
        if isinstance(known, pa.Table):  # a node that is lost takes along that a call has returned: Ray replays it
            return known
        rows = store.open_table(self._examples).take(chunk.offsets).to_pylist()
        known = known or Narrowing.of(len(rows))
        taken_along = known.pass_id != self._pass_id or is_gone(known.node)
        known.begin(max_row_retries=self._max_row_retries, taken_along=taken_along)
        known.node, known.pass_id = self._node, self._pass_id
        parts: list[Part] = []
        with self._turns.together() if known.is_whole else self._turns.alone(), self._busy():
            for piece in known.pieces():
                self._memory.keep(chunk.name, known)
                parts.append(self.work([rows[place] for place in piece]))
                self._memory.got_on()
        if known.poison:
            parts.append(self.give_up([rows[place] for place in known.poison], POISON))
        written = self.write(parts, {"deaths": known.num_deaths} if known.num_deaths else {})
        self._memory.finish(chunk.name, written)
        if known.poison:  # where this is not committed before the driver dies, the next one need not find it again
            self._memory.keep(chunk.name, known)
        self.told.observe(telemetry.CHUNK_SECONDS, time.monotonic() - begun)
        self.told.add(telemetry.ROWS_LABELLED, len(rows))
        return written

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self.alive()
        self._num_busy += 1
        try:
            yield
        finally:
            self._num_busy -= 1

    def _watch(self, seconds: float) -> None:
        """End the process when the model hangs: what hangs is compiled code, which no exception reaches."""
        while True:
            time.sleep(min(5.0, seconds / 4))
            if self._num_busy and time.monotonic() - self._last_sign > seconds:
                faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
                os.write(2, f"nothing came for longer than teacher.actors.hang_seconds: {seconds:g}\n".encode())
                os._exit(1)


class _Turns:
    """Calls of one process work side by side, but where one of them may kill it: that one works alone."""

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
