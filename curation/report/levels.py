"""The levels of a verdict and of its findings."""

from typing import Literal

Level = Literal["use it", "use with care", "do not use"]
Finding = tuple[Level, str]

USE: Level = "use it"
CARE: Level = "use with care"
STOP: Level = "do not use"
LEVELS: tuple[Level, ...] = (USE, CARE, STOP)
"""The gravest last."""
FEW_OF_A_CLASS = 20
"""The fewest rows of a class: of fewer, an AUC is not known to 0.1; fewer rows of one label may be chance."""
