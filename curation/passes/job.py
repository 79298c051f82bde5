"""The parts of a pass: its job for a model, the worker on its chunks, its result, and the model of a process.

Stages describe passes by these, without Ray; :mod:`curation.passes.run` runs them.
"""

import gc
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Required, TypedDict, TypeVar

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.errors import StartError, get_error_kind
from curation.json_types import Json
from curation.refs import ModelRef, TableRef, fingerprint
from curation.storage.lease import Guard
from curation.teachers import Teacher, get_engine_key, load_teacher
from curation.teachers.reward import RewardModel
from curation.teachers.wrapped import WrappedTeacher
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Spent, Update

Part = TypeVar("Part")
Loaded = TypeVar("Loaded")
Row = Json


class Models:
    """A holder of one model at a time, for all passes that use it, so that a process never needs memory for two."""

    def __init__(self, on_drop: Callable[[], None] = lambda: None) -> None:
        """Take ``on_drop``, called before a model is replaced; it must release every reference to the model."""
        self.num_starts = 0
        self.facts: Mapping[str, float] = MappingProxyType({})  # ``facts`` of the model loaded last, for the report
        self._on_drop = on_drop
        self._key: str | None = None
        self._held: Any = None

    @property
    def pause(self) -> str:
        """Reason why the model waits, or empty if it does not."""
        return str(getattr(self._held, "pause", ""))

    def teacher(self, config: AskConfig, engine: AskConfig, model: ModelRef | None) -> Teacher:
        """Return the teacher with ``config``, started by ``engine`` if it does not run yet (else ``StartError``)."""
        key = fingerprint([get_engine_key(engine), None if model is None else model.to_json()])
        held: Teacher = self._get(key, lambda: load_teacher(engine, model))
        return held.asked(config)

    def reward(self, ref: ModelRef, **settings: Any) -> RewardModel:
        """Return a reward model with a reward head, loaded if necessary."""
        return self._get(fingerprint(["reward", ref.to_json(), settings]), lambda: RewardModel(ref, **settings))

    def _get(self, key: str, load: Callable[[], Loaded]) -> Loaded:
        if self._key != key:
            self._on_drop()
            held, self._held, self._key = self._held, None, None
            if hasattr(held, "close"):
                held.close()
            del held
            gc.collect()
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_available():
                torch.cuda.empty_cache()
            try:
                self._held = load()
            except RuntimeError as error:
                torch = sys.modules.get("torch")
                # A GPU without memory or with a fault may be a problem of this process or node alone.
                if torch is None or not isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
                    raise
                words = next(iter(str(error).strip().splitlines()), "")
                raise StartError(f"the device gave {type(error).__name__}: {words}") from error
            self._key = key
            self.num_starts += 1
            self.facts = dict(getattr(self._held, "facts", {}))
        loaded: Loaded = self._held
        return loaded


class ChunkWorker(ABC, Generic[Part]):
    """A worker on the chunks of one pass in one process."""

    alive = staticmethod(lambda: None)
    """Callback for a sign of life, which a worker calls whenever the model has answered something."""
    answered = staticmethod(lambda rows: None)
    """Callback for progress and a sign of life, which a worker calls with the number of rows just done."""
    meter: WrappedTeacher | None = None  # teacher that the worker asks, or ``None`` if the model is no teacher

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


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """The description of a pass that asks a model about a table's rows; every process receives it, pickled."""

    examples: TableRef
    domain: DomainConfig
    teacher: AskConfig
    model: ModelRef | None  # ``None`` for a teacher without weights
    decoding: DecodingConfig
    engine: AskConfig | None = None
    """Configuration with which the teacher is started, for all passes that ask it; by default ``teacher``."""
    telemetry: Telemetry = field(default_factory=Telemetry)

    @abstractmethod
    def worker(self, models: Models) -> ChunkWorker[Any]:
        """Return the object that works on the chunks of the pass in a process, with its model."""

    def load(self, models: Models) -> WrappedTeacher:
        """Return the teacher, started if necessary, with a counter of this pass's tokens."""
        return WrappedTeacher(models.teacher(self.teacher, self.engine or self.teacher, self.model))


def count_errors(telemetry: Telemetry, problems: Iterable[str]) -> Json:
    """Count the error rows of a chunk by kind, and return the counts for the chunk's note."""
    kinds = Counter(map(get_error_kind, problems))
    for kind, number in kinds.items():
        telemetry.add(metrics.ERROR_ROWS, number, kind=kind)
    return {"errors": dict(kinds)} if kinds else {}


class ChunkSpent(NamedTuple):
    """Cost of one chunk."""

    actor: str  # Ray's id of the actor that worked on it
    seconds: float  # the chunk's share of that actor's time, without the start of a model
    rows: int
    prompt_tokens: int
    output_tokens: int


class PassResult(NamedTuple):
    """The table that a pass filled, with statistics of this run of the pass."""

    table: TableRef
    rows: int
    seconds: float
    deaths: int  # number of processes that died while they worked on a chunk
    teachers: list[Json]  # ``Teacher.facts`` of each start of a teacher
    spent: Spent = Spent()
    of_chunks: Sequence[ChunkSpent] = ()  # cost of each chunk, in order of arrival
    clipped_values: int = 0  # number of values of hidden states that were clipped to float16's largest one


class PassOptions(TypedDict, total=False):
    """Options of a pass, on which no value in its table depends."""

    commit_seconds: Required[float]  # seconds between two commits
    dataset: Any  # the model's ``curation.passes.dataset.ModelDataset``; if unset, the pass creates one
    guard: Guard
    fragment_mb: int  # size of a fragment in MiB, up to which smaller ones are merged; if unset, none is merged
    progress: Update
