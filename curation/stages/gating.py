"""Gates of a labelling pass: rules by which rows are dropped after their prompt, before the teacher answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import pyarrow as pa

from curation.arrays import Bools, Floats
from curation.json_types import JsonView
from curation.rundir.graph import Stage
from curation.tables import schemas
from curation.teachers import Gate, Request


class LabelGate(Gate, Protocol):
    """A rule in a process, which the teacher asks and which fills in the columns of the rule."""

    def check(self, request: Request) -> None:
        """Refuse a request that the rule does not apply to, by a ``ConfigError``."""

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
        """Describe the effect: of ``asked`` rows so many were dropped."""


class GatedStage(Stage):
    """A base of stages whose rows may have to pass a rule, which is part of the cache key under its own name."""

    gate: GateRule | None = None

    @property
    def inputs(self) -> JsonView:
        """The arguments on which the outputs depend."""
        found = {name: value for name, value in super().inputs.items() if name != "gate"}
        return found if self.gate is None else {**found, self.gate.key: self.gate}
