"""The part of a trust package that a first cut needs."""

from typing import TYPE_CHECKING, Any, ClassVar

from curation.filter.parts import PackagePart
from curation.heavy import Lazy

if TYPE_CHECKING:
    from curation.extras.first_cut import held_out
    from curation.filter.package.folder import TrustPackage
else:
    held_out = Lazy("curation.extras.first_cut.held_out")


class Cascade(PackagePart):
    """A first trust function, which scores prompts alone, and the first cut by it (``threshold``)."""

    TITLE: ClassVar[str] = "first cut"
    FILES: ClassVar[tuple[str, ...]] = ("cascade.parquet",)
    ABSENT: ClassVar[str] = "none: filters by this package have no cascade"

    states: tuple[str, ...]
    """States that the teacher keeps for this function and the package's own, in the order of the run."""
    keep: float
    """Share of the rows that the function was fitted to find."""
    split: str
    """Split of the rows of ``cascade.parquet``, as in ``curation.filter.package.CalibrationRows``."""
    num_rows: int
    """Number of rows of ``cascade.parquet``, labelled rows on which neither function was fitted."""
    cut: dict[str, Any]
    """First cut for a filter that keeps the share ``keep`` (``FirstCut.to_json``)."""

    @property
    def summary(self) -> str:
        """Description of the cut for the package's page."""
        of = "split calibration" if self.split == "calibration" else "source, held out from the fit"
        return (
            f"reads {', '.join(self.inputs)}, set on {self.num_rows} rows of the {of}; where the best {self.keep} is "
            f"kept: {self.words}"
        )

    def check(self, package: "TrustPackage") -> None:
        """Refuse a package whose held-out rows cannot be read."""
        held_out.read_held_out(package)
