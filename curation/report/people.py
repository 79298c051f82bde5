"""People's verdicts on the rows that an arm selected: the purity of a selection, where no gold labels are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curation.json_types import JsonView
from curation.metrics import Estimate, compute_finite_share, compute_weighted_mean
from curation.refs import TableRef


@dataclass(frozen=True, kw_only=True)
class ReviewRecord:
    """The verdicts on one selection, as ``curate review result`` wrote them."""

    name: str
    generation: int
    arm: str
    selection: TableRef
    """The selection from which its rows were drawn."""
    strata: Sequence[JsonView]
    """Counts of each stratum: ``num_rows``, whether its rows are ``selected``, and how many have each of the
    ``answers``."""
    people: Mapping[str, int]
    """The number of verdicts of each person."""


@dataclass(frozen=True, kw_only=True)
class ReviewedPurity:
    """The purity of a selection among the rows that people could decide."""

    review: str
    """The name of the review."""
    rows: int
    """Selected rows that people found right or wrong."""
    open: int
    """Selected rows on which they were unsure or disagreed; no number counts them."""
    people: int
    purity: Estimate
    """The share of right labels with its 95 % interval, for a finite population sampled by strata."""
    decisive: Estimate
    """The same with the interval by which the verdict is decided."""
    trust: float
    """The mean trust of the selected rows."""


def find_reviewed_purity(
    reviews: Sequence[ReviewRecord], generation: int, arm: str, selection: TableRef, *, trust: float, confidence: float
) -> ReviewedPurity | None:
    """People's verdicts on this selection, by the review that decided the most rows; ``None`` if no review knows it.

    A review of an earlier selection of the arm says nothing about this one. ``confidence`` is that of ``decisive``.
    """
    mine = [item for item in reviews if (item.generation, item.arm, item.selection) == (generation, arm, selection)]
    found = [known for review in mine if (known := _compute_purity(review, trust, confidence)) is not None]
    return max(found, key=lambda known: known.rows, default=None)


def _compute_purity(review: ReviewRecord, trust: float, confidence: float) -> ReviewedPurity | None:
    """Return ``None`` if a stratum of the selection has no row that people decided."""
    strata = [stratum for stratum in review.strata if stratum["selected"]]
    decided = [stratum["answers"]["right"] + stratum["answers"]["wrong"] for stratum in strata]
    if not strata or not all(decided):
        return None
    total = sum(stratum["num_rows"] for stratum in strata)
    weights = [stratum["num_rows"] / total for stratum in strata]

    def purity(**level: float) -> Estimate:
        shares = [
            compute_finite_share(stratum["answers"]["right"], number, stratum["num_rows"], **level)
            for stratum, number in zip(strata, decided, strict=True)
        ]
        return compute_weighted_mean(shares, weights)

    return ReviewedPurity(
        review=review.name,
        rows=sum(decided),
        open=sum(stratum["answers"]["unsure"] + stratum["answers"]["disputed"] for stratum in strata),
        people=len(review.people),
        purity=purity(),
        decisive=purity(confidence=confidence),
        trust=trust,
    )
