"""A chain: which students teach, on which share of the pool, what stands beside them, and when the chain stops."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from curation.arms import REFERENCE_ARM
from curation.config.base import PositiveInt, Section
from curation.config.selection import RiskConfig

DEFAULT_SHARES = 4
"""Shares of the pool of a run with several generations, unless the file says."""


class StopConfig(Section):
    """When a chain stops: decided after each generation but the last, without gold labels of the pool.

    Any one of these stops it. The numbers are those of the generation's trust function: of the arm that teaches or,
    where that arm ranks by no score of a labelled split, of the arm ``trust``.
    """

    min_auc: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Stop unless the 95 % interval of the AUC on parsed validation rows of the source lies above this."""
    min_certified: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Stop unless a larger share than this of the generation's labelled pool rows is certified: by the run's own risk
    budget or, where ``risk`` is set, by that. A run without either is not asked."""
    max_shift: Annotated[float, Field(gt=0.5, le=1)] = 0.8
    """Stop if the 95 % interval of the AUC with which a classifier tells the pool's hidden states from those of the
    calibration split (without one: of the source) lies above this."""
    risk: RiskConfig | None = None
    """Certify on validation rows of the source instead. They also ended the fit early, so this is no guarantee."""


class ChainConfig(Section):
    """How generations follow each other; read where ``generations`` has two entries or more."""

    arms: Annotated[tuple[str, ...], Field(min_length=1)] = (REFERENCE_ARM,)
    """The arms whose students teach the next generation, a chain each. The first is the main chain: its generations
    train the other ``selection.arms`` too, but those that have a chain of their own."""
    shallow: tuple[Literal["first_teacher", "predecessor"], ...] = ()
    """Students to compare with, which no chain led to. ``first_teacher``: every base, trained on what each of ``arms``
    selected from the first teacher's labels. ``predecessor``: the last base, taught by the base before it, which is
    adapted like the first teacher."""
    shares: PositiveInt | None = None
    """Equal shares into which the pool is dealt; each generation labels one. More shares than generations leave rows
    for generations that are added later. Unset: 4 with several generations, else 1."""
    stop: StopConfig | None = StopConfig()
    """When not to go on; null: never stop."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for key in ("arms", "shallow"):
            if len(set(getattr(self, key))) != len(getattr(self, key)):
                raise ValueError(f"{key}: name each once")
        return self
