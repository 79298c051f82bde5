"""A chain of generations: the students that teach, their shares of the pool, comparisons, and when the chain stops."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from curation.arms import REFERENCE_ARM
from curation.config.base import PositiveInt, Section
from curation.config.selection import RiskConfig

DEFAULT_SHARES = 4
"""Default number of shares of the pool in a run with several generations."""


class StopConfig(Section):
    """Rules that stop a chain, applied after each generation but the last, without gold labels of the pool.

    Any single rule stops the chain. The rules read numbers of the trust function of the arm that teaches or, if that
    arm ranks by no score of a labelled split, of the arm ``trust``.
    """

    min_auc: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Stop unless the 95 % interval of the AUC on parsed validation rows of the source lies above this."""
    min_certified: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Stop unless a larger share than this of the generation's labelled pool rows is certified, by ``risk`` or, if that
    is unset, by the run's own risk budget. Without either, this rule does not apply."""
    max_shift: Annotated[float, Field(gt=0.5, le=1)] = 0.8
    """Stop if a classifier tells the pool's hidden states from those of the calibration split (without one: of the
    source) with an AUC whose 95 % interval lies above this."""
    risk: RiskConfig | None = None
    """Certify on validation rows of the source instead. The same rows ended the fit early, so this is no guarantee."""


class ChainConfig(Section):
    """Settings of a chain, read if ``generations`` has at least two entries."""

    arms: Annotated[tuple[str, ...], Field(min_length=1)] = (REFERENCE_ARM,)
    """The arms whose students teach the next generation; each arm has a chain. The first is the main chain, whose
    generations also train the ``selection.arms`` that have no chain of their own."""
    shallow: tuple[Literal["first_teacher", "predecessor"], ...] = ()
    """Baseline students that no chain led to. ``first_teacher``: every base, trained on what each of ``arms`` selected
    from the first teacher's labels. ``predecessor``: the last base, taught by the base before it, which is adapted like
    the first teacher."""
    shares: PositiveInt | None = None
    """Number of equal shares into which the pool is split; each generation labels one. More shares than generations
    leave rows for generations that are added later. Unset: 4 with several generations, else 1."""
    stop: StopConfig | None = StopConfig()
    """Rules that stop the chain; null never stops it."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for key in ("arms", "shallow"):
            if len(set(getattr(self, key))) != len(getattr(self, key)):
                raise ValueError(f"{key}: name each once")
        return self
