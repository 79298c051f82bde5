"""The file of an ablation, and the runs that are its variants."""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from curation.arms import REFERENCE_ARM, TRUST, Column, Draw
from curation.config.base import Root, Seed, Share
from curation.config.files import read, read_mapping, with_folder
from curation.config.load import nest_keys, parse_config, put_key, put_override, refuse_unread, validate_keys
from curation.config.run import RunConfig
from curation.errors import ConfigError
from curation.json_types import Json
from curation.storage.paths import Place, to_place

FUNCTION = "function"
"""Key of a variant that names its ranking function, instead of the run's fitted trust function."""
POOL = "pool"


class AblationConfig(Root):
    """Variants of the run in ``base``: each changes some of its keys, and all of them are measured on the same rows.

    The variants of a seed share a directory. Stages that they have in common run once, also across ablations of the
    same name and seed.
    """

    title: str
    """Title of the table."""
    base: str
    """The run's configuration file, relative to this file."""
    common: Json = Field(default={}, alias="set")
    """Keys of the base to set for all variants, as ``a.b: value``. Ablations that name the same ``teacher.states``
    share their labels."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """Seeds, each with its own splits of the rows, teacher and fits."""
    variants: Annotated[dict[str, Json], Field(min_length=1)]
    """Variants by name: keys of the base to set, as ``a.b: value``; ``function: internal_confidence`` (or ``naive``)
    ranks by that function instead of the one that the section ``trust`` fits."""
    reference: str | None = None
    """The variant with which the others are compared."""
    sets: Annotated[tuple[str, ...], Field(min_length=1)] = (POOL,)
    """Row sets on which trust is measured: ``pool``, or names of ``splits.probes``. No fit uses their rows."""
    share: Share | None = None
    """Share of all rows, best-ranked first, whose purity is measured. Unset: the run's budget (``selection.budget.n``
    or ``share``) as a share of the pool."""
    students: bool = False
    """Whether to also train and test the students of every arm, and to compare each arm with ground truth."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.reference is not None and self.reference not in self.variants:
            raise ValueError(f"reference: {self.reference!r} is not one of the variants {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds) or len(set(self.sets)) < len(self.sets):
            raise ValueError("seeds and sets: name each once")
        for name, keys in self.variants.items():
            function = keys.get(FUNCTION, REFERENCE_ARM)
            ready = [trust for trust, made in TRUST.items() if isinstance(made, Draw | Column)]
            if function not in (REFERENCE_ARM, *ready):
                raise ValueError(
                    f"variants.{name}.function: {function!r} is none of {', '.join(ready)}; a function that is fitted "
                    "is named by trust.kind"
                )
        return self


class Variant(NamedTuple):
    """One variant of an ablation with one seed."""

    name: str
    config: RunConfig
    function: str
    """Name of the ranking function in ``curation.arms.TRUST``, or ``trust`` for the run's own fit."""


class Ablation(NamedTuple):
    """A loaded ablation, whose variants are all valid runs."""

    name: str
    config: AblationConfig
    variants: Mapping[int, tuple[Variant, ...]]
    """Variants by seed."""


def load(path: str | Place, overrides: Sequence[str] = ()) -> Ablation:
    """Return the ablation in a YAML file, whose variants are all runs of the same rows; overrides change the base."""
    path = to_place(path)
    raw = read_mapping(path, mend="docs/trust.md shows one, under Ablations")
    config = validate_keys(AblationConfig, raw, str(path))
    base = path.resolve().parent / config.base
    common, folder = read(base), base.resolve().parent
    for override in overrides:
        put_override(common, override, folder)
    for key, value in config.common.items():
        put_key(common, key, with_folder(value, folder), f"{path}: set.{key}")
    variants = {}
    runs: list[tuple[Json, RunConfig]] = []
    for seed in config.seeds:
        of_seed: list[Variant] = []
        for name, keys in config.variants.items():
            changed = {**copy.deepcopy(common), "seed": seed}
            for key, value in keys.items():
                if key != FUNCTION:
                    put_key(changed, key, with_folder(value, folder), f"{path}: variants.{name}.{key}")
            run = parse_config(changed, f"{path}: variants.{name}")
            runs.append((nest_keys(keys), run))
            if of_seed and run.rows != of_seed[0].config.rows:
                raise ConfigError(
                    f"{path}: variants.{name}: changes domain, seed, sources or splits; variants are measured on the "
                    "same rows: set these keys for all, under set"
                )
            of_seed.append(Variant(name, run, keys.get(FUNCTION, REFERENCE_ARM)))
        variants[seed] = tuple(of_seed)
    for keys, run in runs:
        refuse_unread(keys, [run], f"{path}: variants")
    refuse_unread(nest_keys(config.common), [run for _, run in runs], f"{path}: set")
    return Ablation(path.name.rpartition(".")[0] or path.name, config, variants)
