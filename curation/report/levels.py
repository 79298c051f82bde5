"""The levels of a verdict and of its findings, and what a rule of it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from curation.report.evidence import Evidence

Level = Literal["use it", "use with care", "do not use"]
Finding = tuple[Level, str]

USE: Level = "use it"
CARE: Level = "use with care"
STOP: Level = "do not use"
LEVELS: tuple[Level, ...] = (USE, CARE, STOP)
"""The gravest last."""
FEW_OF_A_CLASS = 20
"""The fewest rows of a class: of fewer, the variance of an AUC is not known; fewer rows of one label may be chance."""


@dataclass(frozen=True, kw_only=True)
class VerdictRule:
    """One thing that is looked at."""

    name: str
    asks: str
    """The rule's question, as the page says it."""
    find: Callable[[Evidence], Finding | None]
    """The level and the finding in words; ``None`` where there is nothing to say."""
    mend: str
    """The next step for the user; ``{directory}`` is the run's, ``{signal}`` the free signal that ranks better than
    trust, ``{spread}`` the sentence that gives a selection more labels."""
