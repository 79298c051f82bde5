"""The parts of a pass: its job for a model, the worker on its chunks, and its result.

Stages describe passes by these, without Ray; :mod:`curation.passes.run` runs them.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, Required, TypedDict, TypeVar

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.errors import get_error_kind
from curation.json_types import Json
from curation.passes.models import Models
from curation.passes.monitor import ChunkSpent
from curation.refs import ModelRef, TableRef
from curation.storage.lease import Guard
from curation.teachers.wrapped import WrappedTeacher
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Spent, Update

Part = TypeVar("Part")
Row = Json


class Job(Protocol):
    """The description of a pass that every process receives, pickled."""

    @property
    def examples(self) -> TableRef:
        """Table whose rows form the chunks."""

    @property
    def teacher(self) -> AskConfig:
        """Configuration of the size of chunks and the number of actors."""

    @property
    def telemetry(self) -> Telemetry:
        """Emitter of the pass's metrics."""

    def worker(self, models: Models) -> "ChunkWorker[Any]":
        """Return the object that works on the chunks of the pass in a process, with its model."""


@dataclass(frozen=True, kw_only=True)
class TeacherJob:
    """The common part of all jobs that ask a teacher."""

    examples: TableRef
    """Table with the rows to ask about."""
    domain: DomainConfig
    teacher: AskConfig
    model: ModelRef | None
    """``None`` for a teacher without weights."""
    decoding: DecodingConfig
    engine: AskConfig | None = None
    """Configuration with which the teacher is started, for all passes that ask it; by default ``teacher``."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Emitter of the pass's metrics."""

    def load(self, models: Models) -> WrappedTeacher:
        """Return the teacher, started if necessary, with a counter of this pass's tokens."""
        return WrappedTeacher(models.teacher(self.teacher, self.engine or self.teacher, self.model))


class TeacherFields(TypedDict):
    """Fields of a :class:`TeacherJob` that describe the teacher and how a stage asks it."""

    teacher: AskConfig
    model: ModelRef | None
    decoding: DecodingConfig
    telemetry: Telemetry


class ChunkWorker(ABC, Generic[Part]):
    """A worker on the chunks of one pass in one process."""

    alive = staticmethod(lambda: None)
    """Callback for a sign of life, which a worker calls whenever the model has answered something."""
    answered = staticmethod(lambda rows: None)
    """Callback for progress and a sign of life, which a worker calls with the number of rows just done."""
    meter: WrappedTeacher | None = None
    """Teacher that the worker asks, or ``None`` if the model is no teacher."""

    @abstractmethod
    def work(self, rows: list[Row]) -> Part:
        """Work on some rows of a chunk; call :meth:`alive` now and then."""

    def stream(self, rows: list[Row]) -> Iterator[Part]:
        """Yield results of some rows as they are done; by default of all rows at the end."""
        yield self.work(rows)

    @property
    def slots(self) -> int | None:
        """Number of rows that the model answers at once, or ``None`` if it answers one after another."""
        return None if self.meter is None else getattr(self.meter.teacher, "slots", None)

    @abstractmethod
    def give_up(self, rows: list[Row], error: str) -> Part:
        """Return the result for rows that cannot be worked on."""

    @abstractmethod
    def write(self, parts: list[Part], note: Json) -> pa.Table:
        """Write the results of a chunk; return rows of ``commits.WRITTEN``, the first with the note."""


def count_errors(telemetry: Telemetry, problems: Iterable[str]) -> Json:
    """Count the error rows of a chunk by kind, and return the counts for the chunk's note."""
    kinds = Counter(map(get_error_kind, problems))
    for kind, number in kinds.items():
        telemetry.add(metrics.ERROR_ROWS, number, kind=kind)
    return {"errors": dict(kinds)} if kinds else {}


class PassResult(NamedTuple):
    """The table that a pass filled, with statistics of this run of the pass."""

    table: TableRef
    rows: int
    seconds: float
    deaths: int
    """Number of processes that died while they worked on a chunk."""
    teachers: list[Json]
    """``Teacher.facts`` of each start of a teacher."""
    spent: Spent = Spent()
    of_chunks: Sequence[ChunkSpent] = ()
    """Cost of each chunk, in order of arrival."""
    clipped_values: int = 0
    """Number of values of hidden states that were clipped to float16's largest one."""


class PassOptions(TypedDict, total=False):
    """Options of a pass, on which no value in its table depends."""

    commit_seconds: Required[float]
    """Seconds between two commits."""
    dataset: Any
    """The model's ``curation.passes.dataset.ModelDataset``; if unset, the pass creates one."""
    guard: Guard
    """Check that is called before each commit."""
    fragment_mb: int
    """Size of a fragment in MiB, up to which smaller ones are merged; if unset, none is merged."""
    progress: Update
    """Callback for progress updates."""
