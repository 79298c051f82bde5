"""Evidence on a run's trust function: the numbers that decide the verdict.

All numbers are about parsed rows, since trust can select no others. Several rules read them, so their intervals have
99 % confidence, except that of the AUC, which the report shows too.
"""

import math
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from curation import metrics
from curation.arrays import Float64s, Int64s
from curation.domains.class_counts import UnseenLabels
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.metrics.estimates import NORMAL_QUANTILE, Number
from curation.report.near_copies import NearCopies
from curation.report.record import PossibleGroups
from curation.report.rivals import Rival, find_rivals
from curation.report.rows import GradedRows

CONFIDENCE = 0.99
"""Confidence of the intervals that decide."""
NUM_BINS = 10
"""Number of bins of equally many validation rows by trust, in which the pool's selected rows are counted."""
FALSE_ALARMS = 0.05
"""Probability that any free signal seems to rank better than a trust function that is as good as all of them."""
QUANTILE = 2.5758293035489004
"""Quantile of the normal distribution for these intervals."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Quality of a trust function on the parsed rows of a set whose gold labels are known."""

    rows: int
    rarer: int
    """The smaller of the numbers of right and wrong labels."""
    auc: Estimate | None
    """AUC with its 95 % interval, or ``None`` if all labels are right or all are wrong."""
    share_right: Estimate
    brier_excess: Estimate
    """Brier score less that of a constant, the source's share of right labels, on the same rows."""
    top: Estimate
    """Share of right labels among the top rows, which represent the selected ones."""
    top_trust: Number
    believed: Estimate
    """Share of right labels among the rows whose trust is at least one half; NaN without such rows."""
    believed_trust: Number
    drawn: float = 1.0
    """Share of the set's rows that were measured, but for ``top``."""


@dataclass(frozen=True, kw_only=True)
class PredictedPurity:
    """The purity of the pool's selected rows, predicted from validation rows of the same trust."""

    purity: Estimate
    drop: Estimate
    """Purity of validation's own top rows less ``purity``, with its 99 % interval."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """A baseline classifier of words, compared with trust on held-out labelled rows (``curation.report.control``)."""

    accuracy: Estimate
    """Share of all rows that the classifier labels right."""
    top: Estimate
    """Share of right labels among the classifier's surest rows."""
    trust_top: Estimate
    """Share of right teacher labels among as many rows that trust ranks first."""


@dataclass(frozen=True, kw_only=True)
class OptionLengths:
    """A comparison of chosen and right options; lengths are in characters, intervals have 99 % confidence."""

    shorter: Estimate
    """Mean length of the right option less that of the chosen one."""
    gain: Estimate
    """Share of right choices by the score per character less that by the whole score."""
    scores: tuple[tuple[int, float], ...]
    """Mean length and mean score (nats) of the shorter half of the options and of the longer half."""


@dataclass(frozen=True, kw_only=True)
class ReviewedPurity:
    """The purity of a selection among the rows that people could decide."""

    review: str
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


@dataclass(frozen=True, kw_only=True)
class KnownEvidence:
    """Evidence that needs no further computation."""

    arm: str
    """Arm that the verdict is about."""
    chance: float | None
    """Accuracy of a uniform guess among the options or legal answers of the source's rows; ``None`` if unknown."""
    checked: ReviewedPurity | None = None
    """People's verdicts on the selected rows, or ``None`` without a review by people."""
    shift: JsonView | None
    """Comparison of the states of source and pool (``curation.metrics.shift.Shift`` as JSON)."""
    foreign: JsonView | None = None
    """Foreign rows among those that pass the cut (``curation.stages.shift.describe_foreign``); ``None`` if untested."""
    is_divided: bool = False
    """Whether a division of the rows left out more trusted ones, so that validation's top does not represent them."""
    repeats: JsonView | None = None
    """``num_rows`` and ``num_questions`` of the labelled rows, or ``None`` if the fit did not record them."""
    near: NearCopies | None = None
    """Near-copies among the selected rows, or ``None`` if questions were not compared."""
    groups: tuple[PossibleGroups, ...] = ()
    unread: JsonView | None = None
    """``num_rows`` of the pool labelled without error, ``num_unread`` of these whose label could not be read, and the
    beginnings of the most frequent answers of these (``writings``)."""
    unseen: UnseenLabels | None = None
    """Labels of the pool that no labelled row has, or ``None`` if there are none or labels are open."""
    option_lengths: OptionLengths | None = None
    """Lengths of options, or ``None`` unless the teacher chooses among options of several lengths by whole score."""


@dataclass(frozen=True, kw_only=True)
class Evidence(KnownEvidence):
    """All evidence on one generation that the verdict reads."""

    num_selected: int
    validation: Quality | None
    """Quality on validation rows, or ``None`` if none is parsed."""
    pool: Quality | None
    """Quality on the pool, or ``None`` without an audit set; its ``top`` are the selected rows."""
    teacher: Estimate | None
    """Teacher's accuracy on all parsed rows of the source."""
    foreseen: PredictedPurity | None
    rivals: tuple[Rival, ...] = ()
    """Comparisons of the trust function with each free signal, on graded pool rows or else on validation rows."""
    labels: JsonView | None = None
    """Numbers of distinct labels that the teacher gave (``num_given``, to ``num_labelled`` pool rows) and
    that were selected (``num_selected``)."""
    classes: JsonView | None = None
    """Class shares of the selection (``class_table.as_evidence``), or ``None`` if labels are no closed set."""
    gold_student: JsonView | None = None
    """``rows``, ``epochs``, ``steps`` and ``learning_rate`` of the student of ground truth, and its ``gain`` in test
    accuracy over its base, paired by row; ``None`` if it or its base was not tested."""
    control: Control | None = None
    """Baseline without a teacher, or ``None`` if labels are no closed set or few gold labels are known."""

    def to_json(self) -> Json:
        """Return the evidence as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Material(KnownEvidence):
    """The rows from which the evidence of a generation is computed."""

    function: str
    """Trust function that ranks the arm's rows."""
    validation: GradedRows | None
    pool: GradedRows | None
    """Graded pool, or ``None`` without an audit set."""
    source: GradedRows
    """Parsed rows of the source, one per question."""
    selected_trust_M: Float64s
    num_pool: int
    seed: int
    cluster_M: Int64s | None = None
    """Cluster of near-copies of each selected row, or of a sample: the first rows of ``selected_trust_M``."""


def weigh(of: Material) -> Evidence:
    """Compute the evidence of a generation from its rows."""
    source, constant, num_selected = of.source, of.source.share, len(of.selected_trust_M)
    validation, pool, expected = None, None, None
    rivals: tuple[Rival, ...] = ()
    if of.validation is not None:
        num_top = max(1, round(num_selected / max(of.num_pool, 1) * len(of.validation)))
        rivals = find_rivals(of.validation, "validation", of.function, num_top, of.seed, false_alarms=FALSE_ALARMS)
        validation = measure_quality(of.validation.readable, of.function, num_top, constant)
        if len(rows := of.validation.readable):
            expected = foresee_purity(rows, of.function, num_top, of.selected_trust_M)
            if of.near is not None and of.near.is_more_than_expected and of.cluster_M is not None:
                total_C = np.bincount(of.cluster_M, of.selected_trust_M[: len(of.cluster_M)])
                trust_C = total_C / np.bincount(of.cluster_M)
                expected = foresee_purity(rows, of.function, num_top, trust_C, are_all=True)
    if of.pool is not None:
        num_top = of.pool.scale(num_selected)
        found, top = (
            measure_quality(of.pool.readable, of.function, num_top, constant),
            of.pool.among_selected(of.arm, CONFIDENCE),
        )
        if found is not None and top.n:
            pool = replace(found, top=top, top_trust=float(of.selected_trust_M.mean()), drawn=of.pool.drawn)
            rivals = find_rivals(of.pool, "pool", of.function, num_top, of.seed, false_alarms=FALSE_ALARMS)
    teacher = source.share_right(confidence=CONFIDENCE) if len(source) else None
    return Evidence(
        **{item.name: getattr(of, item.name) for item in fields(KnownEvidence)},
        num_selected=num_selected,
        validation=validation,
        pool=pool,
        teacher=teacher,
        foreseen=expected,
        rivals=rivals,
    )


def measure_quality(graded: GradedRows, function: str, num_top: int, constant: float) -> Quality | None:
    """Measure a trust function on the parsed rows of a set; the top rows are the first ``num_top`` by raw score."""
    if not len(graded):
        return None
    num_rows, num_right = len(graded), graded.num_right
    score, num_top = graded.scores[function], min(max(num_top, 1), num_rows)
    (top,) = graded.rank_by_score(function, [num_top], CONFIDENCE)
    top_M, believed_N = np.argsort(-score.raw_N, kind="stable")[:num_top], score.trust_N >= 0.5
    auc = None
    if 0 < num_right < num_rows:
        auc = metrics.auc(score.raw_N, graded.correct_N, cluster_N=graded.cluster_N)
    return Quality(
        rows=num_rows,
        rarer=min(num_right, num_rows - num_right),
        auc=auc,
        share_right=graded.share_right(confidence=CONFIDENCE),
        brier_excess=compute_brier_excess(score.trust_N, graded, constant),
        top=top,
        top_trust=float(score.trust_N[top_M].mean()),
        believed=graded.subset(believed_N).share_right(confidence=CONFIDENCE),
        believed_trust=float(score.trust_N[believed_N].mean()) if believed_N.any() else math.nan,
    )


def compute_brier_excess(trust_N: Float64s, graded: GradedRows, constant: float) -> Estimate:
    """Return the mean squared error of trust less that of a constant trust, with its normal interval."""
    correct_N, num_rows = graded.correct_N.astype(np.float64), len(graded)
    excess_N = (trust_N - correct_N) ** 2 - (constant - correct_N) ** 2
    value = float(excess_N.mean())
    variance = float(((excess_N - value) ** 2).mean()) / max(num_rows - 1, 1)
    times = metrics.compute_inflation(excess_N - value, graded.cluster_N, confidence=CONFIDENCE)
    margin = QUANTILE * math.sqrt(variance * times)
    return Estimate(value=value, low=value - margin, high=value + margin, n=num_rows)


def foresee_purity(
    validation: GradedRows, function: str, num_top: int, selected_trust_M: Float64s, *, are_all: bool = False
) -> PredictedPurity | None:
    """Return the purity of the selected rows as predicted from validation rows; ``None`` if either has no rows.

    The purity is the mean over ``NUM_BINS`` bins of trust of the validation rows' share right, each weighted by its
    share of the selected rows. Both estimates are linear in the validation rows' correctness, whose variance is that of
    their bin. With ``are_all`` the intervals are for the share in exactly these rows, which differs by chance from the
    share in all such rows, and by much if the rows are few clusters of near-copies.
    """
    if not len(validation) or not len(selected_trust_M):
        return None
    score, correct_N = validation.scores[function], validation.correct_N.astype(np.float64)
    inner = np.unique(np.quantile(score.trust_N, np.linspace(0, 1, NUM_BINS + 1)[1:-1], method="higher"))
    bin_N = np.searchsorted(inner, score.trust_N, side="right")
    bins, place_N, count_B = np.unique(bin_N, return_inverse=True, return_counts=True)
    # An empty bin below the first value lends its selected rows to the next one.
    place_M = np.searchsorted(bins, np.searchsorted(inner, selected_trust_M, side="right"))
    selected_M = np.minimum(place_M, len(bins) - 1)
    share_B = np.bincount(selected_M, minlength=len(bins)) / len(selected_M)
    right_B = np.bincount(place_N, correct_N) / count_B
    variance_N = ((right_B * count_B + 1) * ((1 - right_B) * count_B + 1) / (count_B + 2.0) ** 2)[place_N]
    weight_N = (share_B / count_B)[place_N]
    num_top = min(max(num_top, 1), len(correct_N))
    top_N = np.zeros(len(correct_N))
    top_N[np.argsort(-score.raw_N, kind="stable")[:num_top]] = 1 / num_top
    value, top = float(weight_N @ correct_N), float(top_N @ correct_N)
    of_rows = float(weight_N @ variance_N) / len(selected_M) if are_all else 0.0
    residual_N, cluster_N = correct_N - right_B[place_N], validation.cluster_N
    times = metrics.compute_inflation(weight_N * residual_N, cluster_N)
    margin = NORMAL_QUANTILE * math.sqrt(times * float(weight_N**2 @ variance_N) + of_rows)
    between_N = top_N - weight_N
    times = metrics.compute_inflation(between_N * residual_N, cluster_N, confidence=CONFIDENCE)
    spread = QUANTILE * math.sqrt(times * float(between_N**2 @ variance_N) + of_rows)
    n = len(correct_N)
    return PredictedPurity(
        purity=Estimate(value=value, low=max(0.0, value - margin), high=min(1.0, value + margin), n=n),
        drop=Estimate(value=top - value, low=top - value - spread, high=top - value + spread, n=n),
    )


def widen_interval(estimate: Estimate) -> Estimate:
    """Return the estimate with its 95 % interval widened to one of 99 %, which decides the verdict."""
    ratio = QUANTILE / NORMAL_QUANTILE
    low, high = (estimate.value + ratio * (bound - estimate.value) for bound in (estimate.low, estimate.high))
    return Estimate(value=estimate.value, low=low, high=high, n=estimate.n)
