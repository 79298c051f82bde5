"""Evidence on a run's trust function: the numbers that decide the verdict.

A free signal (``curation.arms.FREE``) is one column that every labelling pass fills. It needs neither gold labels nor a
fit, so a trust function that does not rank better than the best of them is not worth its fit. They are compared on the
same parsed rows, by raw score alone, without a division of the arm that selects by it.

All numbers are about parsed rows, since trust can select no others. Several rules read them, so their intervals have
99 % confidence, except that of the AUC, which the report shows too.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import free_of
from curation.arrays import Float64s, Int64s
from curation.domains.class_counts import UnseenLabels
from curation.hashing import hash_unit
from curation.json_types import JsonView
from curation.metrics import Estimate
from curation.metrics.estimates import NORMAL_QUANTILE, Number
from curation.report.checks import QUANTILE, Control, NearCopies, OptionLengths
from curation.report.record import PossibleGroups
from curation.report.rows import GradedRows

CONFIDENCE = 0.99
"""Confidence of the intervals that decide."""
NUM_BINS = 10
"""Number of bins of equally many validation rows by trust, in which the pool's selected rows are counted."""
FALSE_ALARMS = 0.05
"""Probability that any free signal seems to rank better than a trust function that is as good as all of them."""
FEW_ROWS = 100
"""Minimum number of rows; with fewer, a share near one half is not known to within 10 points."""


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
    """Share of the set's rows that were measured; ``top`` is always of all."""


@dataclass(frozen=True, kw_only=True)
class PredictedPurity:
    """The purity of the pool's selected rows, predicted from validation rows of the same trust."""

    purity: Estimate
    drop: Estimate
    """Purity of validation's own top rows less ``purity``, with its 99 % interval."""


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
class Rival:
    """A comparison of a trust function with a free signal; differences are the function's value minus the signal's."""

    signal: str
    where: str
    """Set of the rows: ``pool`` or ``validation``."""
    num_top: int
    """Number of top rows of each ranking that purity counts."""
    auc: Estimate | None
    """Difference of the AUCs, or ``None`` if a class has fewer than two rows."""
    purity: Estimate
    """Difference of the shares of right labels among the first ``num_top`` rows."""
    confidence: float
    """Confidence of both intervals."""

    @property
    def is_better(self) -> bool:
        """Whether the signal is shown to rank better than the trust function, by AUC or by purity."""
        return (self.auc is not None and self.auc.high < 0) or self.purity.high < 0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence on one generation that the verdict reads."""

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
    """Whether a division left out more trusted rows, so that validation's top does not represent the selected ones."""
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
    num_selected: int = 0
    validation: Quality | None = None
    """Quality on validation rows, or ``None`` if none is parsed."""
    pool: Quality | None = None
    """Quality on the pool, or ``None`` without an audit set; its ``top`` are the selected rows."""
    teacher: Estimate | None = None
    """Teacher's accuracy on all parsed rows of the source."""
    foreseen: PredictedPurity | None = None
    rivals: tuple[Rival, ...] = ()
    """Comparisons of the trust function with each free signal, on graded pool rows or else on validation rows."""
    labels: JsonView | None = None
    """Numbers of distinct labels that the teacher gave (``num_given``, to ``num_labelled`` pool rows) and
    that were selected (``num_selected``)."""
    classes: JsonView | None = None
    """Class shares of the selection (``class_table.as_evidence``), or ``None`` if labels are not a closed set."""
    gold_student: JsonView | None = None
    """``rows``, ``epochs``, ``steps`` and ``learning_rate`` of the student of ground truth, and its ``gain`` in test
    accuracy over its base, paired by row; ``None`` if it or its base was not tested."""
    control: Control | None = None
    """Baseline without a teacher, or ``None`` if labels are not a closed set or few gold labels are known."""

    @property
    def measured(self) -> list[tuple[str, Quality]]:
        """The sets of rows on which trust was measured, by name."""
        found = (("validation", self.validation), ("pool", self.pool))
        return [(where, quality) for where, quality in found if quality is not None]

    @property
    def is_checked(self) -> bool:
        """Whether people checked enough selected rows to estimate their purity."""
        return self.checked is not None and self.checked.rows >= FEW_ROWS

    @property
    def known_purity(self) -> Estimate | None:
        """The purity of the selected rows by gold labels of the pool, or else by people."""
        if self.pool is not None:
            return self.pool.top
        return None if self.checked is None else self.checked.decisive

    @property
    def better_signal(self) -> Rival | None:
        """A free signal that is shown to rank better than trust, the one with the highest AUC if there are more."""
        better = [rival for rival in self.rivals if rival.is_better]
        return min(
            better, key=lambda found: (0.0 if found.auc is None else found.auc.value, found.purity.value), default=None
        )


@dataclass(frozen=True, kw_only=True)
class EvidenceInputs:
    """The rows from which :func:`compute_evidence` completes the ``known`` evidence of a generation."""

    known: Evidence
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


def compute_evidence(inputs: EvidenceInputs) -> Evidence:
    """Return the known evidence of a generation, completed from its rows."""
    known, function, trust_M, seed = inputs.known, inputs.function, inputs.selected_trust_M, inputs.seed
    constant, cluster_M = inputs.source.share, inputs.cluster_M
    validation, pool, expected = None, None, None
    rivals: tuple[Rival, ...] = ()
    if inputs.validation is not None:
        num_top = max(1, round(len(trust_M) / max(inputs.num_pool, 1) * len(inputs.validation)))
        rivals = find_rivals(inputs.validation, "validation", function, num_top, seed)
        rows = inputs.validation.readable
        validation = measure_quality(rows, function, num_top, constant)
        if known.near is not None and known.near.is_more_than_expected and cluster_M is not None:
            trust_C = np.bincount(cluster_M, trust_M[: len(cluster_M)]) / np.bincount(cluster_M)
            expected = predict_purity(rows, function, num_top, trust_C, are_all=True)
        else:
            expected = predict_purity(rows, function, num_top, trust_M)
    if inputs.pool is not None:
        num_top = inputs.pool.scale(len(trust_M))
        quality = measure_quality(inputs.pool.readable, function, num_top, constant)
        top = inputs.pool.among_selected(known.arm, CONFIDENCE)
        if quality is not None and top.n:
            pool = replace(quality, top=top, top_trust=float(trust_M.mean()), drawn=inputs.pool.drawn)
            rivals = find_rivals(inputs.pool, "pool", function, num_top, seed)
    return replace(
        known,
        num_selected=len(trust_M),
        validation=validation,
        pool=pool,
        teacher=inputs.source.share_right(confidence=CONFIDENCE) if len(inputs.source) else None,
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
    return Quality(
        rows=num_rows,
        rarer=min(num_right, num_rows - num_right),
        auc=graded.auc(score.raw_N),
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


def predict_purity(
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


def compare_with_signal(
    rows: GradedRows, where: str, function: str, signal: str, num_top: int, seed: int, *, confidence: float
) -> Rival:
    """Compare a trust function with a signal on a set's parsed rows; ``num_top`` of them represent the selection."""
    parsed = rows.readable
    first_N, second_N = parsed.scores[function].raw_N, parsed.scores[signal].raw_N
    num_top = min(max(1, num_top), len(parsed))
    of_rows: dict[str, Any] = {"confidence": confidence, "cluster_N": parsed.cluster_N}
    auc = metrics.compute_auc_difference(first_N, second_N, parsed.correct_N, **of_rows)
    draw_N = hash_unit(parsed.row_ids_N, seed)
    first_M, second_M = (np.lexsort((draw_N, -raw_N))[:num_top] for raw_N in (first_N, second_N))
    return Rival(
        signal=signal,
        where=where,
        num_top=num_top,
        auc=None if math.isnan(auc.value) else auc,
        purity=metrics.compute_purity_difference(first_M, second_M, parsed.correct_N, **of_rows),
        confidence=confidence,
    )


def find_rivals(rows: GradedRows, where: str, function: str, num_top: int, seed: int) -> tuple[Rival, ...]:
    """Return comparisons of a trust function with every free signal of the rows, with simultaneous intervals.

    Each of k signals gives two differences, and an interval below zero speaks against trust. With a confidence of
    1 - ``FALSE_ALARMS`` / k, the probability that a function as good as all signals has such an interval is at most
    ``FALSE_ALARMS`` (Bonferroni: 2 k lower tails of ``FALSE_ALARMS`` / 2 k).
    """
    signals = [name for name in free_of(rows.scores) if name in rows.scores and name != function]
    if not signals or not rows.parsed_N.any() or function not in rows.scores:
        return ()
    level = 1 - FALSE_ALARMS / len(signals)
    return tuple(
        compare_with_signal(rows, where, function, signal, num_top, seed, confidence=level) for signal in signals
    )
