"""The configuration section of a filter's first cut, what it does not go with, and its part of a trust package."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from curation.config.base import Section, Share
from curation.filter.parts import PackagePart

if TYPE_CHECKING:
    from curation.config.filter import FilterConfig
    from curation.filter.package.folder import TrustPackage


class CascadeConfig(Section):
    """A first cut on the teacher's prompts, before it writes answers; the package must hold one (docs/method.md)."""

    loss: Share | None = None
    """Maximum share of the rows kept by the full pass that the first cut may lose. Unset: the package's."""
    confidence: Share | None = None
    """Probability with which ``loss`` holds. Unset: the package's."""


def find_problems(config: "FilterConfig", section: CascadeConfig) -> Iterator[str]:
    """Yield what a filter's first cut does not go with."""
    if config.keep.certified is not None:
        yield (
            "cascade: calibration rows have not passed the first cut, so a cut that they certify would not hold "
            "here; keep by n, share or threshold, or leave cascade out"
        )


class Cascade(PackagePart):
    """A first trust function, which scores prompts alone, and the first cut by it (``threshold``)."""

    TITLE: ClassVar[str] = "first cut"
    FILES: ClassVar[tuple[str, ...]] = ("cascade.parquet",)

    states: tuple[str, ...]
    """States that the teacher keeps for this function and the package's own, in the order of the run."""
    keep: float
    """Share of the rows that the function was fitted to find."""
    split: str
    """Split of the rows of ``cascade.parquet``, as in ``curation.filter.package.description.CalibrationRows``."""
    num_rows: int
    """Number of rows of ``cascade.parquet``, labelled rows on which neither function was fitted."""
    cut: dict[str, Any]
    """First cut for a filter that keeps the share ``keep`` (``find_first_cut``)."""

    def check(self, package: "TrustPackage") -> None:
        """Refuse a package whose held-out rows cannot be read."""
        # It reads packages, whose parts are known by then.
        from curation.extras.first_cut.threshold import read_held_out

        read_held_out(package)
