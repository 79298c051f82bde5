"""Models on the same test rows: recovery, the exact paired test, and the verdict on an arm against ground truth.

The paper's verdict (App. "Statistical Significance Tests") calls an arm near-lossless whenever the paired test shows no
difference. So the smaller the test set, the easier the verdict. And because the test picks the better model first, its
one-sided 5 % is a two-sided 10 %. We give this verdict unchanged, and next to it our own, which requires evidence. An
arm is near-lossless if it loses less than a stated margin with 97.5 % confidence (a non-inferiority test). It is better
or worse if the exact one-sided test shows that at 2.5 %. Anything else is inconclusive.

Here every model answers a row once; ``curation.metrics.paired_runs`` handles models that answer rows in several runs.
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import scipy

from curation.arrays import Floats
from curation.json_types import Json
from curation.metrics.estimates import NORMAL_QUANTILE, TAIL, Estimate, make_undefined

ALPHA = 0.05
MARGIN = 0.02
"""The accuracy that a near-lossless arm may lose against ground truth."""
_POWER_QUANTILE = 0.8416212335729143
"""Quantile of the normal distribution at a power of 80 %."""
_BISECTIONS = 60


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
    ``detectable`` is the smallest true difference that the exact test would have shown (two-sided, ``ALPHA``) with a
    probability of 80 % on as many rows; NaN if it would not have shown even the largest one.
    """

    verdict: Literal["super-recovery", "near-lossless", "below ground truth", "inconclusive"]
    paper: Literal["super-recovery", "near-lossless", "below ground truth"]
    test: Comparison
    margin: float
    detectable: float

    def to_json(self) -> Json:
        """Return the verdict as a JSON object."""
        detectable = self.detectable if math.isfinite(self.detectable) else None
        return {**vars(self), "test": self.test.to_json(), "detectable": detectable}


def compute_recovery(arm: float, base: float, ground_truth: float) -> float | None:
    """Return (arm - base) / (ground truth - base) of accuracies (paper, eq. "Recovery"); None if the divisor is 0.

    1 is full recovery. If ground truth is below base, the ratio is returned unchanged and means little.
    """
    gap = ground_truth - base
    return (arm - base) / gap if gap else None


def compute_recovery_interval(value: float, gain_R: Floats, gap_R: Floats, n: int) -> Estimate:
    """Return a recovery with quantiles of its resampled values, the arm's gains over the base by ground truth's."""
    ratio_R = gain_R / np.where(gap_R > 0, gap_R, 1)
    low_R, high_R = np.where(gap_R > 0, ratio_R, -np.inf), np.where(gap_R > 0, ratio_R, np.inf)
    # A quantile between two resamples could lie between a number and infinity.
    low, high = np.quantile(low_R, TAIL, method="lower"), np.quantile(high_R, 1 - TAIL, method="higher")
    return Estimate(value=value, low=float(low), high=float(high), n=n)


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


def compute_verdict(test: Comparison, *, gain: float, margin: float, detectable: float) -> Verdict:
    """Return the verdict on an arm tested against ground truth, whose accuracy exceeds the base's by ``gain``.

    - super-recovery: the arm is better, by the exact test at ``ALPHA`` / 2;
    - near-lossless: the lower bound of the paired difference lies above -``margin``. The margin is at most half of
      ground truth's gain over the base; otherwise a student that learned nothing could be near-lossless. An arm that
      loses exactly the margin passes in 2.5 to 3.2 % of cases from 20 rows on, whatever the share of discordant rows;
    - below ground truth: the arm is worse, by the exact test at ``ALPHA`` / 2;
    - inconclusive: none of these is shown; the test set is too small.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin {margin} is not within (0, 1)")
    allowed, differs = max(0.0, min(margin, gain / 2)), test.p_value < ALPHA / 2
    shown: Literal["super-recovery", "below ground truth"]
    shown = "super-recovery" if test.better == "first" else "below ground truth"
    verdict: Literal["super-recovery", "near-lossless", "below ground truth", "inconclusive"] = "inconclusive"
    if differs and test.better == "first":
        verdict = shown
    elif test.difference.low > -allowed:
        verdict = "near-lossless"
    elif differs:
        verdict = shown
    paper: Literal["super-recovery", "near-lossless", "below ground truth"]
    paper = "near-lossless" if test.p_value >= ALPHA else shown
    return Verdict(verdict=verdict, paper=paper, test=test, margin=allowed, detectable=detectable)


def find_detectable_difference(n: float, discordant: float, *, size: float = 1.0) -> float:
    """Return the smallest true difference in accuracy that the paired test shows with 80 % power; NaN if it shows none.

    The test is two-sided at ``ALPHA``, over ``n`` rows of which a share ``discordant`` is expected to be discordant (at
    least the difference itself). With z and w the normal quantiles of the test and of the power, and s the discordant
    share, n d = z sqrt(n s) + w sqrt(n (s - d^2)) is solved by d = k sqrt(s) (normal approximation: Connor, Biometrics
    43, 1987); half a row is added for the steps of the exact test. If a row's difference can be below 1, as over
    several runs, ``discordant`` is the mean square of the differences and ``size`` that of a discordant row.
    """
    test, power = NORMAL_QUANTILE**2, _POWER_QUANTILE**2
    if n + power < test:  # even with all rows discordant in one direction, the test would show nothing
        return math.nan
    k = (math.sqrt(test * n) + math.sqrt(power * (n + power - test))) / (n + power)
    difference = k * max(math.sqrt(discordant), k * size) + 0.5 * size / n
    return difference if difference <= 1 else math.nan


def score_interval(num_first: float, num_second: float, n: float, *, num_rows: int) -> Estimate:
    """Return a paired difference with Tango's interval for counts out of ``n`` rows; its own n is ``num_rows``."""
    if num_rows == 0:
        return make_undefined(0)
    low, high = _score_bound(num_first, num_second, n), -_score_bound(num_second, num_first, n)
    return Estimate(value=(num_first - num_second) / n, low=low, high=high, n=num_rows)


def _score_bound(num_first: float, num_second: float, n: float) -> float:
    """Return the smallest difference that a one-sided score test at 2.5 % does not reject."""
    low, high = -1.0, (num_first - num_second) / n
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        linear = (2 * n - num_first + num_second) * middle - (num_first + num_second)
        constant = num_second * middle * (1 - middle)
        # The most likely share of rows that only the second model has right, given the difference.
        second_only = (math.sqrt(max(0.0, linear**2 + 8 * n * constant)) - linear) / (4 * n)
        variance = max(0.0, 2 * second_only + middle * (1 - middle))
        rejected = num_first - num_second - n * middle > NORMAL_QUANTILE * math.sqrt(n * variance)
        low, high = (middle, high) if rejected else (low, middle)
    return low
