"""Spaces of trust functions as data: the settings that a search may try.

A space is a mapping from keys to dimensions. A key is ``kind`` (a fitted trust function of ``curation.arms``), a key of
the section ``trust``, or ``options.KIND.NAME`` (``trust.options``). A dimension is a list of values, or one of
``{uniform: [a, b]}``, ``{log: [a, b]}`` (uniform in the logarithm), ``{int: [a, b]}`` and ``{log_int: [a, b]}``, both
ends included. A point has values only for the dimensions that its kind reads.
"""

import difflib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from curation.arms import PAPER_TRUST, TRUST, Fitted, check_fit_options, find_fitted
from curation.config import TrustConfig
from curation.config.trust import ROW_KEYS, find_read_keys, refuse_pca
from curation.errors import ConfigError
from curation.json_types import Json, JsonView
from curation.tables.schemas import describe_mend, get_input_column, is_number
from curation.trust.parts import read_by

if TYPE_CHECKING:
    import optuna

KIND = "kind"
OPTIONS = "options"
NOT_SEARCHED = {*TrustConfig.RESOURCES, *ROW_KEYS, KIND, "preset", OPTIONS, "search"}
"""Keys of the section ``trust`` that cannot be dimensions: they do not change the function, or they change the rows on
which functions are compared."""

PRESETS: Mapping[str, JsonView] = {
    # Around the winners of the paper's table of NTF architectures.
    "paper": {
        "depth": [2, 4, 8],
        "width": [128, 256, 512, 1024],
        "expansion": [1.0, 2.0, 4.0],
        "dropout": {"uniform": [0.0, 0.5]},
        "stochastic_depth": {"uniform": [0.0, 0.3]},
        "learning_rate": {"log": [1e-6, 1e-3]},
        "weight_decay": {"log": [1e-5, 1e-1]},
        "class_weight": [0.0, 0.5, 1.0],
        "batch_size": [64, 256, 1024],
    },
    # Every kind, at sizes for some thousands of rows.
    "kinds": {
        "kind": [
            "stacked",
            "fitted_confidence",
            "neural",
            "deep_ensemble",
            "attention",
            "linear_probe",
            "boosted_trees",
        ],
        "depth": [1, 2, 4],
        "width": [64, 128, 256],
        "dropout": {"uniform": [0.0, 0.5]},
        "learning_rate": {"log": [1e-4, 1e-2]},
        "weight_decay": {"log": [1e-5, 1e-1]},
        "class_weight": [0.0, 0.5, 1.0],
        "columns": [[], ["mean_logprob"], ["mean_logprob", "min_logprob", "first_logprob", "last_logprob"]],
        "max_steps": [2_000],  # and early stopping, so that a trial takes seconds
        "patience": [300],
        "options.attention.num_heads": [1, 4, 16],
        "options.boosted_trees.max_leaves": {"log_int": [4, 64]},
        "options.boosted_trees.learning_rate": {"log": [0.01, 0.3]},
        "options.boosted_trees.num_trees": {"log_int": [30, 300]},
    },
}
"""Preset spaces by name; a space's own keys are added to those of its preset, or replace them."""


SCALES = ("uniform", "log", "int", "log_int")
"""The kinds of ranges: uniform or uniform in the logarithm, of any or only of whole numbers."""


class Dimension(NamedTuple):
    """The values of a setting to try: all of ``ends``, or with a scale of ``SCALES`` the numbers from end to end."""

    ends: tuple[Any, ...]
    scale: str | None = None

    def draw(self, key: str, trial: "optuna.Trial") -> Any:
        """Return the value that a trial suggests."""
        if self.scale is None:
            return self.ends[trial.suggest_categorical(key, range(len(self.ends)))]
        suggest: Any = trial.suggest_int if "int" in self.scale else trial.suggest_float
        return suggest(key, *self.ends, log="log" in self.scale)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One trust function to try."""

    kind: str  # a fitted trust function of ``curation.arms.TRUST``
    trust: TrustConfig  # settings of the point; keys that its kind does not read have their defaults
    drawn: JsonView = field(default_factory=dict)
    """The values of the space's dimensions, and of ``kind`` if there are several."""

    @classmethod
    def default(cls, base: TrustConfig) -> "Point":
        """Return the point of the section ``trust`` itself."""
        return cls(kind=base.kind, trust=read_by(base.kind, find_fitted([base.kind])[base.kind], base))

    def section(self, base: TrustConfig) -> Json:
        """Return the section ``trust`` of this point as JSON, with only the keys that its kind reads."""
        mine, theirs = (config.model_dump(mode="json") for config in (self.trust, base))
        read = {key: mine[key] for key in _read(self.kind) | {OPTIONS}}
        kept = find_read_keys(find_fitted([self.kind])[self.kind]) | TrustConfig.RESOURCES
        return {key: theirs[key] for key in theirs if key in kept} | read | {KIND: self.kind, "search": False}


@dataclass(frozen=True)
class Space:
    """The space of the points that a search may try."""

    base: TrustConfig  # settings of keys that are no dimensions
    kinds: tuple[str, ...]
    dimensions: Mapping[str, Dimension]  # dimensions by key, without ``kind``

    @classmethod
    def of(cls, raw: Mapping[str, object], base: TrustConfig, *, stored: Sequence[str]) -> "Space":
        """Return the space that a mapping describes, after a check of all its values.

        ``base`` is the run's section ``trust``, ``stored`` are the states, and ``token_logprobs``, that the source's
        labels have. Raise ``ConfigError`` with the key and its value if a key is unknown, a dimension is empty, an
        input is not stored, or ``trust`` or a kind's options refuse a value.
        """
        given = expand_preset(raw)
        kinds = _parse_kinds(given.pop(KIND))
        found = {key: _parse_dimension(f"tune.space.{key}", value) for key, value in given.items()}
        if not found and len(kinds) == 1:
            raise ConfigError("tune.space: no dimension; give a preset, or keys with the values to try")
        try:
            refuse_pca(base, kinds)
        except ValueError as error:
            raise ConfigError(f"tune.space.{KIND}: {error}") from error
        space = cls(base, kinds, found)
        for key, dimension in found.items():
            space._check(key, dimension, stored)
        return space

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of a row that a point may read: states, then numbers."""
        found: dict[str, None] = {}
        for key, of_base in (("states", self.base.states), ("columns", self.base.columns)):
            dimension = self.dimensions.get(key)
            found |= dict.fromkeys([*of_base, *itertools.chain(*(dimension.ends if dimension else ()))])
        return tuple(found)

    def draw(self, trial: "optuna.Trial") -> Point:
        """Return the point that a trial of Optuna suggests, with the dimensions that its kind reads."""
        kind = self.kinds[0] if len(self.kinds) == 1 else Dimension(self.kinds).draw(KIND, trial)
        read = {key: dimension for key, dimension in self.dimensions.items() if _is_read([kind], key)}
        return self.point(kind, {key: dimension.draw(key, trial) for key, dimension in read.items()})

    def point(self, kind: str, values: Mapping[str, object]) -> Point:
        """Return the point of a kind with these values of its dimensions."""
        settings = {key: value for key, value in values.items() if not key.startswith(f"{OPTIONS}.")}
        own = {key.rpartition(".")[2]: value for key, value in values.items() if key.startswith(f"{OPTIONS}.")}
        options = {**self.base.options.get(kind, {}), **own}
        raw = self.base.model_dump() | settings | {OPTIONS: {kind: options} if options else {}}
        trust = read_by(kind, find_fitted([kind])[kind], TrustConfig.model_validate(raw))
        return Point(kind=kind, trust=trust, drawn={KIND: kind, **values} if len(self.kinds) > 1 else dict(values))

    def _check(self, key: str, dimension: Dimension, stored: Sequence[str]) -> None:
        """Raise ``ConfigError`` if a key is unknown or one of its values is refused."""
        where = f"tune.space.{key}"
        if key.startswith(f"{OPTIONS}."):
            kind, _, name = key.removeprefix(f"{OPTIONS}.").rpartition(".")
            if kind not in self.kinds or not name:
                searched = f"with a kind that is searched ({', '.join(self.kinds)})"
                raise ConfigError(f"{where}: give options.KIND.NAME {searched}")
            for value in dimension.ends:
                check_fit_options(where, kind, self.base, {name: value})
            return
        known = [name for name in TrustConfig.model_fields if name not in NOT_SEARCHED]
        if key not in known:
            if key in TrustConfig.model_fields:
                raise ConfigError(f"{where}: not searched over; set trust.{key} for all trials")
            near = difflib.get_close_matches(key, [*known, KIND], 1)
            meant = f"; did you mean {near[0]}?" if near else f"; known: {KIND}, {', '.join(known)}"
            raise ConfigError(f"{where}: no such key{meant}")
        for value in dimension.ends:
            try:
                TrustConfig.model_validate(self.base.model_dump() | {key: value})
            except ValidationError as error:
                raise ConfigError(f"{where}: {value!r} is refused: {error.errors()[0]['msg']}") from error
            read = value if key in ("states", "columns") else ()
            if missing := [name for name in read if name not in stored and not is_number(name)]:
                raise ConfigError(
                    f"{where}: {', '.join(missing)} is not stored (stored: {', '.join(stored)}); "
                    f"{describe_mend(get_input_column(missing[0]))}, and the source split is labelled again"
                )
        if not _is_read(self.kinds, key):
            raise ConfigError(f"{where}: none of the kinds {', '.join(self.kinds)} reads it; leave it out")


def expand_preset(raw: JsonView) -> Json:
    """Return a space with its preset's keys in place of the preset's name, except keys that none of its kinds reads."""
    given = dict(raw)
    preset = given.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"tune.space.preset: {preset!r} is not one of {', '.join(PRESETS)}")
    of_preset = dict(PRESETS[preset]) if preset else {}
    named = given.pop(KIND, of_preset.pop(KIND, ["neural"]))
    kinds = _parse_kinds(named)
    return {KIND: named, **{key: value for key, value in of_preset.items() if _is_read(kinds, key)}, **given}


def _parse_kinds(value: object) -> tuple[str, ...]:
    values = _parse_dimension(f"tune.space.{KIND}", value).ends
    for kind in values:
        if kind not in TRUST or not isinstance(TRUST[kind], Fitted):
            known = ", ".join(find_fitted(TRUST))
            raise ConfigError(f"tune.space.{KIND}: {kind!r} is not a trust function that is fitted; known: {known}")
        if kind == PAPER_TRUST:
            raise ConfigError(f"tune.space.{KIND}: {kind} has the paper's settings and none to try; take neural")
    return values


def _read(kind: str) -> set[str]:
    """Return the keys of ``trust`` that change the functions of a kind."""
    return set(find_read_keys(find_fitted([kind])[kind]) - NOT_SEARCHED)


def _is_read(kinds: Iterable[str], key: str) -> bool:
    """Return whether one of the kinds reads a dimension."""
    return any(key in _read(kind) or key.startswith(f"{OPTIONS}.{kind}.") for kind in kinds)


def _parse_dimension(where: str, value: object) -> Dimension:
    if isinstance(value, list | tuple):
        if not value:
            raise ConfigError(f"{where}: a list without values; give at least one, or leave the key out")
        return Dimension(tuple(value))
    scale: Any = None
    ends: Any = None
    if isinstance(value, Mapping) and len(value) == 1:
        ((scale, ends),) = value.items()
    if scale not in SCALES:
        raise ConfigError(
            f"{where}: {value!r} is not a dimension; give a list of values, or one of "
            f"{', '.join(f'{{{name}: [a, b]}}' for name in SCALES)}"
        )
    types = (int,) if "int" in scale else (int, float)
    is_pair = isinstance(ends, list | tuple) and len(ends) == 2
    if not is_pair or not all(type(end) in types and math.isfinite(end) for end in ends):
        what = "whole numbers" if "int" in scale else "finite numbers"
        raise ConfigError(f"{where}: {scale}: {ends!r}; give two {what}, the lower first")
    if ends[0] >= ends[1]:
        raise ConfigError(f"{where}: {scale}: {[*ends]} has no points between its ends; give the lower first")
    if "log" in scale and ends[0] <= 0:
        raise ConfigError(f"{where}: {scale}: {[*ends]}: the logarithm needs a lower end above 0")
    return Dimension(tuple(ends), scale)
