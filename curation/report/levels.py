"""The levels of a verdict and of its findings, and the type of its rules."""

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
"""All levels, the gravest last."""
FEW_OF_A_CLASS = 20
"""Minimum number of rows of a class: with fewer, an AUC's variance is unknown, and one label may be chance."""


@dataclass(frozen=True, kw_only=True)
class VerdictRule:
    """A rule of the verdict, which checks one aspect of the evidence."""

    name: str
    asks: str
    """The rule's question, in the words of the page."""
    find: Callable[[Evidence], Finding | None]
    """A function that returns the level and the finding in words, or ``None`` if there is no finding."""
    mend: str
    """Next step for the user; ``{directory}`` is the run's, ``{signal}`` the free signal that ranks better than
    trust, ``{spread}`` the sentence that gives a selection more labels."""
