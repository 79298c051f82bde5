"""The feature's section of the configuration."""

from curation.config.base import PositiveInt, Section


class BrevityConfig(Section):
    """Measures how brief answers are."""

    longest: PositiveInt = 100
    """Characters of an answer whose brevity is 0."""
