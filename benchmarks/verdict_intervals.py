"""Coverage of the report's intervals by simulation: a part of ``python -m benchmarks.verdicts``.

Scores of right and wrong rows are normal with unit variance, and a right label shifts the score according to the AUC.
Rows of users: 20 rows of each of 30 users, who differ in their share of right labels (a probit of standard deviation
.7), in the shift of right labels, and in the scores' level; with ``splits.group`` and without.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from curation import metrics
from curation.domains.grading import Graded
from curation.metrics import Estimate
from curation.report.tested import compute_accuracy

DRAWS = 5_000
"""Number of draws, by which a coverage of .95 has a standard error of .003."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The shares of draws whose interval contains the truth, is above it, and is below it."""

    holds: float
    above: float
    below: float


def auc_of(num_rows: int, num_wrong: int, auc: float) -> Callable[[np.random.Generator], tuple[Estimate, float]]:
    """Return a function that draws rows, and returns the estimate of their AUC and the truth."""
    gap = np.sqrt(2) * float(ndtri(auc))
    correct_N = np.arange(num_rows) >= num_wrong
    return lambda rng: (metrics.auc(rng.normal(size=num_rows) + gap * correct_N, correct_N), auc)


USERS, ROWS_A_USER, BEST = 30, 20, 0.25
"""Number of users, rows per user, and the share of the rows whose purity is estimated."""


def of_users(rng: np.random.Generator, num_users: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the scores of rows of users, whether they are right, and whose they are, [N]."""
    user_N = np.repeat(np.arange(num_users), ROWS_A_USER)
    skill_N, gap_N, level_N = (rng.normal(size=(3, num_users)) * [[0.7], [0.3], [0.3]])[:, user_N]
    right_N = rng.random(len(user_N)) < ndtr(ndtri(0.65) * np.sqrt(1 + 0.7**2) + skill_N)
    return rng.normal(size=len(user_N)) + (1.5 + gap_N) * right_N + level_N, right_N, user_N


def _estimate(what: str, score_N: np.ndarray, right_N: np.ndarray, cluster_N: np.ndarray | None) -> Estimate:
    if what == "AUC":
        return metrics.auc(score_N, right_N, cluster_N=cluster_N)
    order_N = np.argsort(-score_N)
    num = len(right_N) if what == "share right" else round(BEST * len(right_N))
    in_order_N = None if cluster_N is None else cluster_N[order_N]
    return metrics.compute_top_purities(right_N[order_N], [num], in_order_N)[0]


@lru_cache
def truth_of_users(what: str) -> float:
    """Return what an estimate is of a million rows."""
    score_N, right_N, _ = of_users(np.random.default_rng(0), 50_000)
    return _estimate(what, score_N, right_N, None).value


def grouped(what: str, *, is_set: bool) -> Callable[[np.random.Generator], tuple[Estimate, float]]:
    """Return a function that draws rows of users, and returns an estimate, with or without groups, and the truth."""

    def drawn(rng: np.random.Generator) -> tuple[Estimate, float]:
        score_N, right_N, user_N = of_users(rng, USERS)
        return _estimate(what, score_N, right_N, user_N if is_set else None), truth_of_users(what)

    return drawn


CLASSES = 4
STUDENTS = {"arm": 0.65, "base": 0.4, "ground truth": 0.75}
"""Accuracies of students; the difficulty of users' rows has a common part and one for each student."""


def of_students(rng: np.random.Generator, runs: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Draw whether each student answers rows of users right in each run, [N, J], whose rows they are, and classes.

    Half of a user's rows are of one class, which changes nothing else.
    """
    user_N = np.repeat(np.arange(USERS), ROWS_A_USER)
    shared_U = rng.normal(size=USERS) * 0.5
    right = {}
    for name, accuracy_of in STUDENTS.items():
        skill_N = (shared_U + rng.normal(size=USERS) * 0.5)[user_N]
        chance_N = ndtr(ndtri(accuracy_of) * np.sqrt(1.5) + skill_N)
        right[name] = rng.random((len(user_N), runs)) < chance_N[:, None]
    class_N = np.where(rng.random(len(user_N)) < 0.5, user_N % CLASSES, rng.integers(0, CLASSES, len(user_N)))
    return right, user_N, class_N


def of_tests(what: str, runs: int, *, is_set: bool) -> Callable[[np.random.Generator], tuple[Estimate, float]]:
    """Return a function that draws students' answers, and returns an estimate and the truth, as :func:`grouped`."""
    arm, base, truth = STUDENTS.values()
    truths = {"accuracy": arm, "accuracy of a class": arm, "difference": arm - truth}
    truths["recovery"] = (arm - base) / (truth - base)

    def drawn(rng: np.random.Generator) -> tuple[Estimate, float]:
        right, user_N, class_N = of_students(rng, runs)
        cluster_N = user_N if is_set else None
        arm_NJ, base_NJ, truth_NJ = right.values()
        if what == "difference":
            found = metrics.compare_rows(metrics.compute_row_differences(arm_NJ, truth_NJ, cluster_N)).difference
        elif what == "recovery":
            recovered = metrics.compute_runs_recovery(arm_NJ, base_NJ, truth_NJ, cluster_N)
            assert recovered is not None
            found = recovered
        else:
            ids_N = np.arange(len(user_N))
            of_runs = [
                Graded(row_ids_N=ids_N, correct_N=right_N, question_N=ids_N, cluster_N=cluster_N)
                for right_N in arm_NJ.T
            ]
            if what == "accuracy of a class":
                of_runs = [rows.subset(class_N == 0) for rows in of_runs]
            interval = compute_accuracy({"arm": of_runs}, "arm")
            assert interval is not None
            found = Estimate(**{name: interval[name] for name in ("value", "low", "high", "n")})
        return found, truths[what]

    return drawn


INTERVALS: Mapping[str, Callable[[np.random.Generator], tuple[Estimate, float]]] = (
    {
        f"AUC {auc:.2f}, {wrong} wrong of {rows} rows": auc_of(rows, wrong, auc)
        for rows, wrong in ((100, 20), (300, 30))
        for auc in (0.8, 0.95, 0.98)
    }
    | {
        f"{what}, 600 rows of 30 users, {'with' if is_set else 'without'} splits.group": grouped(what, is_set=is_set)
        for what in ("share right", "purity", "AUC")
        for is_set in (True, False)
    }
    | {
        f"{what}, {runs} runs, 600 test rows of 30 users, {'with' if is_set else 'without'} splits.group": of_tests(
            what, runs, is_set=is_set
        )
        for what in ("accuracy", "accuracy of a class", "difference", "recovery")
        for runs in (1, 5)
        for is_set in (True, False)
    }
)


def coverage(kind: str, draws: int, seed: int) -> Coverage:
    """Draw an interval ``draws`` times."""
    rng = np.random.default_rng([seed, 200 + list(INTERVALS).index(kind)])
    drawn = [INTERVALS[kind](rng) for _ in range(draws)]
    above = sum(estimate.low > truth for estimate, truth in drawn) / draws
    below = sum(estimate.high < truth for estimate, truth in drawn) / draws
    return Coverage(holds=1 - above - below, above=above, below=below)


def print_intervals(draws: int, seed: int) -> None:
    """Print the table of coverages."""
    print("\n| interval | draws | holds the truth | lies above | lies below |\n| --- | --- | --- | --- | --- |")
    for kind in INTERVALS:
        found = coverage(kind, draws, seed)
        print(f"| {kind} | {draws:,} | {found.holds:.3f} | {found.above:.3f} | {found.below:.3f} |", flush=True)
