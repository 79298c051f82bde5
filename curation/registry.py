"""Registries of parts that can be added to a run by one new file and one line, and are found by name.

An entry declares what the part is, what it reads and where its code is (``module:Name``). It is light, so that a
configuration can be checked without Ray, torch or transformers. ``module:NAME`` in place of a name refers to an entry
in a user's module; an installed package can give such an entry a name by an entry point.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, Literal, TypeVar

from curation import own_modules
from curation.errors import ConfigError

T = TypeVar("T")


def load_code(path: str) -> Any:
    """Return what ``module:Name`` names, or raise ``ImportError``, ``AttributeError`` or ``ValueError``."""
    module, _, name = path.partition(":")
    return getattr(own_modules.import_own_module(module), name)


@cache
def find_installed(group: str) -> Mapping[str, str]:
    """Return the entry points of a group in installed packages: ``module:NAME`` by name."""
    return {point.name: point.value for point in entry_points(group=group)}


def check_options(
    key: str, function: Callable[..., Any], options: Mapping[str, object], *arguments: object, **others: object
) -> None:
    """Raise ``ConfigError``, with the ``key`` of the settings, if a class or function does not take ``options``.

    The error lists what may be set: all parameters beside those of the call's own ``arguments`` and ``others``.
    """
    name, known = getattr(function, "__qualname__", function), "no options"
    try:
        signature = inspect.signature(function)
        free = list(signature.parameters.values())[len(arguments) :]
        known = ", ".join(one.name for one in free if one.name not in others and one.kind != one.VAR_KEYWORD) or known
        signature.bind(*arguments, **others, **options)
    except TypeError as error:
        raise ConfigError(f"{key}: {name} takes {known}, and not {dict(options)}: {error}") from error


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name; ``module:NAME`` finds an entry elsewhere. Iteration gives the names that are registered here.

    Args:
        what: an entry in words, e.g. ``arm``.
        entries: by name.
        accept: a function that returns the entry for a constant of a user's module, given its path and value, or raises
            ``TypeError``.
        groups: the entry points in which installed packages name further entries, as ``name = "module:NAME"``.
    """

    def __init__(
        self, what: str, entries: Mapping[str, T], accept: Callable[[str, Any], T], *, groups: Sequence[str] = ()
    ) -> None:
        self._what, self._entries, self._accept, self.groups = what, dict(entries), accept, tuple(groups)

    def __getitem__(self, name: str) -> T:
        try:
            return self.find(name)
        except ValueError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def names(self) -> frozenset[str]:
        """The names that are registered here or by installed packages; nothing is imported."""
        return frozenset(self._entries).union(*map(find_installed, self.groups))

    def find(self, name: str) -> T:
        """Return the entry of that name; ``ValueError`` names the nearest, or what is wrong with ``module:NAME``."""
        if name in self._entries:
            return self._entries[name]
        known = {key: path for group in self.groups for key, path in find_installed(group).items()}
        path = known.get(name, name)
        if ":" not in path:
            near = difflib.get_close_matches(name, [*self._entries, *known], n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"known: {', '.join([*self._entries, *known])}, or module:NAME"
            )
            raise ValueError(f"no {self._what} is called {name!r}; {hint}")
        try:
            return self._accept(path, load_code(path))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"no {self._what} is at {name!r} ({error})"
                f"{own_modules.suggest_mend(path, error) or '; name a constant of a module that Python finds'} "
                "(docs/extending.md)"
            ) from error


def make_instance_check(kind: type[T]) -> Callable[[str, Any], T]:
    """Return an ``accept`` of :class:`Registry` that takes constants of one type as entries."""

    def accept(path: str, found: object) -> T:
        if not isinstance(found, kind):
            raise TypeError(f"it is a {type(found).__name__}, not a {kind.__name__}")
        return found

    return accept


@dataclass(frozen=True)
class Method:
    """A method of training students (``student.method``)."""

    config: str
    """The method's section of the configuration, a ``curation.config.StudentConfig``, as ``module:Class``."""
    trained_by: str
    """A function with the parameters and the result of ``train.sft.train_sft``, as ``module:function``."""
    reads: tuple[Literal["domain", "examples"], ...] = ()
    """Arguments beside base, rows and recipe: ``domain``, the rows' ``DomainConfig``; ``examples``, the pool table."""
    learns: Literal["completions", "labels", "pairs"] = "completions"
    """The part of a selected row that it learns from beside the prompt. With labels, gold arms need no rollouts, and
    ``student.max_length`` limits only prompts. With pairs, rows are prompts with a chosen and a rejected answer
    (``schemas.PREFERENCES``), and base and students are tested by which answer they find likelier."""


METHODS: Registry[Method] = Registry(
    "student method",
    {
        "sft": Method("curation.config.models:SftConfig", "train.sft:train_sft"),
        "grpo": Method(
            "curation.config.models:GrpoConfig", "train.grpo:train_grpo", reads=("domain", "examples"), learns="labels"
        ),
        "dpo": Method("curation.config.models:DpoConfig", "train.dpo:train_dpo", learns="pairs"),
    },
    make_instance_check(Method),
    groups=("curation.methods",),
)
"""Student methods by name."""


@dataclass(frozen=True)
class Budget:
    """A rule for the number of rows that every arm selects (a key of ``selection.budget``)."""

    counted_by: str
    """A class with the member ``count`` of ``curation.selection.budget.BudgetRule``, as ``module:Class``."""
    reads: tuple[Literal["scores", "right", "measured", "calibration"], ...] = ()
    """Fields of ``curation.selection.budget.Pool`` that it reads beside the rows; ``right`` makes it an oracle."""
    keys: tuple[str, ...] | None = None
    """The keys of ``selection.budget`` that its class takes; by default, those under the rule's own name."""


_BUDGETS = "curation.selection.budget"
BUDGETS: Registry[Budget] = Registry(
    "budget",
    {
        "n": Budget(f"{_BUDGETS}:Fixed", keys=("n",)),
        "share": Budget(f"{_BUDGETS}:Share", keys=("share",)),
        "oracle": Budget(f"{_BUDGETS}:Oracle", ("right",), keys=("cap",)),
        "fit_purity": Budget(f"{_BUDGETS}:FitPurity", ("right", "scores", "measured"), keys=()),
        "threshold": Budget(f"{_BUDGETS}:Threshold", ("scores",), keys=("threshold",)),
        "risk": Budget("curation.selection.risk:Certified", ("scores", "calibration"), keys=("risk",)),
    },
    make_instance_check(Budget),
    groups=("curation.budgets",),
)
"""Budget rules by name."""


@dataclass(frozen=True)
class Backend:
    """A backend by which models answer (``teacher.backend``)."""

    made_by: str
    """A class with the members of ``curation.teachers.Teacher``, as ``module:Class``."""
    weights: bool = True
    """Whether it needs a model; if not, its static method ``width`` gives the width of its states."""
    calls: int = 1
    """Number of simultaneous calls of ``label`` that keep a teacher busy: above 1 if they share its batches."""
    replaceable: bool = True
    """Whether a process can replace such a teacher by another one; false for an engine that never frees its memory."""
    all_cores: bool = False
    """Whether an actor without a GPU takes all the cores that its node has for it, unless ``num_cpus`` is set."""
    asks: bool = True
    """Whether it asks a model or takes as long as one; otherwise there is no speed to probe."""
    probe_rows: int | None = None
    """Default number of rows that a forecast asks, where each row is paid for or a model answers many at once."""
    fed_twice: int = 0
    """Maximum number of prompt tokens that are fed again if a row passes a gate: a block of a prefix cache."""


BACKENDS: Registry[Backend] = Registry(
    "backend",
    {
        "transformers": Backend("curation.teachers.transformers:TransformersTeacher", all_cores=True),
        "vllm": Backend(
            "curation.teachers.vllm:VllmTeacher",
            calls=8,
            replaceable=False,
            all_cores=True,
            probe_rows=1200,
            fed_twice=16,
        ),
        "scripted": Backend("curation.teachers.scripted:ScriptedTeacher", weights=False),
        "endpoint": Backend("curation.teachers.endpoint:EndpointTeacher", weights=False, calls=2, probe_rows=32),
        "given": Backend("curation.teachers.scripted:GivenTeacher", weights=False, asks=False),
    },
    make_instance_check(Backend),
    groups=("curation.backends",),
)
"""Backends by name."""


ENTRY_POINTS = "curation.domains"
"""The group of entry points under which domains are found by name."""
DOMAINS: Registry[str] = Registry(
    "domain",
    {
        "chess": "curation.domains.chess:Chess",
        "chess_mate": "curation.domains.chess:ChessMate",
        "classification": "curation.domains.classification:Classification",
        "math": "curation.domains.math:Math",
        "mcqa": "curation.domains.mcqa:Mcqa",
        "next_token": "curation.domains.next_token:NextToken",
        "pair": "curation.domains.pair:AnswerPair",
        "text": "curation.domains.text:Text",
    },
    lambda path, found: path,
    groups=(ENTRY_POINTS,),
)
"""Classes of task interfaces, by name; a user's own is ``module:Class`` or an entry point."""
