"""An ablation: variants of one run, measured on the same rows (``curate ablate``)."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from curation.arms import REFERENCE_ARM, TRUST, Column, Draw
from curation.config.base import Root, Seed, Share
from curation.config.run import RunConfig
from curation.json_types import Json

FUNCTION = "function"
"""The key of a variant that is ranked by a column of its labels instead of the run's own fit."""
POOL = "pool"


class AblationConfig(Root):
    """Variants of the run in ``base``: each changes some of its keys, and all of them are measured on the same rows.

    Variants share a directory a seed. What they have in common is done once, also in another ablation of the same name
    and seed.
    """

    title: str
    """Heads the table."""
    base: str
    """The run's configuration file, relative to this file."""
    common: Json = Field(default={}, alias="set")
    """Keys of the base to set for all variants, as ``a.b: value``. Name the same ``teacher.states`` in several
    ablations, and they share their labels."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """A deal of the rows, a teacher and fits of their own for each."""
    variants: Annotated[dict[str, Json], Field(min_length=1)]
    """Variants by name: keys of the base to set, as ``a.b: value``; ``function: internal_confidence`` (or ``naive``)
    ranks by that instead of the fit of the section ``trust``."""
    reference: str | None = None
    """The variant to which the others are compared."""
    sets: Annotated[tuple[str, ...], Field(min_length=1)] = (POOL,)
    """Where trust is measured: ``pool``, or names of ``splits.probes``. No fit has seen these rows."""
    share: Share | None = None
    """Purity is that of the best-ranked rows that make up this share of all; unset, the share that the run's budget
    (``selection.budget.n`` or ``share``) is of the pool."""
    students: bool = False
    """Train and test the students of every arm too, and compare each arm with ground truth."""
    paper: dict[str, dict[str, float]] = Field(default={})
    """The paper's values, by variant (or by set, where there are several) and metric, to be shown beside."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        if self.reference is not None and self.reference not in self.variants:
            raise ValueError(f"reference: {self.reference!r} is none of the variants {', '.join(self.variants)}")
        if len(set(self.seeds)) < len(self.seeds) or len(set(self.sets)) < len(self.sets):
            raise ValueError("seeds and sets: name each once")
        known = {*self.variants, *self.sets}
        if unknown := [name for name in self.paper if name not in known]:
            raise ValueError(f"paper: {unknown[0]!r} is neither a variant nor a set")
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
    """The function that ranks: a name of ``curation.arms.TRUST``; ``trust``, the run's own fit."""


class Ablation(NamedTuple):
    """An ablation that was loaded: every variant is a valid run."""

    name: str
    config: AblationConfig
    variants: Mapping[int, tuple[Variant, ...]]
    """Variants by seed."""
