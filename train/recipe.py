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
    """With fewer labelled rows no member reads the states: the numbers stand alone."""
    network_rows: NonNegativeInt = 500
    """With fewer labelled rows there are no networks."""
    tree_rows: NonNegativeInt = 2_000
    """With fewer labelled rows a logistic regression combines; with as many, boosted trees do where they are better."""
    proof: NonNegativeFloat = 2.0
    """How many standard errors of the difference in cross-validated AUC a simpler function has to be ahead, to be taken
    in place of the whole stack."""
    depth: PositiveInt = 2
    """Blocks of a network, which is one of ``neural``."""
    width: PositiveInt = 128
    learning_rate: PositiveFloat = 1e-3
    max_steps: PositiveInt = 1_000
    patience: PositiveInt = 200

    def network(self, config: TrustConfig) -> TrustConfig:
        """Return how a network is fitted: its logits are to be probabilities, so no class weighs more."""
        own = ("depth", "width", "learning_rate", "max_steps", "patience")
        return config.model_copy(update={"class_weight": 0.0, **{name: getattr(self, name) for name in own}})


def parse_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of ``trust.options.stacked``.

    Raises:
        ConfigError: a setting that there is none of, or a value that it cannot have.
    """
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
