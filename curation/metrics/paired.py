"""Comparison of models that answer the same test rows: recovery, paired tests, and the verdict on an arm.

The paper's verdict (App. "Statistical Significance Tests") calls an arm near-lossless whenever the paired test shows no
difference to ground truth. So the smaller the test set, the easier the verdict. And because the test picks the better
model first, its one-sided 5 % is a two-sided 10 %. We give this verdict unchanged, and next to it our own, which
requires evidence (:func:`compute_rows_verdict`).

Models may answer the rows in several runs. The paper averages five and does not say how it pairs them; this method is
ours. A row's difference is the first model's mean over its runs minus the second's. Each run draws every row's answer
with a separate seed, so rows are independent, and the variation of the row means includes both the sampling of rows and
that of the answers.

- **Test**: the sign-flip test. Under the hypothesis of no difference a row's difference is as likely to be d as -d. All
  flips are counted by convolution, or 99,999 of them are drawn if counting would take long. With one run per model it
  is the exact binomial test of the discordant rows.
- **Interval of the difference**: Tango's, for the number of single-run rows that would vary as much. A bootstrap of the
  rows would be a point if the models agree on all rows, and so call them near-lossless on however few rows.
- **Recovery**: a bootstrap of the rows, each with all of its runs.
- **Shifts of whole runs** are not expected. If the means of a model's runs still vary by more than their rows explain,
  the excess widens both intervals: it is added to the variance, and resampled run by run. Resampling whole runs without
  subtracting what the rows explain would count the variation of the draws up to three times (Owen, Annals of Applied
  Statistics 1, 2007). The test treats rows as independent.
- **Rows in clusters** (``splits.group``): the test flips the signs of whole clusters, the bootstrap draws clusters, and
  the interval's number of rows is divided by their inflation (``curation.metrics.estimates``).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from curation.arrays import Bools, Floats, Int64s
from curation.json_types import Json
from curation.metrics.calibration import RESAMPLES
from curation.metrics.estimates import (
    NO_ROWS,
    TAIL,
    Clusters,
    Estimate,
    as_flags,
    check_same_length,
    compute_inflation,
    compute_weights,
    make_undefined,
    score_interval,
)

ALPHA = 0.05
MARGIN = 0.02
"""The accuracy that a near-lossless arm may lose against ground truth."""
PaperVerdict = Literal["super-recovery", "near-lossless", "below ground truth"]
OwnVerdict = Literal["super-recovery", "near-lossless", "below ground truth", "inconclusive"]
DRAWS = 99_999
"""Number of flips to draw if counting them all would take more than ``COUNTED`` steps."""
COUNTED = 1_000_000_000
SAME = 1e-12
"""Minimum gain of ground truth over the base in averaged accuracy; a smaller one is a rounding error."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A paired comparison of two models on the same rows.

    ``p_value`` is one-sided, for the alternative that the model with the higher accuracy (``better``) is truly better;
    ``difference`` is the accuracy of the first minus that of the second.
    """

    p_value: float
    better: Literal["first", "second", "tie"]
    difference: Estimate

    def to_json(self) -> Json:
        """Return the test as a JSON object."""
        return {**asdict(self), "difference": self.difference.to_json()}


@dataclass(frozen=True, kw_only=True)
class PairedTest(Comparison):
    """An exact paired test of two models that answered each row once, with the numbers of rows only one has right."""

    num_first_only: int
    num_second_only: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on an arm (first) against ground truth (second) on the same test rows.

    ``paper`` is the paper's verdict, ``verdict`` our own. ``margin`` is the loss that a near-lossless arm may have.
    """

    verdict: OwnVerdict
    paper: PaperVerdict
    test: Comparison
    margin: float

    def to_json(self) -> Json:
        """Return the verdict as a JSON object."""
        return {**vars(self), "test": self.test.to_json()}


@dataclass(frozen=True, kw_only=True)
class RowDifferences:
    """The difference of two models on each row: the first's mean over its runs minus the second's mean over its runs.

    Differences are whole numbers of steps of 1 / ``per_unit``, so that equal differences compare equal.
    """

    steps_N: Int64s
    per_unit: int
    shift_variance: float
    """Variance of the mean difference from shifts of whole runs, beyond what their rows explain."""
    cluster_N: Clusters = None
    """Cluster of each row, or None if rows are independent."""

    def __len__(self) -> int:
        return len(self.steps_N)

    @property
    def inflation(self) -> float:
        """Ratio of the mean difference's variance to that with as many independent rows."""
        return compute_inflation(self.steps_N - self.steps_N.sum() / max(len(self), 1), self.cluster_N)


def compute_row_differences(
    first_correct_NJ: ArrayLike, second_correct_NJ: ArrayLike, cluster_N: Clusters = None
) -> RowDifferences:
    """Return the differences of two models on N rows; they may have different numbers of runs J."""
    first_NJ, second_NJ = as_flags(first_correct_NJ, over_runs=True), as_flags(second_correct_NJ, over_runs=True)
    check_same_length(first_NJ, second_NJ)
    runs, others = first_NJ.shape[1], second_NJ.shape[1]
    per_unit = math.lcm(runs, others)
    steps_N = first_NJ.sum(axis=1) * (per_unit // runs) - second_NJ.sum(axis=1) * (per_unit // others)
    variance = sum(float(np.square(run_shifts(runs_NJ)).mean()) / runs_NJ.shape[1] for runs_NJ in (first_NJ, second_NJ))
    return RowDifferences(steps_N=steps_N, per_unit=per_unit, shift_variance=variance, cluster_N=cluster_N)


def pool_strata(strata: Sequence[RowDifferences]) -> RowDifferences:
    """Return the rows of several strata as one table, in which every row has the same weight.

    A cluster that occurs in several strata is one cluster. The table has clusters only if all strata do.
    """
    per_unit, n = math.lcm(*(rows.per_unit for rows in strata)), sum(map(len, strata))
    clusters = [rows.cluster_N for rows in strata if rows.cluster_N is not None]
    return RowDifferences(
        steps_N=np.concatenate([rows.steps_N * (per_unit // rows.per_unit) for rows in strata]),
        per_unit=per_unit,
        shift_variance=sum((len(rows) / n) ** 2 * rows.shift_variance for rows in strata) if n else 0.0,
        cluster_N=np.concatenate(clusters) if len(clusters) == len(strata) else None,
    )


def compare_rows(rows: RowDifferences, *, seed: int = 0) -> Comparison:
    """Return the paired test of the first model against the second; exact if rows are independent and have one run.

    With several runs the interval is Tango's for the number of single-run rows that would vary as much.
    """
    n, total, steps_C, difference = len(rows), int(rows.steps_N.sum()), rows.steps_N, make_undefined(0)
    if rows.per_unit == 1 and rows.cluster_N is None:
        return compute_paired_test(int((rows.steps_N > 0).sum()), int((rows.steps_N < 0).sum()), n)
    if rows.cluster_N is not None:
        steps_C = np.bincount(np.unique(rows.cluster_N, return_inverse=True)[1], rows.steps_N).astype(np.int64)
    if n:
        difference_N, inflation = rows.steps_N / rows.per_unit, rows.inflation
        mean, size = float(rows.steps_N.sum()) / rows.per_unit / n, float(np.abs(difference_N).mean())
        # The size of a discordant row's difference. One of full size is added: a few small ones do not rule out larger.
        usual = (n * float(np.square(difference_N).mean()) + 1) / (n * size + 1)
        single = size - mean**2  # the variance of a row with one run each
        several = (usual * size - mean**2) * inflation + n * rows.shift_variance
        effective = max(n * single / several if single > 0 and several > 0 else n / inflation, NO_ROWS)
        first, second = effective * (size + mean) / 2, effective * (size - mean) / 2
        difference = score_interval(first, second, effective, num_rows=n)
    return Comparison(
        p_value=compute_sign_flip(steps_C, seed=seed),
        better="tie" if total == 0 else "first" if total > 0 else "second",
        difference=difference,
    )


def compute_rows_verdict(rows: RowDifferences, *, gain: float, margin: float = MARGIN, seed: int = 0) -> Verdict:
    """Return the verdict on an arm (first) against ground truth (second), which exceeds the base by ``gain``.

    - super-recovery: the arm is better, by the test at ``ALPHA`` / 2;
    - near-lossless: the lower bound of the paired difference lies above -``margin`` (a non-inferiority test). The
      margin is at most half of ground truth's gain over the base; otherwise a student that learned nothing could be
      near-lossless. An arm that loses exactly the margin passes in 2.5 to 3.2 % of cases from 20 rows on, whatever the
      share of discordant rows;
    - below ground truth: the arm is worse, by the test at ``ALPHA`` / 2;
    - inconclusive: none of these is shown; the test set is too small.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin {margin} is not within (0, 1)")
    test = compare_rows(rows, seed=seed)
    allowed, differs = max(0.0, min(margin, gain / 2)) if len(rows) else 0.0, test.p_value < ALPHA / 2
    shown: PaperVerdict = "super-recovery" if test.better == "first" else "below ground truth"
    verdict: OwnVerdict = "inconclusive"
    if differs and test.better == "first":
        verdict = shown
    elif test.difference.low > -allowed:
        verdict = "near-lossless"
    elif differs:
        verdict = shown
    paper: PaperVerdict = "near-lossless" if test.p_value >= ALPHA else shown
    return Verdict(verdict=verdict, paper=paper, test=test, margin=allowed)


def compute_recovery(arm: float, base: float, ground_truth: float) -> float | None:
    """Return (arm - base) / (ground truth - base) of accuracies (paper, eq. "Recovery"); None if the divisor is 0.

    1 is full recovery. If ground truth is below base, the ratio is returned unchanged and means little.
    """
    gap = ground_truth - base
    return (arm - base) / gap if gap else None


def compute_runs_recovery(
    arm_NJ: ArrayLike, base_NJ: ArrayLike, truth_NJ: ArrayLike, cluster_N: Clusters = None, *, seed: int = 0
) -> Estimate | None:
    """Return the recovery of three models that answered the same rows, as :func:`compute_averaged_recovery`."""
    return compute_averaged_recovery([(arm_NJ, base_NJ, truth_NJ)], [""], [cluster_N], seed=seed)


def compute_averaged_recovery(
    runs: Sequence[Sequence[ArrayLike]],
    strata: Sequence[str],
    clusters: Sequence[Int64s | None] | None = None,
    *,
    seed: int = 0,
) -> Estimate | None:
    """Return the recovery of averaged accuracies (paper, eq. "Recovery", in its averaged tables).

    Each run has the correctness [N, J] of arm, base and ground truth on the same N test rows. Accuracies are averaged
    over the runs of a stratum (benchmark), and then over strata, before the ratio is taken. A mean of the runs' own
    recoveries is another quantity: a run in which ground truth gains little would dominate it. The result is ``None``
    if ground truth does not beat the base on average, or a run has no rows.

    The interval is a bootstrap of the test rows within each run, each row with all its answers, and of the answers' own
    shifts; rows of different runs count as independent. Resamples in which ground truth does not beat the base count on
    the worse side of each bound, so the bounds are infinite if there are more than 2.5 % of them.
    """
    models = [[as_flags(model, over_runs=True) for model in run] for run in runs]
    for run in models:
        check_same_length(*run)
    if not all(len(run[0]) for run in models):
        return None
    weight_S, rng = compute_weights(strata), np.random.default_rng(seed)
    arm, base, truth = (float(mean) for mean in weight_S @ [[model_NJ.mean() for model_NJ in run] for run in models])
    value = compute_recovery(arm, base, truth)
    if value is None or not truth - base >= SAME:
        return None
    of_runs = zip(models, clusters or [None] * len(models), strict=True)
    resampled_SMR = np.array([_resample_means(run, cluster_N, rng) for run, cluster_N in of_runs])
    arm_R, base_R, truth_R = np.tensordot(weight_S, resampled_SMR, axes=1)
    gap_R = truth_R - base_R
    ratio_R = (arm_R - base_R) / np.where(gap_R > 0, gap_R, 1)
    low_R, high_R = np.where(gap_R > 0, ratio_R, -np.inf), np.where(gap_R > 0, ratio_R, np.inf)
    # A quantile between two resamples could lie between a number and infinity.
    low, high = np.quantile(low_R, TAIL, method="lower"), np.quantile(high_R, 1 - TAIL, method="higher")
    return Estimate(value=value, low=float(low), high=float(high), n=sum(len(run[0]) for run in models))


def _resample_means(models: Sequence[Bools], cluster_N: Clusters, rng: np.random.Generator) -> list[Floats]:
    """Return the mean of each model [N, J] on resampled rows or clusters, each with all its runs, [R] each."""
    n, right_MN = len(models[0]), np.stack([runs_NJ.sum(axis=1) for runs_NJ in models])
    # Rows with the same number of right runs for each model are interchangeable, and are drawn together.
    patterns, pattern_N, counts_P = np.unique(right_MN, axis=1, return_inverse=True, return_counts=True)
    if cluster_N is None:
        draws_RP = rng.multinomial(n, counts_P / n, size=RESAMPLES)
    else:
        clusters, place_N = np.unique(cluster_N, return_inverse=True)
        counts_CP = np.zeros((len(clusters), len(counts_P)), dtype=np.int64)
        np.add.at(counts_CP, (place_N, pattern_N.ravel()), 1)
        draws_RP = rng.multinomial(len(clusters), np.full(len(clusters), 1 / len(clusters)), size=RESAMPLES) @ counts_CP
    n_R, means = draws_RP.sum(axis=1), []
    for right_P, runs_NJ in zip(patterns, models, strict=True):
        runs = runs_NJ.shape[1]
        shift_R = run_shifts(runs_NJ)[rng.integers(0, runs, size=(RESAMPLES, runs))].mean(axis=1)
        means.append(draws_RP @ (right_P / runs) / n_R + shift_R)
    return means


def run_shifts(correct_NJ: Bools) -> Floats:
    """Return how far each of J runs is from their mean, reduced to the part that its rows do not explain, [J].

    The variance of whole runs is estimated by two-way analysis of variance without replication, and is at least 0.
    """
    n, runs = correct_NJ.shape
    if n < 2 or runs < 2:
        return np.zeros(runs)
    mean = float(correct_NJ.mean())
    shift_J = correct_NJ.mean(axis=0) - mean
    of_rows = runs * float(np.square(correct_NJ.mean(axis=1) - mean).sum())
    of_runs = n * float(np.square(shift_J).sum())
    rest = max(0.0, n * runs * mean * (1 - mean) - of_rows - of_runs) / ((n - 1) * (runs - 1))
    beyond = of_runs / (runs - 1) / n - rest / n
    if beyond <= 0 or not of_runs:
        return np.zeros(runs)
    return np.asarray(shift_J * math.sqrt(beyond / (of_runs / n / runs)))


def compute_sign_flip(steps_N: Int64s, *, seed: int = 0) -> float:
    """Return the probability that the sum of [N] integers with random signs reaches its observed absolute value.

    The test is one-sided. It is exact up to ``COUNTED`` steps of the convolution; beyond, signs are drawn, and it is
    (1 + hits) / (1 + ``DRAWS``).
    """
    sizes, counts = np.unique(np.abs(steps_N[steps_N != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    sizes = sizes // np.gcd.reduce(sizes)
    scale = int(np.abs(steps_N).sum()) // int(sizes @ counts)
    least = (int(sizes @ counts) + abs(int(steps_N.sum())) // scale) // 2  # the smallest sum of the positive ones
    groups = sorted(zip(sizes.tolist(), counts.tolist(), strict=True), key=lambda group: group[0] * group[1])
    width, cost = 1, 0
    for size, count in groups:
        cost += width * (count + 1)
        width += size * count
    if cost > COUNTED:
        rng = np.random.default_rng(seed)
        sums = sum(size * rng.binomial(count, 0.5, size=DRAWS) for size, count in groups)
        return (1 + int(np.sum(sums >= least))) / (1 + DRAWS)
    chance = np.ones(1)  # of each sum of the positive ones
    for size, count in groups:
        wider = np.zeros(len(chance) + size * count)
        # Of 0 to ``count`` heads in ``count`` coin tosses.
        log_factorial = scipy.special.gammaln(np.arange(1, count + 2))
        positive = np.exp(log_factorial[count] - log_factorial - log_factorial[::-1] - count * math.log(2))
        for first in range(min(size, len(chance))):  # only sums that are equal modulo the size mix
            part = np.convolve(chance[first::size], positive)
            wider[first::size][: len(part)] = part
        chance = wider
    return min(1.0, float(chance[least:].sum()))


def compute_paired_test(num_first: int, num_second: int, n: int) -> PairedTest:
    """Return the exact one-sided paired test on per-row correctness (paper, App. "Statistical Significance Tests").

    Only the first model is right on ``num_first`` of the ``n`` rows, only the second on ``num_second``. p =
    P(Bin(num_first + num_second, 1/2) >= the larger one), 1 without discordant rows. The interval is Tango's score
    interval (Statistics in Medicine 17, 1998): unlike Wald's it keeps its coverage if few rows are discordant, or none.
    """
    most, num_discordant = max(num_first, num_second), num_first + num_second
    p_value = float(scipy.special.betainc(most, num_discordant - most + 1, 0.5)) if most > 0 else 1.0
    return PairedTest(
        num_first_only=num_first,
        num_second_only=num_second,
        p_value=p_value,
        better="tie" if num_first == num_second else "first" if num_first > num_second else "second",
        difference=score_interval(num_first, num_second, n, num_rows=n),
    )
