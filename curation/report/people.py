"""People's verdicts on the rows that an arm selected, which give its purity if no gold labels are known."""

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
    """Selection from which the reviewed rows were drawn."""
    strata: Sequence[JsonView]
    """Counts of each stratum: ``num_rows``, whether its rows are ``selected``, and how many have each of the
    ``answers``."""
    people: Mapping[str, int]
    """Number of verdicts of each person."""


@dataclass(frozen=True, kw_only=True)
class ReviewedPurity:
    """The purity of a selection among the rows that people could decide."""

    review: str
    """Name of the review."""
    rows: int
    """Number of selected rows that people found right or wrong."""
    open: int
    """Number of selected rows on which people were unsure or disagreed; no other number counts them."""
    people: int
    purity: Estimate
    """Share of right labels with its 95 % interval, for a finite population sampled by strata."""
    decisive: Estimate
    """Share of right labels with the wider interval that decides the verdict."""
    trust: float
    """Mean trust of the selected rows."""


def find_reviewed_purity(
    reviews: Sequence[ReviewRecord], generation: int, arm: str, selection: TableRef, *, trust: float, confidence: float
) -> ReviewedPurity | None:
    """Return a selection's purity by the review that decided the most of its rows; ``None`` if no review is about it.

    A review of an earlier selection of the arm says nothing about this one. ``confidence`` is that of ``decisive``.
    """
    mine = [item for item in reviews if (item.generation, item.arm, item.selection) == (generation, arm, selection)]
    found = [known for review in mine if (known := _compute_purity(review, trust, confidence)) is not None]
    return max(found, key=lambda known: known.rows, default=None)


def _compute_purity(review: ReviewRecord, trust: float, confidence: float) -> ReviewedPurity | None:
    """Return the purity by a review, or ``None`` if people decided no row of a stratum of the selection."""
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
