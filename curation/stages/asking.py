"""Stages that ask a model: its settings, and its actors."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from typing import ClassVar, NamedTuple, Protocol, Self

import pyarrow as pa

from curation.arrays import Bools, Floats
from curation.config import AskConfig, DecodingConfig
from curation.json_types import Json, JsonView
from curation.passes.job import ChunkWorker, PassOptions, PassResult, Row, count_errors
from curation.passes.run import make_dataset
from curation.refs import ModelRef, fingerprint
from curation.registry import BACKENDS
from curation.rundir.graph import In, Inputs, Out, Stage, setting, to_plain_json
from curation.rundir.hosts import Host
from curation.rundir.run import Task
from curation.tables import commits, schemas
from curation.teachers import Gate, Request
from curation.telemetry.metrics import Telemetry


class TeacherUse(Inputs):
    """A model, and the settings with which it is asked."""

    model: In[ModelRef | None]
    ask: AskConfig
    engine: AskConfig
    """Settings to start the model with, for all stages that ask it: it keeps every state that one of them reads."""

    @property
    def backend(self) -> str:
        """Name of the backend in ``curation.registry.BACKENDS``."""
        return self.ask.backend

    @property
    def inputs(self) -> Json:
        """Inputs, other than the decoding, on which the model's answers depend."""
        answers = self.ask.without({*AskConfig.SPREAD, "backend", "decoding"})
        return {"model": self.model, "ask": answers, "backend": self.backend}

    @property
    def asks(self) -> bool:
        """Whether a model answers, or something that takes as long as one."""
        return BACKENDS[self.backend].asks

    @property
    def is_served(self) -> bool:
        """Whether a server answers, by its own protocol: chats or completions."""
        return self.ask.endpoint is not None

    @property
    def started(self) -> AskConfig:
        """Settings with which the model is started, with its backend."""
        return self.engine.model_copy(update={"backend": self.backend})

    def asked(self, decoding: DecodingConfig, *, again: int = 0) -> AskConfig:
        """Return the settings to ask the model with; ``again``: number of times that a user had a server asked anew."""
        update: Json = {"decoding": decoding}
        if self.ask.endpoint is not None and again:
            update["endpoint"] = self.ask.endpoint.model_copy(update={"again": again})
        return self.ask.model_copy(update=update)

    def changed(self, **changes: object) -> Self:
        """Return the same model, started the same way, but asked differently."""
        return replace(self, ask=self.ask.model_copy(update=changes))

    @property
    def name(self) -> str:
        """Name of the adapter, the base model or the server's model, or of a backend that needs no model."""
        if self.model is None:
            return self.backend if self.ask.endpoint is None else self.ask.endpoint.model
        return self.model.adapter or self.model.base

    def record(self, result: PassResult) -> Json:
        """Return the record of the stage's pass, for the report."""
        return {
            "model": self.name,
            "backend": self.backend,
            "dtype": None if self.model is None else self.ask.dtype,
            "rows": result.rows,
            "seconds": result.seconds,
            "deaths": result.deaths,
            "teachers": result.teachers,
            "clipped_values": result.clipped_values,
        }


class AskModel(Stage):
    """A stage that asks a model about rows."""

    teacher: TeacherUse
    decoding: DecodingConfig
    commit_seconds: float = setting()
    fragment_mb: int = setting()

    @property
    def inputs(self) -> JsonView:
        """Arguments on which the outputs depend, with only those settings of the model that its answers depend on."""
        inputs = {name: value for name, value in super().inputs.items() if name != "teacher"}
        return {**inputs, **self.teacher.inputs}

    @property
    def settings(self) -> JsonView:
        """Arguments on which no output depends, with the settings that start the model and spread rows over actors."""
        spread = {key: getattr(self.teacher.ask, key) for key in AskConfig.SPREAD}
        return {**super().settings, "running": [self.teacher.engine, spread]}

    def teacher_fields(self, task: Task) -> Json:
        """Return the fields of a :class:`curation.passes.job.Job` that say which teacher is asked, and how."""
        return {
            "teacher": self.teacher.asked(self.decoding, again=task.manifest.asked_again.get(task.name, 0)),
            "engine": self.teacher.started,
            "model": self.teacher.model,
            "decoding": self.decoding,
            "telemetry": task.telemetry,
        }

    @contextmanager
    def passing(self, task: Task) -> Iterator[PassOptions]:
        """Yield the options of a pass, which reuses actors of the model that already run."""
        engine, name, hold_cpus = self.teacher.started, self.teacher.backend, task.hosts.hold_cpus
        if not BACKENDS[name].replaceable:
            name = f"{name}-{PurePath(self.teacher.name).name}"
        idle = engine.actors.max_idle_seconds
        hosted = task.hosted(lambda: make_dataset(engine, name=name, hold_cpus=hold_cpus), max_idle_seconds=idle)
        with task.progress() as update, hosted as dataset:
            how = PassOptions(commit_seconds=self.commit_seconds, fragment_mb=self.fragment_mb, dataset=dataset)
            yield {**how, "guard": task.guard, "progress": update}

    @cached_property
    def takes(self) -> Mapping[str, float]:
        """Resources of the actors: one per chunk, within the limits of ``actors``."""
        ask, actors = self.teacher.ask, self.teacher.ask.actors
        chunks = actors.max if self.num_rows is None else math.ceil(self.num_rows / ask.first_chunk_rows)
        num = max(actors.min, min(actors.max, chunks))
        takes = {kind: num * amount for kind, amount in actors.each.items()}
        return takes | ({"CPU": math.inf} if actors.takes_all_cores(ask.backend) else {})

    @cached_property
    def host(self) -> Host:
        """Actors of the model, shared with models that need equal resources and concurrent calls."""
        model, engine, backend = self.teacher.model, self.teacher.engine, self.teacher.backend
        of_model = str(model) if isinstance(model, Out) else to_plain_json(model, {})
        kind = name = fingerprint([of_model, backend, to_plain_json(engine, {})])
        if BACKENDS[backend].replaceable:
            kind = fingerprint([to_plain_json(engine.actors, {}), BACKENDS[backend].calls])
        return Host(name=name, kind=kind, shared=True)


class RowsWorker(ChunkWorker[list[Json]]):
    """A base of workers whose result is a JSON row of one table for each row, which has an ``error`` if it failed."""

    def __init__(self, telemetry: Telemetry, uri: str, schema: pa.Schema) -> None:
        self._telemetry, self._uri, self._schema = telemetry, uri, schema

    def give_up(self, rows: list[Row], error: str) -> list[Json]:
        """Return a row without values for each row."""
        return [{"row_id": row["row_id"], "error": error} for row in rows]

    def write(self, parts: list[list[Json]], note: Json) -> pa.Table:
        """Write one fragment; return its row of ``commits.WRITTEN``."""
        rows = [row for part in parts for row in part]
        note = note | count_errors(self._telemetry, (row["error"] for row in rows if row.get("error")))
        table = pa.Table.from_pylist(rows, schema=self._schema)
        return commits.write_fragment(table, self._uri, self._schema, note=note)


class LabelGate(Gate, Protocol):
    """A gate rule at work in a process: the teacher calls it, and it fills in the columns of the rule."""

    def check(self, request: Request) -> None:
        """Raise ``ConfigError`` for a request that the rule does not apply to."""

    def add_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that the teacher has answered or dropped, with the columns of the rule."""
        ...


class PassingTest(NamedTuple):
    """A function that tells which rows would pass a rule, bool [N], and the states, [N, D] each, that it reads."""

    states: tuple[str, ...]
    passes: Callable[[Mapping[str, Floats]], Bools]


class GateRule(ABC):
    """A base of rules; a subclass is a frozen dataclass, which is part of cache keys and pickled to every actor."""

    key: ClassVar[str]
    """Name of the rule in cache keys."""
    score: ClassVar[str]
    """Column of the labels with the number that decides, float32; null for error rows and for rows let through."""

    @property
    def columns(self) -> pa.Schema:
        """The columns that the rule adds to the labels."""
        return pa.schema([pa.field(self.score, pa.float32()), pa.field(schemas.DROPPED, pa.bool_(), nullable=False)])

    @abstractmethod
    def make_gate(self, states: Sequence[str]) -> LabelGate:
        """Return the gate of a process whose teacher keeps these states; raise ``ConfigError`` if it lacks one."""

    @abstractmethod
    def load_test(self) -> PassingTest:
        """Return the test of which rows would pass."""

    @abstractmethod
    def describe(self, asked: int, dropped: int) -> str:
        """Describe the effect: ``dropped`` of ``asked`` rows were dropped."""


class GatedStage(Stage):
    """A base of stages whose rows may have to pass a rule, which is part of the cache key under its own name."""

    gate: GateRule | None = None

    @property
    def inputs(self) -> JsonView:
        """The arguments on which the outputs depend."""
        found = {name: value for name, value in super().inputs.items() if name != "gate"}
        return found if self.gate is None else {**found, self.gate.key: self.gate}
