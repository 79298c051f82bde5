"""A run described once: stages whose inputs are values and outputs of other stages.

A stage's ``inputs`` are the arguments of its work and its cache key, one dictionary; its ``settings`` are arguments
that change how it is done, not what comes out. Running, planning, the status and the report all read this one graph.
Nothing is parsed out of a stage's name, and nothing is seeded by it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from curation.refs import ModelRef, ProjectionRef, TableRef, TrustRef, fingerprint
from curation.rundir.hosts import Host

NUM_TOLD = 5
"""Changes of a stage's inputs that are told one by one."""

NEW = "not done yet"

Work = Callable[..., "Done"]
Outputs = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a stage wrote (``outputs``, JSON) and how many rows it worked on."""

    outputs: dict[str, Any]
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One piece of a run: ``work(task, **inputs, **settings)`` makes its outputs."""

    name: str
    """Shown and stored, e.g. ``gen-0/label-pool``; unique in its graph."""
    work: Work
    inputs: Mapping[str, Any]
    """Arguments on which the outputs depend: JSON values, references, sections of the configuration, and outputs of
    other stages."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments, on which the outputs do not depend; outputs of other stages that stand here are waited for."""
    needs: Sequence["Out"] = ()
    """Outputs that must be there for the stage to be done at all, and are no arguments."""
    revision: int = 1
    """Raised when the work's outcome changes: then this stage is done again, and no other for its sake."""
    rows: int | None = None
    """The rows that it will work on, where they are known beforehand."""
    takes: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    """What of the cluster it keeps busy, by Ray's names (``CPU``, ``GPU``)."""
    host: Host | None = None
    """What it works by that other stages work by too: a model's actors, a process that trains."""
    asks_teacher: bool = False
    """Its rows are answered by the run's first teacher, so that a probe of that model foretells its time."""

    def value(self, *path: str) -> "Out":
        """An output as it is on record."""
        return Out(stage=self, path=path)

    def table(self, *path: str) -> "Out":
        """An output that is a table."""
        return Out(stage=self, path=path, read=TableRef.from_json)

    def model(self, *path: str) -> "Out":
        """An output that is a model."""
        return Out(stage=self, path=path, read=ModelRef.from_json)

    def trust(self, *path: str) -> "Out":
        """An output that is a fitted trust function."""
        return Out(stage=self, path=path, read=TrustRef.from_json)

    def projection(self, *path: str) -> "Out":
        """An output that is a fitted projection of hidden states."""
        return Out(stage=self, path=path, read=ProjectionRef.from_json)

    @property
    def outs(self) -> Iterator["Out"]:
        """The outputs of other stages that it waits for."""
        yield from outs_in([self.inputs, self.settings, self.needs])


@dataclass(frozen=True, kw_only=True, eq=False)
class Out:
    """One output of a stage, which may not be there yet."""

    stage: Stage
    path: tuple[str, ...]
    """Keys into the stage's outputs, the outermost first."""
    read: Callable[[Any], Any] = lambda value: value
    """From JSON to what the work takes."""
    optional: bool = False

    @property
    def or_none(self) -> "Out":
        """The same output; a stage that takes it is done with ``None`` where there is none, instead of skipped."""
        return Out(stage=self.stage, path=self.path, read=self.read, optional=True)

    def __str__(self) -> str:
        return f"{self.stage.name}: {'.'.join(self.path)}"


Table = TableRef | Out
"""A table that is there, or one that a stage makes."""
Model = ModelRef | Out
"""A model that is there, or one that a stage makes."""


class Unknown(Exception):
    """An output is asked for whose stage is not done: ``args`` holds it."""

    @property
    def out(self) -> Out:
        """The output."""
        found: Out = self.args[0]
        return found


class Absent(Unknown):
    """An output is asked for that its stage did not make, or whose stage was skipped."""


class Skipped(NamedTuple):
    """Stands for the outputs of a stage that had nothing to do."""

    why: str


Known = Mapping[str, Outputs | Skipped]
"""By stage that is done or skipped, what it made."""

State = Literal["done", "changed", "new", "waits", "skipped"]


class Status(NamedTuple):
    """Where a stage stands: ``why`` names what changed, what it waits for, or what there was not."""

    stage: Stage
    state: State
    why: str

    @property
    def is_settled(self) -> bool:
        """It is done, or has nothing to do."""
        return self.state in ("done", "skipped")

    @property
    def words(self) -> str:
        """The state as a reader is told it."""
        told = {"done": "done", "new": NEW, "changed": f"changed: {self.why}", "waits": self.why}
        return told.get(self.state, f"nothing to do: {self.why}")


def outs_in(value: Any) -> Iterator[Out]:
    """The outputs of stages in a value, wherever they stand."""
    if isinstance(value, Out):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from outs_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from outs_in(part)


def ordered(targets: Any) -> list[Stage]:
    """The stages that make the outputs in ``targets``, each after those that it waits for.

    Raises:
        ValueError: two stages have one name, or stages wait for each other in a circle.
    """
    found: dict[str, Stage] = {}
    entered: set[str] = set()

    def visit(stage: Stage) -> None:
        known = found.get(stage.name)
        if known is not None:
            if known is not stage:
                raise ValueError(f"two stages are called {stage.name}; give one of them another name")
            return
        if stage.name in entered:
            raise ValueError(f"the stage {stage.name} waits for itself, through others")
        entered.add(stage.name)
        for out in stage.outs:
            visit(out.stage)
        found[stage.name] = stage

    for out in outs_in(targets):
        visit(out.stage)
    return list(found.values())


def steps(stages: Iterable[Stage]) -> dict[str, int]:
    """By name of the ordered ``stages``, how many stages one after the other lead to it."""
    found: dict[str, int] = {}
    for stage in stages:
        found[stage.name] = 1 + max((found[out.stage.name] for out in stage.outs), default=-1)
    return found


def waited_for(stage: Stage) -> list[str]:
    """The names of the stages that it waits for, each once."""
    return list(dict.fromkeys(out.stage.name for out in stage.outs))


def recorded(out: Out, known: Known) -> Any:
    """An output as JSON; ``None`` for an optional one that is not there.

    Raises:
        Unknown: its stage is not done.
        Absent: it is not there, and not optional.
    """
    if out.stage.name not in known:
        raise Unknown(out)
    value: Any = known[out.stage.name]
    if isinstance(value, Skipped):
        value = None
    for key in out.path if value is not None else ():
        value = value[key]
        if value is None:
            break
    if value is None and not out.optional:
        raise Absent(out)
    return value


def resolved(value: Any, known: Known) -> Any:
    """A value with every output in it replaced by what its stage made, as the work takes it.

    Raises:
        Unknown: as for :func:`recorded`.
    """
    if isinstance(value, Out):
        found = recorded(value, known)
        return None if found is None else value.read(found)
    if isinstance(value, Mapping):
        return {key: resolved(part, known) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(resolved(part, known) for part in value)
    return value


def present(value: Any, known: Known) -> Any:
    """As :func:`resolved`; parts of a mapping whose outputs are not there are left out of it.

    Raises:
        Unknown: a stage is not done.
    """
    if isinstance(value, Mapping):
        kept = {}
        for key, part in value.items():
            try:
                kept[key] = present(part, known)
            except Absent:
                continue
        return kept
    return resolved(value, known)


def plain(value: Any, known: Known) -> Any:
    """A value as JSON, with what stages made in the place of their outputs: what a cache key is taken of.

    Raises:
        Unknown: as for :func:`recorded`.
        TypeError: a value that is no JSON, with its type.
    """
    if isinstance(value, Out):
        return recorded(value, known)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), known)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"an input of a stage has the key {wrong[0]!r}, which is no string")
        return {key: plain(part, known) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, known) for part in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(f"an input of a stage is {value!r}, a {type(value).__name__}, which is no JSON")


def key_of(stage: Stage, known: Known) -> dict[str, Any]:
    """What the outputs of a stage depend on, as JSON.

    Raises:
        Unknown: a stage that it waits for is not done.
        Absent: an output that it needs is not there, so that it has nothing to do.
    """
    unknown: Unknown | None = None
    for out in stage.outs:
        try:
            recorded(out, known)
        except Absent:
            raise
        except Unknown as error:
            unknown = unknown or error
    if unknown is not None:
        raise unknown
    return {"revision": stage.revision, **plain(stage.inputs, known)}


class Recorded(NamedTuple):
    """A stage on record: the key it was done with, and what it made."""

    key: Mapping[str, Any]
    digest: str
    outputs: Outputs


def statuses(
    stages: Iterable[Stage], records: Mapping[str, Recorded], known: dict[str, Outputs | Skipped] | None = None
) -> Iterator[Status]:
    """Where each of the ordered ``stages`` stands, by the ``records`` of a run directory; fills ``known``.

    A stage that waits for another may turn out unchanged, when that one makes what it made before.
    """
    known = {} if known is None else known
    for stage in stages:
        status = status_of(stage, known, records)
        if status.state == "done":
            known[stage.name] = records[stage.name].outputs
        elif status.state == "skipped":
            known[stage.name] = Skipped(status.why)
        yield status


def status_of(stage: Stage, known: Known, records: Mapping[str, Recorded]) -> Status:
    """Where one stage stands, of which everything that is known so far is in ``known``."""
    try:
        key = key_of(stage, known)
    except Absent as absent:
        return Status(stage, "skipped", _absence(absent.out, known))
    except Unknown as unknown:
        return Status(stage, "waits", f"waits for {unknown.out.stage.name}")
    record = records.get(stage.name)
    if record is None:
        return Status(stage, "new", "")
    if record.digest == fingerprint(key):
        return Status(stage, "done", "")
    changes = differences(record.key, key)
    more = [f"and {len(changes) - NUM_TOLD} more"] if len(changes) > NUM_TOLD else []
    return Status(stage, "changed", "; ".join([*changes[:NUM_TOLD], *more]))


def _absence(out: Out, known: Known) -> str:
    """Why an output is not there."""
    made = known[out.stage.name]
    return made.why if isinstance(made, Skipped) else f"{out.stage.name} made no {' '.join(out.path).replace('_', ' ')}"


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """The leaves in which two JSON values differ, as ``a.b was X, is Y``."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [
            line
            for key in sorted({*before, *now})
            for line in differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if before == now else [f"{path} was {before}, is {now}"]
