"""How often intervals of the report hold the truth, by simulation: a part of ``python -m benchmarks.verdicts``.

Scores of right and wrong rows are normal with unit variance, and a right label adds to the score what the AUC asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from curation import metrics
from curation.metrics import Estimate

DRAWS = 5_000
"""The standard error of a coverage of .95 is .003."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The shares of draws whose interval holds the truth, lies above it, and lies below it."""

    holds: float
    above: float
    below: float


def auc_of(num_rows: int, num_wrong: int, auc: float) -> Callable[[np.random.Generator], tuple[Estimate, float]]:
    """Return a function that draws rows, and returns the estimate of their AUC and the truth."""
    gap = np.sqrt(2) * float(ndtri(auc))
    correct_N = np.arange(num_rows) >= num_wrong
    return lambda rng: (metrics.auc(rng.normal(size=num_rows) + gap * correct_N, correct_N), auc)


INTERVALS: Mapping[str, Callable[[np.random.Generator], tuple[Estimate, float]]] = {
    f"AUC {auc:.2f}, {wrong} wrong of {rows} rows": auc_of(rows, wrong, auc)
    for rows, wrong in ((100, 20), (300, 30))
    for auc in (0.8, 0.95, 0.98)
}


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
