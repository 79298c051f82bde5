"""Evidence on a run's trust function, as the numbers from which the verdict is decided.

Every number is of parsed rows, since trust can select no other row. Several rules read them, so the intervals that
decide have 99 %, but that of the AUC, which the report shows too.
"""

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from curation import metrics
from curation.arrays import Float64s, Int64s
from curation.domains.unseen_labels import UnseenLabels
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.metrics.estimates import NORMAL_QUANTILE, Number
from curation.metrics.inputs import as_weights
from curation.report.class_table import ClassesChosen
from curation.report.groups import PossibleGroups
from curation.report.measured import GradedSet, View
from curation.report.near_copies import NearCopies
from curation.report.option_lengths import OptionLengths
from curation.report.people import ReviewedPurity
from curation.report.rivals import Rival, find_rivals
from curation.report.rows import Judged

CONFIDENCE = 0.99
"""Confidence of the intervals that decide."""
NUM_BINS = 10
"""Bins of equally many validation rows by trust, in which the pool's selected rows are counted."""
FALSE_ALARMS = 0.05
"""False alarms of the free signals together: how often one seems to rank better than a trust function that is as good
as all."""
_QUANTILE = 2.5758293035489004


@dataclass(frozen=True, kw_only=True)
class Quality:
    """A trust function on the parsed rows of one set whose gold labels are known."""

    rows: int
    rarer: int
    """The smaller of the numbers of right and wrong labels."""
    auc: Estimate | None
    """95 % interval; ``None`` where all labels are right or all wrong."""
    share_right: Estimate
    brier_excess: Estimate
    """The Brier score less that of a constant, the share of right labels of the source's rows, on the same rows."""
    top: Estimate
    """The share of right labels among the rows that stand for the selected ones."""
    top_trust: Number
    """Their mean trust."""
    believed: Estimate
    """The share of right labels among the rows whose trust is at least one half; NaN without such a row."""
    believed_trust: Number
    """Their mean trust."""


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """The purity of the pool's selected rows as validation rows of the same trust foresee it."""

    purity: Estimate
    """95 % interval: over validation rows, taken as often as the selected rows have their trust."""
    drop: Estimate
    """The purity of validation's own top less ``purity``: what the pool's trust takes away; 99 % interval."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """A plain classifier of words beside trust, on the same held-out labelled rows (``curation.report.control``)."""

    accuracy: Estimate
    """The share of all rows on which it is right."""
    top: Estimate
    """The share right of its surest rows, by its own labels."""
    trust_top: Estimate
    """The share right of as many rows that trust puts first, by the teacher's labels."""


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Some rows, and the questions that they ask."""

    num_rows: int
    num_questions: int

    @property
    def share(self) -> float:
        """The share of rows that repeat a question of another row."""
        return 1 - self.num_questions / self.num_rows if self.num_rows else 0.0


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Pool rows that were labelled without error, and those of them whose label could not be read."""

    num_rows: int
    num_unread: int
    writings: tuple[str, ...]
    """The commonest of their answers, the first characters of each."""


@dataclass(frozen=True, kw_only=True)
class LabelsSeen:
    """How many different labels the teacher gave, and how many of them are selected."""

    num_labelled: int
    """Pool rows with a label that could be read."""
    num_given: int
    num_selected: int
    """Different labels among the selected rows."""


@dataclass(frozen=True, kw_only=True)
class GoldStudent:
    """The student of ground truth: its gain over its base, and how it was trained."""

    gain: Estimate
    """Test accuracy less that of the base, paired by test row."""
    rows: int
    epochs: int
    steps: int | None
    """Optimizer steps; ``None`` where the training recorded none."""
    learning_rate: float | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the verdict reads of one generation."""

    arm: str
    """The arm whose rows are judged."""
    num_selected: int
    validation: Quality | None
    """``None`` without a parsed validation row."""
    pool: Quality | None
    """``None`` without an audit set; its ``top`` are the selected rows."""
    teacher: Estimate | None
    """The teacher's accuracy on all parsed rows of the source."""
    chance: float | None
    """The accuracy of a uniform guess among the options or legal answers of the same rows; ``None`` if unknown."""
    foreseen: Foreseen | None
    checked: ReviewedPurity | None = None
    """People's verdicts on the selected rows; ``None`` without a review by people."""
    shift: JsonView | None
    """The comparison of the states of source and pool (``curation.metrics.shift.Shift`` as JSON)."""
    foreign: JsonView | None = None
    """The same of the rows that pass the cut (``curation.stages.shift.describe_foreign``); ``None``: nothing tells."""
    capped: bool = False
    """A cap on labels, or places by class, have left out rows of higher trust than some that are selected, so that
    validation's top does not stand for them."""
    rivals: tuple[Rival, ...] = ()
    """The trust function against each free signal that the rows have: pool rows where they are graded, else validation
    rows."""
    repeats: Repeats | None = None
    """``None`` where the fit does not say."""
    selected_repeats: Repeats | None = None
    """Selected rows and their questions."""
    near: NearCopies | None = None
    """``None`` where the questions were not compared."""
    groups: tuple[PossibleGroups, ...] = ()
    unread: Unread | None = None
    unseen: UnseenLabels | None = None
    """``None`` where the pool has no label that the labelled rows lack, or labels are open."""
    labels: LabelsSeen | None = None
    option_lengths: OptionLengths | None = None
    """``None`` where the teacher does not choose among options of several lengths by their whole score."""
    classes: ClassesChosen | None = None
    """``None`` where labels are no closed set."""
    gold_student: GoldStudent | None = None
    """``None`` where it or its base was not tested."""
    control: Control | None = None
    """``None`` where labels are no closed set, or few are known."""

    def to_json(self) -> Json:
        """Return the evidence as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Material:
    """The rows from which the evidence of a generation is computed."""

    arm: str
    function: str
    """The trust function that ranks its rows."""
    validation: GradedSet | None
    pool: GradedSet | None
    """The graded pool; ``None`` without an audit set."""
    source: Judged
    """Parsed rows of the source, one a question."""
    selected_trust_M: Float64s
    num_pool: int
    chance: float | None
    shift: JsonView | None
    foreign: JsonView | None = None
    seed: int
    checked: ReviewedPurity | None = None
    capped: bool = False
    repeats: Repeats | None = None
    selected_repeats: Repeats | None = None
    groups: tuple[PossibleGroups, ...] = ()
    near: NearCopies | None = None
    cluster_M: Int64s | None = None
    """The cluster of near-copies of each selected row, or of a draw of them: the first ones of ``selected_trust_M``."""
    unread: Unread | None = None
    unseen: UnseenLabels | None = None
    option_lengths: OptionLengths | None = None


def weigh(of: Material) -> Evidence:
    """Compute the evidence."""
    source = of.source
    constant = float(source.correct_N.mean()) if len(source) else 0.0
    num_selected = len(of.selected_trust_M)
    validation, pool, expected = None, None, None
    rivals: tuple[Rival, ...] = ()
    if of.validation is not None:
        num_top = max(1, round(num_selected / max(of.num_pool, 1) * len(of.validation)))
        rivals = find_rivals(of.validation, "validation", of.function, num_top, of.seed, false_alarms=FALSE_ALARMS)
        validation = measure_quality(of.validation.parsed, of.function, num_top, constant)
        if len(rows := of.validation.parsed.of(of.function)):
            expected = foresee_purity(rows, of.function, num_top, of.selected_trust_M)
            if of.near is not None and of.near.is_more_than_expected and of.cluster_M is not None:
                total_C = np.bincount(of.cluster_M, of.selected_trust_M[: len(of.cluster_M)])
                trust_C = total_C / np.bincount(of.cluster_M)
                expected = foresee_purity(rows, of.function, num_top, trust_C, are_all=True)
    if of.pool is not None and (found := measure_quality(of.pool.parsed, of.function, num_selected, constant)):
        num_graded = of.pool.among_selected(of.arm).n
        if num_graded:
            (top,) = of.pool.ranked(of.arm).purities([num_graded], CONFIDENCE)
            pool = replace(found, top=top, top_trust=float(of.selected_trust_M.mean()))
            rivals = find_rivals(of.pool, "pool", of.function, num_selected, of.seed, false_alarms=FALSE_ALARMS)
    teacher = source.share_right(confidence=CONFIDENCE) if len(source) else None
    return Evidence(
        arm=of.arm,
        num_selected=num_selected,
        validation=validation,
        pool=pool,
        teacher=teacher,
        chance=of.chance,
        foreseen=expected,
        checked=of.checked,
        shift=of.shift,
        foreign=of.foreign,
        capped=of.capped,
        rivals=rivals,
        repeats=of.repeats,
        selected_repeats=of.selected_repeats,
        groups=of.groups,
        near=of.near,
        unread=of.unread,
        unseen=of.unseen,
        option_lengths=of.option_lengths,
    )


def measure_quality(rows: View, function: str, num_top: int, constant: float) -> Quality | None:
    """Measure a trust function on the parsed rows of a set; its top are the first ``num_top`` by raw score."""
    if not len(rows):
        return None
    judged = rows.of(function)
    score, weights_N = judged.scores[function], as_weights(judged.weight_N, len(judged.correct_N))
    num_rows, num_right = len(judged), judged.num_right
    num_top = min(max(num_top, 1), num_rows)
    (top,) = rows.by_score(function).purities([num_top], CONFIDENCE)
    believed_N = score.trust_N >= 0.5
    num_believed = int(weights_N[believed_N].sum())
    auc = None
    if 0 < num_right < num_rows:
        auc = metrics.auc(score.raw_N, judged.correct_N, weights_N=judged.weight_N, cluster_N=judged.cluster_N)
    return Quality(
        rows=num_rows,
        rarer=min(num_right, num_rows - num_right),
        auc=auc,
        share_right=judged.share_right(confidence=CONFIDENCE),
        brier_excess=compute_brier_excess(score.trust_N, judged, constant),
        top=top,
        top_trust=_average_first(score.trust_N, score.raw_N, weights_N.astype(np.float64), num_top),
        believed=judged.subset(believed_N).share_right(confidence=CONFIDENCE),
        believed_trust=float(np.average(score.trust_N[believed_N], weights=weights_N[believed_N]))
        if num_believed
        else math.nan,
    )


def compute_brier_excess(trust_N: Float64s, judged: Judged, constant: float) -> Estimate:
    """Return the mean of the rows' squared error of trust less that of a constant, with its normal interval."""
    correct_N = judged.correct_N.astype(np.float64)
    weights_N = as_weights(judged.weight_N, len(correct_N)).astype(np.float64)
    excess_N = (trust_N - correct_N) ** 2 - (constant - correct_N) ** 2
    num_rows = weights_N.sum()
    value = float(np.average(excess_N, weights=weights_N))
    variance = float(np.average((excess_N - value) ** 2, weights=weights_N)) / max(num_rows - 1, 1)
    margin = _QUANTILE * math.sqrt(
        variance * metrics.compute_inflation(excess_N - value, judged.cluster_N, confidence=CONFIDENCE)
    )
    return Estimate(value=value, low=value - margin, high=value + margin, n=int(num_rows))


def foresee_purity(
    validation: Judged, function: str, num_top: int, selected_trust_M: Float64s, *, are_all: bool = False
) -> Foreseen | None:
    """Return the purity that validation rows foresee for rows of the given trust; ``None`` without one of either.

    The purity is the mean over ``NUM_BINS`` bins of trust of the validation rows' share right, each weighted by its
    share of the selected rows. Both estimates are linear in the validation rows' correctness, whose variance is that of
    their bin. With ``are_all`` the intervals hold the share of these very rows, which chance makes differ from that of
    all such rows: of few clusters of near-copies it is much.
    """
    if not len(validation) or not len(selected_trust_M):
        return None
    score, correct_N = validation.scores[function], validation.correct_N.astype(np.float64)
    inner = np.unique(np.quantile(score.trust_N, np.linspace(0, 1, NUM_BINS + 1)[1:-1], method="higher"))
    bin_N = np.searchsorted(inner, score.trust_N, side="right")
    bins, place_N, count_B = np.unique(bin_N, return_inverse=True, return_counts=True)
    # An empty bin below the first value lends its selected rows to the next one.
    selected_M = np.minimum(
        np.searchsorted(bins, np.searchsorted(inner, selected_trust_M, side="right")), len(bins) - 1
    )
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
    spread = _QUANTILE * math.sqrt(times * float(between_N**2 @ variance_N) + of_rows)
    n = len(correct_N)
    return Foreseen(
        purity=Estimate(value=value, low=max(0.0, value - margin), high=min(1.0, value + margin), n=n),
        drop=Estimate(value=top - value, low=top - value - spread, high=top - value + spread, n=n),
    )


def compute_difference(first: Estimate, second: Estimate) -> Estimate:
    """Return the first share less the second, of different rows; the interval is by MOVER (Newcombe 1998)."""
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value=value, low=low, high=high, n=first.n)


def widen_interval(estimate: Estimate) -> Estimate:
    """Return the same with the interval that decides, instead of one of 95 %."""
    ratio = _QUANTILE / NORMAL_QUANTILE
    low, high = (estimate.value + ratio * (bound - estimate.value) for bound in (estimate.low, estimate.high))
    return Estimate(value=estimate.value, low=low, high=high, n=estimate.n)


def _average_first(trust_N: Float64s, raw_N: Float64s, weights_N: Float64s, num_top: int) -> float:
    """Return the mean trust of the first ``num_top`` rows by raw score."""
    order = np.argsort(-raw_N, kind="stable")
    reached_N = np.minimum(np.cumsum(weights_N[order]), num_top)
    taken_N = np.diff(reached_N, prepend=0.0)
    return float(np.average(trust_N[order], weights=taken_N))
