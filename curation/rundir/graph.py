"""The description of a run: a graph of stages whose arguments are values and outputs of other stages.

A stage is a class: its fields are both the arguments of its work and, but for settings, its cache key. Running,
planning, the status and the report all read this one graph. No seed depends on a stage's name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from curation.config.base import Section
from curation.json_types import Json, JsonView
from curation.refs import ModelRef, Ref, TableRef, as_json, fingerprint, iter_leaves
from curation.rundir.hosts import Host

Outputs = JsonView
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Done:
    """Outputs of a stage and the number of rows it worked on."""

    outputs: Any
    """The stage's ``Made``, or a JSON object. A missing output is null or left out; ``absent`` may map its dotted path
    to the reason, in words (``arms.trust``: the part ``trust`` of the output ``arms``)."""
    rows: int


class In(Generic[T]):
    """The type of a field that takes a value or another stage's output, and holds the value when the stage runs."""

    def __get__(self, instance: object, owner: object) -> T: ...  # type: ignore[empty-body]

    def __set__(self, instance: object, value: "T | Out") -> None: ...


class InEach(Generic[T]):
    """The type of a field that takes values or outputs by name, and holds a mapping of values when the stage runs."""

    def __get__(self, instance: object, owner: object) -> Mapping[str, T]: ...  # type: ignore[empty-body]

    def __set__(self, instance: object, value: "Mapping[str, T | Out]") -> None: ...


def setting(**options: Any) -> Any:
    """Return a field that changes how a stage works but not its outputs, so that it is no part of the cache key.

    ``options`` are those of ``dataclasses.field``.
    """
    return field(metadata={"is_setting": True}, **options)


# Not frozen_default: with it, mypy gives an inherited ``In`` field the type that it accepts, not the one that it holds.
@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field, setting))
class Inputs:
    """A base class whose subclasses are frozen keyword-only dataclasses; a field may be a stage's output (``In``)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, eq=False)(cls)


@dataclass(frozen=True, kw_only=True)
class Position:
    """The place of a stage in its run; the manifest finds a record by its position and the stage's class."""

    generation: int | None = None
    branch: str = ""
    """The chain or the further student that the stage belongs to; empty for the main chain."""
    split: str | None = None
    """The split whose rows the stage works on."""
    of: str = ""
    """The mark that distinguishes stages of a class at the same place: a trust function, an arm or a tested model."""


class Stage(Inputs):
    """One piece of a run. The fields of a subclass are its arguments and, but for settings, its cache key.

    A subclass names its outputs in a NamedTuple ``Made``, and makes them in :meth:`run`. Its fields are JSON values,
    references, sections of the configuration, dataclasses of these, and outputs of other stages.
    """

    name: str
    """The name that is shown and stored, e.g. ``gen-0/label-pool``; unique in its graph, and never parsed."""
    at: Position = Position()
    """The position of the stage in the run."""
    needs: Sequence["Out"] = ()
    """Outputs that the stage requires but does not take as arguments; without them it has nothing to do."""
    num_rows: int | None = None
    """The number of rows that the stage will work on, if known in advance."""
    revision: int = 1
    """The version of the stage's code. Raise it if outputs change: only this stage and those with new inputs rerun."""

    def run(self, task: Any) -> Done:
        """Do the work and return a ``Made``; ``task`` is a :class:`curation.rundir.run.Task`."""
        raise NotImplementedError(f"{type(self).__name__} does nothing")

    @property
    def kind(self) -> str:
        """The kind of work that the stage does: the name of its class."""
        return type(self).__name__

    @cached_property
    def takes(self) -> Mapping[str, float]:
        """The cluster resources that the stage occupies, by Ray's names (``CPU``, ``GPU``)."""
        return {"CPU": 1.0}

    @cached_property
    def host(self) -> Host | None:
        """The actors of a model or the training workers that the stage uses, which may serve other stages too."""
        return None

    @property
    def arguments(self) -> Json:
        """The values of the fields of the stage's class, by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _COMMON}

    @cached_property
    def inputs(self) -> JsonView:
        """The arguments on which the outputs depend."""
        settings = self.settings
        return {name: value for name, value in self.arguments.items() if name not in settings}

    @cached_property
    def settings(self) -> JsonView:
        """The arguments on which the outputs do not depend; the stage still waits for outputs among them."""
        return {item.name: getattr(self, item.name) for item in fields(self) if "is_setting" in item.metadata}

    def do(self, task: object, known: "Known") -> Done:
        """Run the stage with each output of another stage replaced by its value."""
        done = replace(self, needs=(), **resolve_outputs(self.arguments, known)).run(task)
        return replace(done, outputs=as_json(done.outputs))

    def out(self, *path: str) -> "Out":
        """Return an output as its type in ``Made``, a reference or JSON, or raise ``KeyError`` if there is none."""
        hint: Any = type(self).Made  # type: ignore[attr-defined]
        for key in path:
            if get_origin(hint) in (dict, Mapping):
                hint = get_args(hint)[1]
            elif is_dataclass(hint) or hasattr(hint, "_fields"):
                hint = get_type_hints(hint)[key]
            else:
                hint = Any
            if len(options := [option for option in get_args(hint) if option is not NoneType]) == 1:
                hint = options[0]
        is_ref = isinstance(hint, type) and issubclass(hint, Ref)
        return Out(stage=self, path=path, read=getattr(hint, "from_json", Out.read) if is_ref else Out.read)

    def value(self, *path: str) -> "Out":
        """Return an output as the JSON in its record; without a path, all outputs."""
        return Out(stage=self, path=path)

    @property
    def outs(self) -> Iterator["Out"]:
        """The outputs of other stages that the stage waits for."""
        return iter_leaves([self.inputs, self.settings, self.needs], Out)


_COMMON = frozenset(item.name for item in fields(Stage))


@dataclass(frozen=True, kw_only=True, eq=False)
class Out:
    """One output of a stage, which may not exist yet."""

    stage: Stage
    path: tuple[str, ...]
    """Keys into the stage's outputs, the outermost first."""
    read: Callable[[Any], Any] = lambda value: value
    """A function that converts the recorded JSON to the form that stages take."""
    optional: bool = False

    @property
    def or_none(self) -> "Out":
        """The same output, but optional: if it is missing, a stage that takes it gets ``None`` and is not skipped."""
        return Out(stage=self.stage, path=self.path, read=self.read, optional=True)

    def __str__(self) -> str:
        return f"{self.stage.name}: {'.'.join(self.path)}"


Table = TableRef | Out
"""An existing table, or the output of a stage."""
Model = ModelRef | Out
"""An existing model, or the output of a stage."""


class Unknown(Exception):
    """An error: the stage of a requested output is not done."""

    def __init__(self, out: Out) -> None:
        super().__init__(out)
        self.out = out


class Absent(Unknown):
    """An error: the stage of a requested output did not make it, or was skipped."""


class Skipped(NamedTuple):
    """A placeholder for the outputs of a stage that had nothing to do."""

    why: str


Known = Mapping[str, Outputs | Skipped]
"""The outputs of each stage that is done or skipped, by name."""


def order_stages(targets: object) -> list[Stage]:
    """Return the stages that make the outputs in ``targets``, each after the stages that it waits for.

    ``ValueError``: two stages have the same name, or stages wait for each other in a cycle.
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

    for out in iter_leaves(targets, Out):
        visit(out.stage)
    return list(found.values())


def count_steps(stages: Iterable[Stage]) -> dict[str, int]:
    """Return the length of the longest chain of stages that leads to each of the ordered ``stages``, by name."""
    found: dict[str, int] = {}
    for stage in stages:
        found[stage.name] = 1 + max((found[out.stage.name] for out in stage.outs), default=-1)
    return found


def list_awaited(stage: Stage) -> list[str]:
    """Return the names of the stages that a stage waits for, each once."""
    return list(dict.fromkeys(out.stage.name for out in stage.outs))


def find_dependents(names: Iterable[str], stages: Sequence[Stage]) -> list[str]:
    """Return the named stages and all of the ordered ``stages`` that wait for them, directly or through others."""
    found = set(names)
    for stage in stages:
        if not found.isdisjoint(list_awaited(stage)):
            found.add(stage.name)
    return [stage.name for stage in stages if stage.name in found]


def get_recorded(out: Out, known: Known) -> Any:
    """Return an output as JSON, or ``None`` for a missing optional one.

    ``Unknown``: its stage is not done. ``Absent``: the output is missing and not optional.
    """
    if out.stage.name not in known:
        raise Unknown(out)
    value: Any = known[out.stage.name]
    if isinstance(value, Skipped):
        value = None
    for key in out.path:
        value = None if value is None else value.get(key)
    if value is None and not out.optional:
        raise Absent(out)
    return value


def with_outs(value: object, change: Callable[[Out], Any]) -> Any:
    """Return a value with every output in it, at any depth, replaced by ``change(output)``."""
    if isinstance(value, Out):
        return change(value)
    if isinstance(value, Mapping):
        return {key: with_outs(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_outs(part, change) for part in value)
    if is_dataclass(value) and not isinstance(value, type | Ref):
        return replace(value, **{item.name: with_outs(getattr(value, item.name), change) for item in fields(value)})
    return value


def resolve_outputs(value: object, known: Known) -> Any:
    """Return a value with every output in it replaced by the recorded one (:func:`get_recorded`), as stages take it."""

    def read(out: Out) -> Any:
        found = get_recorded(out, known)
        return None if found is None else out.read(found)

    return with_outs(value, read)


def resolve_present(value: object, known: Known) -> Any:
    """Resolve outputs like :func:`resolve_outputs`, but drop the parts of a mapping whose outputs are ``Absent``."""
    if isinstance(value, Mapping):
        kept = {}
        for key, part in value.items():
            try:
                kept[key] = resolve_present(part, known)
            except Absent:
                continue
        return kept
    return resolve_outputs(value, known)


def to_plain_json(value: object, known: Known) -> Any:
    """Return a value as JSON with every output replaced by its recorded value: the basis of a cache key.

    Fields of sections and dataclasses are left out if they have their default, so that a new field with a default
    changes no key. ``Unknown``: as for :func:`get_recorded`. ``TypeError``, which names the type: a value is not JSON.
    """
    if isinstance(value, Out):
        return get_recorded(value, known)
    if isinstance(value, Section):
        return value.to_key()
    if isinstance(value, Ref):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        own = {item.name: getattr(value, item.name) for item in fields(value)}
        return _drop_defaults(own, type(value), known)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"an input of a stage has the key {wrong[0]!r}, which is not a string")
        return {key: to_plain_json(part, known) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(part, known) for part in value]
    if isinstance(value, str):
        return str(value)  # drops the subclass of texts from configuration files
    if value is None or type(value) in (int, float, bool):
        return value
    raise TypeError(f"an input of a stage is {value!r}, a {type(value).__name__}, which is not JSON")


def _drop_defaults(values: JsonView, of: type, known: Known) -> Json:
    """Return values of a dataclass as JSON without defaults; a missing output equals the default None."""
    defaults = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(of)
        if item.default is not MISSING or item.default_factory is not MISSING
    }
    changed = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    found: Json = to_plain_json(changed, known)
    return {
        name: value for name, value in found.items() if value is not None or defaults.get(name, MISSING) is not None
    }


def make_cache_key(stage: Stage, known: Known) -> Json:
    """Return the cache key of a stage as JSON: its revision and the inputs that are not defaults.

    The key leaves out the stage's class, so that classes can be renamed: names and inputs tell stages apart.
    ``Absent``: a required output is missing, so the stage has nothing to do. ``Unknown``: a stage is not done.
    """
    for out in sorted(stage.outs, key=lambda out: out.stage.name not in known):  # Absent is raised before Unknown
        get_recorded(out, known)
    return {"revision": stage.revision, **_drop_defaults(stage.inputs, type(stage), known)}


class Merged:
    """The stages of several graphs, where stages with the same work on the same inputs become one.

    Graphs of one run with different settings give different stages the same name. Here a stage's name ends with a
    digest of its work and of all that leads to it (``gen-0/trust@1f3a...``), so that equal stages have equal names.
    Graphs that are merged later in the same directory thus share stages, too.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Stage] = {}
        self._of: dict[Stage, Stage] = {}

    def out(self, out: Out) -> Out:
        """Return the same output of the merged stage."""
        return replace(out, stage=self.stage(out.stage))

    def stage(self, stage: Stage) -> Stage:
        """Return the merged stage that does the same work on the same inputs."""
        if stage not in self._of:
            merged = replace(stage, needs=with_outs(stage.needs, self.out), **with_outs(stage.arguments, self.out))
            key = [stage.kind, stage.revision, to_plain_json(with_outs([merged.inputs, merged.needs], str), {})]
            made = replace(merged, name=f"{stage.name}@{fingerprint([stage.name, *key])[:8]}")
            self._of[stage] = self._by_name.setdefault(made.name, made)
        return self._of[stage]
