"""The configuration section of a filter's first cut, and what it does not go with."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from curation.config.base import Section, Share

if TYPE_CHECKING:
    from curation.config.filter import FilterConfig


class CascadeConfig(Section):
    """A first cut on the teacher's prompts, before it writes answers; the package must hold one (docs/method.md)."""

    loss: Share | None = None
    """Maximum share of the rows kept by the full pass that the first cut may lose. Unset: the package's."""
    confidence: Share | None = None
    """Probability with which ``loss`` holds. Unset: the package's."""
    keep: Share | None = None
    """The best share of the pool by raw score, of which at most ``loss`` is lost. Unset: the share that is kept."""


def find_problems(config: "FilterConfig", section: CascadeConfig) -> Iterator[str]:
    """Yield what a filter's first cut does not go with."""
    if config.keep.certified is not None:
        yield (
            "cascade: calibration rows have not passed the first cut, so a cut that they certify would not hold "
            "here; keep by n, share or threshold, or leave cascade out"
        )
