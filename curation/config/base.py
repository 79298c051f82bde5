"""Base classes of the sections (strict sections, presets, recipes that Ray Train runs) and types of numbers."""

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, ClassVar, ParamSpec, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator, validate_call
from pydantic_core import ErrorDetails

from curation.errors import ConfigError
from curation.json_types import Json, JsonView
from curation.redaction import iter_secrets
from curation.storage.files import check_name
from curation.storage.paths import to_place

PositiveInt = Annotated[int, Field(gt=0, lt=2**63)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed that every generator accepts: NumPy takes 32 bits (``transformers.set_seed``), torch 64 and vLLM 63."""
Share = Annotated[float, Field(gt=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AcceleratorType = Annotated[str | None, Field(min_length=1)]
ACCELERATOR = "accelerator_type:"
"""Prefix of Ray's resource for an accelerator type, of which each node with that type has 1."""
Location = Annotated[str, AfterValidator(check_name)]
"""A path, URL or hub id whose name every file system accepts."""


def _check_path(path: str) -> str:
    to_place(path)
    return path


Directory = Annotated[str, AfterValidator(_check_path)]
"""A path or URL where tables are written (``curation.storage.paths``)."""


def _require_distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"names {twice[0]!r} twice; name each once")
    return values


DISTINCT = AfterValidator(_require_distinct)
"""Validator of a list that names nothing twice."""


def count_share(share: float, num_rows: int) -> int:
    """Return a share of ``num_rows`` rounded down, computed from the decimal as written: .29 of 100 is 29."""
    return int(Fraction(str(share)) * num_rows)


def make_ray_resources(
    cpus: float, gpus: float, memory_gib: float, accelerator_type: str | None = None
) -> dict[str, float]:
    """Return the resources of a process by Ray's names, with ``memory`` in bytes; GPU and memory are left out at 0."""
    accelerator = {} if accelerator_type is None else {f"{ACCELERATOR}{accelerator_type}": 0.001}  # as Ray itself asks
    memory = {"memory": memory_gib * 2**30} if memory_gib else {}
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {}) | memory | accelerator


class Section(BaseModel):
    """A part of the configuration. It is frozen and refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)
    RESOURCES: ClassVar[set[str]] = set()
    """Keys that affect speed, not values, so they are not in the cache key."""

    def _iter_problems(self) -> Iterator[str]:
        """Yield each conflict between the section's values, with a fix."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_problems(self) -> Self:
        for problem in self._iter_problems():
            raise ValueError(problem)
        return self

    @classmethod
    def part_of(cls, section: "Section") -> Self:
        """Return a section of this class, from one that has all its keys."""
        return cls(**{name: getattr(section, name) for name in cls.model_fields})

    @property
    def keyed(self) -> Self:
        """This section without keys that change no value, for a cache key."""
        return self.without(self.RESOURCES)

    def to_key(self) -> Json:
        """Return the section's part of a cache key, as JSON without defaults, so that new keys do not change it."""
        return self.keyed.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_key(cls, key: JsonView) -> Self:
        """Return the section that a cache key holds. Missing keys take their defaults, whatever a preset says."""
        defaults = {
            name: field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
            if not field.is_required()
        }
        return cls.model_validate({**defaults, **key})

    def without(self, keys: Collection[str]) -> Self:
        """Return a copy with these keys at their defaults, for a reader that must not depend on them."""
        fields = type(self).model_fields
        return self.model_copy(update={key: fields[key].get_default(call_default_factory=True) for key in keys})

    def only(self, keys: Collection[str]) -> Self:
        """Return a copy with all other keys at their defaults, for a reader that may depend only on these keys."""
        return self.without(type(self).model_fields.keys() - set(keys))


_OF_CLASSES = re.compile(r"(?:sources\..+\.)?domain\.classes\.")
"""Prefix of keys that are class names, which may look like a credential: BANKING77 has ``password_closed``."""


class Root(Section):
    """A whole configuration. It is written into a run directory and a report, so it may hold no credentials."""

    @model_validator(mode="before")
    @classmethod
    def _no_credentials(cls, value: object) -> object:
        found = [key for key, is_by_name in iter_secrets(value) if not (is_by_name and _OF_CLASSES.match(key))]
        if found:
            raise ValueError(
                f"{found[0]}: holds a credential, and a configuration is written into the run directory; give it by "
                "the environment of the driver and the nodes (docs/operations.md, Object stores)"
            )
        return value


class PresetSection(Section):
    """A section whose ``preset`` gives the values of the keys that the user leaves out."""

    PRESETS: ClassVar[Mapping[str, JsonView]] = {}
    """The values of each preset."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        name = value.get("preset", cls.model_fields["preset"].default if "preset" in cls.model_fields else None)
        return {**(cls.PRESETS.get(name, {}) if isinstance(name, str) else {}), **value}


class TrainSection(PresetSection):
    """A recipe that Ray Train runs, with the number and resources of its workers."""

    RESOURCES: ClassVar[set[str]] = {
        "cpus_per_worker",
        "gpus_per_worker",
        "memory_gib_per_worker",
        "accelerator_type",
        "max_failures",
    }

    num_workers: PositiveInt = 1
    """Number of processes that train together."""
    cpus_per_worker: PositiveInt = 1
    """CPUs, and threads, of each worker."""
    gpus_per_worker: Annotated[float, Field(ge=0, le=1)] = 0
    """GPUs of each worker: 1, since it computes on one, or a fraction for a single worker, which shares its GPU."""
    memory_gib_per_worker: NotNegative = 0
    """Memory of a worker, in GiB; 0 declares none. Stages whose memory does not fit on a node wait for each other."""
    accelerator_type: AcceleratorType = None
    """The type of GPU of the workers' nodes, by Ray's name for it, such as ``H100``; unset: any."""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """Number of times that training resumes after a worker died, before the run fails."""

    def _iter_problems(self) -> Iterator[str]:
        if 0 < self.gpus_per_worker < 1 < self.num_workers:
            yield (
                f"gpus_per_worker: {self.gpus_per_worker:g} of {self.num_workers} workers: two workers on one GPU "
                "cannot exchange gradients (NCCL refuses them); set gpus_per_worker: 1, or num_workers: 1"
            )

    @property
    def resources(self) -> Json:
        """The keys of ``RESOURCES`` with their values."""
        return {key: getattr(self, key) for key in self.RESOURCES}

    @property
    def per_worker(self) -> dict[str, float]:
        """Resources of a worker on its node, under Ray's names."""
        return make_ray_resources(
            self.cpus_per_worker, self.gpus_per_worker, self.memory_gib_per_worker, self.accelerator_type
        )

    @property
    def takes(self) -> dict[str, float]:
        """The cluster resources that all its workers occupy together, by Ray's names."""
        return {kind: self.num_workers * amount for kind, amount in self.per_worker.items()}


P = ParamSpec("P")
T = TypeVar("T")
_MESSAGES = {"sequence_str": "texts are not taken as lists; give a list", "extra_forbidden": "unknown key"}
"""Messages that replace pydantic's, which name Python types, by pydantic's type of error."""


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that checks its arguments, options of a configuration, by their annotations.

    ``ConfigError`` names the missing and the wrong ones, with the innermost problem of each.
    """
    checked = validate_call(config=ConfigDict(strict=True))(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return checked(*arguments, **options)
        except ValidationError as error:
            problems: dict[str, ErrorDetails] = {}
            for found in error.errors():
                name = str(found["loc"][0]) if found["loc"] else ""
                if name not in problems or len(found["loc"]) > len(problems[name]["loc"]):
                    problems[name] = found
            missing = [name for name, found in problems.items() if found["type"].startswith("missing")]
            wrong = [
                f"{f'{name}: ' if name else ''}{found['input']!r}: {_MESSAGES.get(found['type'], found['msg'])}"
                for name, found in problems.items()
                if name not in missing
            ]
            raise ConfigError("; ".join([*(f"{name}: is missing" for name in missing), *wrong])) from error

    return call
