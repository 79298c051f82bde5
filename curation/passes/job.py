"""The parts of a pass: the job that it asks of a model, the object that works on its chunks, and what comes of it.

Stages describe passes by these, without Ray; :mod:`curation.passes.run` does them.
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
from curation.teachers.wrapped import Metered
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Spent, Update

Part = TypeVar("Part")
Row = Json


class Job(Protocol):
    """The description of a pass that every process receives, pickled."""

    @property
    def examples(self) -> TableRef:
        """The table that the chunks are of."""

    @property
    def teacher(self) -> AskConfig:
        """The size of the chunks and the number of actors."""

    @property
    def telemetry(self) -> Telemetry:
        """Emits the metrics of the pass."""

    def worker(self, models: Models) -> "ChunkWorker[Any]":
        """Return the object that works on the chunks of the pass in a process, with its model."""


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
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Emits the metrics of the pass."""

    def load(self, models: Models) -> Metered:
        """Return the teacher, started if it does not run yet; it counts the tokens of this pass."""
        return Metered(models.teacher(self.teacher, self.engine or self.teacher, self.model))


class TeacherFields(TypedDict):
    """Fields of a :class:`TeacherJob`: which teacher a stage asks, and how."""

    teacher: AskConfig
    model: ModelRef | None
    decoding: DecodingConfig
    telemetry: Telemetry


class ChunkWorker(ABC, Generic[Part]):
    """Works on the chunks of one pass in one process."""

    alive = staticmethod(lambda: None)
    """A worker calls it whenever the model has answered something, as a sign of life."""
    answered = staticmethod(lambda rows: None)
    """A worker calls it with the number of rows that it has done, for the progress; it is a sign of life too."""
    meter: Metered | None = None
    """The teacher that it asks; ``None`` if the model is no teacher."""

    @abstractmethod
    def work(self, rows: list[Row]) -> Part:
        """Work on some rows of a chunk; call :meth:`alive` now and then."""

    def stream(self, rows: list[Row]) -> Iterator[Part]:
        """Yield results of some rows as they are done; by default of all rows at the end."""
        yield self.work(rows)

    @property
    def slots(self) -> int | None:
        """The number of rows that the model answers at once; ``None`` if it answers one after another."""
        return None if self.meter is None else getattr(self.meter.teacher, "slots", None)

    @abstractmethod
    def give_up(self, rows: list[Row], error: str) -> Part:
        """Return the result for rows that cannot be worked on."""

    @abstractmethod
    def write(self, parts: list[Part], note: Json) -> pa.Table:
        """Write the results of a chunk; return rows of ``commits.WRITTEN``, the first with the note."""


def count_errors(telemetry: Telemetry, problems: Iterable[str]) -> Json:
    """Return the error rows of a chunk for its note: how many of each kind."""
    kinds = Counter(map(get_error_kind, problems))
    for kind, number in kinds.items():
        telemetry.add(metrics.ERROR_ROWS, number, kind=kind)
    return {"errors": dict(kinds)} if kinds else {}


class PassResult(NamedTuple):
    """The table that a pass filled, and what this run of the pass did."""

    table: TableRef
    rows: int
    seconds: float
    deaths: int
    """Processes that died while they worked on a chunk."""
    teachers: list[Json]
    """``Teacher.facts`` of each start of a teacher."""
    spent: Spent = Spent()
    of_chunks: Sequence[ChunkSpent] = ()
    """In the order in which they came."""
    clipped_values: int = 0
    """Numbers of hidden states that were stored as float16's largest one."""


class PassOptions(TypedDict, total=False):
    """How a pass is done; no value in its table depends on it."""

    commit_seconds: Required[float]
    """The time between two commits."""
    dataset: Any
    """The model's ``curation.passes.dataset.ModelDataset``; unset, the pass has one of its own."""
    guard: Guard
    """Called before each commit."""
    fragment_mb: int
    """MiB of a fragment: smaller ones are merged; unset, they stay."""
    progress: Update
    """Receives progress updates."""
