"""The settings of a stack (``trust.options.stacked``), checked before a run as well as before a fit."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from curation.config import TrustConfig
from curation.errors import ConfigError


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Recipe:
    """Settings of a stack (``trust.options.stacked``)."""

    folds: Annotated[int, Field(ge=2)] = 5
    probe_rows: NonNegativeInt = 80
    """Minimum number of labelled rows for members that read the states; with fewer, only the numbers are used."""
    network_rows: NonNegativeInt = 500
    """Minimum number of labelled rows for networks."""
    tree_rows: NonNegativeInt = 2_000
    """Minimum number of labelled rows for combining by boosted trees, if better, in place of a logistic regression."""
    proof: NonNegativeFloat = 2.0
    """The lead in cross-validated AUC, in standard errors of the difference, at which a simpler function replaces the
    whole stack."""
    depth: PositiveInt = 2
    """The number of blocks of a network of the kind ``neural``."""
    width: PositiveInt = 128
    learning_rate: PositiveFloat = 1e-3
    max_steps: PositiveInt = 1_000
    patience: PositiveInt = 200

    def network(self, config: TrustConfig) -> TrustConfig:
        """Return the settings of a network; classes weigh the same, so that its logits are those of probabilities."""
        own = ("depth", "width", "learning_rate", "max_steps", "patience")
        return config.model_copy(update={"class_weight": 0.0, **{name: getattr(self, name) for name in own}})


def parse_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of ``trust.options.stacked``; raise ``ConfigError`` for an unknown setting or a bad value."""
    try:
        return Recipe(**options)
    except ValidationError as error:
        problem = error.errors()[0]
        name, known = problem["loc"][-1], ", ".join(field.name for field in fields(Recipe))
        why = (
            f"there is no such setting; known are {known}"
            if problem["type"].startswith("unexpected")
            else f"{problem['input']!r}: {problem['msg']}"
        )
        raise ConfigError(f"trust.options.stacked.{name}: {why}") from error
