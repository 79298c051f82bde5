"""Shares of right answers by difficulty: of labels of the pool and of each arm's rows, of students on the test split.

Paper, App. "Difficulty Distribution in Quantitative Reasoning" (table by difficulty bin). Bins have round edges and one
width. Pool and test split have separate bins, because their scales may differ (Omni-MATH against AIME).
"""

import math
from collections.abc import Mapping

import numpy as np

from curation.arms import ARMS
from curation.arrays import Bools, Float64s, Int64s
from curation.json_types import Json
from curation.report.measured import GradedSet
from curation.report.measures import choose_num_bins, compute_share_among
from curation.report.tested import Tests, compute_accuracy

MOST_BINS = 10
ROWS_A_BIN = 25
"""Minimum mean number of rows per bin, for the model or arm with the fewest rows; with fewer, intervals overlap."""
STEPS = (1, 2, 2.5, 5)
"""Possible widths of bins, to be multiplied by a power of ten."""

Difficulties = tuple[Int64s, Float64s]
"""Row ids and difficulties of rows; a difficulty is NaN if unknown."""


def compute_purity_bins(
    rows: GradedSet | None, selected: Mapping[str, Int64s], difficulties: Difficulties
) -> Json | None:
    """Return the share of right labels per bin: of all graded pool rows, of the parsed ones, and of each arm's rows.

    Each list has one entry per bin, ``None`` for a bin without rows. Gold arms are left out. A large pool is sampled.
    The result is ``None`` if the pool has no grades or no difficulties.
    """
    if rows is None:
        return None
    pool = rows.sample
    marks = {arm: np.isin(pool.row_ids_N, ids) for arm, ids in selected.items() if not ARMS[arm].gold}
    fewest = min([int(keep_N.sum()) for keep_N in marks.values() if keep_N.any()], default=len(pool))
    if (edges := compute_bin_edges(difficulties[1], fewest)) is None:
        return None
    bin_N = _find_bins(pool.row_ids_N, difficulties, edges)

    def shares(keep_N: Bools) -> list[Json | None]:
        return [
            compute_share_among(pool.correct_N, keep_N & (bin_N == number), pool.cluster_N)
            for number in range(len(edges) - 1)
        ]

    return {
        "edges": edges.tolist(),
        "num_unknown": int((bin_N < 0).sum()),
        "all": shares(np.ones(len(pool), dtype=np.bool_)),
        "parsed": shares(pool.parsed_N),
        "arms": {arm: shares(keep_N) for arm, keep_N in marks.items()},
    }


def compute_accuracy_bins(tests: Tests, difficulties: Difficulties) -> Json | None:
    """Return accuracy of each tested model per bin of the test rows' difficulty (``None`` for a bin without rows).

    The result is ``None`` if nothing was tested, or if no test row has a difficulty.
    """
    fewest = min((len(run.row_ids_N) for runs in tests.values() for run in runs), default=0)
    if not tests or (edges := compute_bin_edges(difficulties[1], fewest)) is None:
        return None
    models: dict[str, list[Json | None]] = {}
    for name, runs in tests.items():
        bins = [_find_bins(run.row_ids_N, difficulties, edges) for run in runs]
        models[name] = []
        for number in range(len(edges) - 1):
            parts = [run.subset(bin_N == number) for run, bin_N in zip(runs, bins, strict=True)]
            models[name].append(
                compute_accuracy({name: parts}, name) if all(len(part.row_ids_N) for part in parts) else None
            )
    return {"edges": edges.tolist(), "num_unknown": int(np.isnan(difficulties[1]).sum()), "models": models}


def compute_bin_edges(values_N: Float64s, num_rows: int) -> Float64s | None:
    """Return round edges of bins [low, high) of one width that cover all values, or ``None`` without finite values.

    There are at most ``MOST_BINS`` bins, and fewer if their mean number of rows would be below ``ROWS_A_BIN``. If there
    are at most ``MOST_BINS`` distinct values, bins are at least as wide as the smallest gap between two of them.
    """
    levels = np.unique(values_N[np.isfinite(values_N)])
    if not len(levels):
        return None
    most = MOST_BINS if len(levels) <= MOST_BINS else choose_num_bins(num_rows, ROWS_A_BIN, most=MOST_BINS)
    width = (levels[-1] - levels[0]) / most
    if len(levels) <= MOST_BINS:
        width = max(width, np.diff(levels).min() if len(levels) > 1 else 1.0)
    power = 10.0 ** math.floor(math.log10(width))
    sizes = [size * power * times for times in (1, 10) for size in STEPS]
    for size in sizes:
        first, last = math.floor(levels[0] / size + 1e-9), math.floor(levels[-1] / size + 1e-9)
        if size >= width * (1 - 1e-9) and last - first < most:
            edges: Float64s = np.arange(first, last + 2) * size
            return edges
    raise AssertionError("some width covers the values")


def _find_bins(row_ids_N: Int64s, difficulties: Difficulties, edges: Float64s) -> Int64s:
    """Return the bin of each row, int64 [N]; -1 if its difficulty is unknown."""
    order_M = np.argsort(difficulties[0])
    ids_M, values_M = difficulties[0][order_M], difficulties[1][order_M]
    slot_N = np.minimum(np.searchsorted(ids_M, row_ids_N), len(ids_M) - 1)
    value_N = np.where(ids_M[slot_N] == row_ids_N, values_M[slot_N], np.nan)
    # A value that rounding puts just below its edge belongs above it.
    slack = 1e-9 * (edges[1] - edges[0])
    bin_N: Int64s = np.where(np.isnan(value_N), -1, np.searchsorted(edges - slack, value_N, side="right") - 1)
    return bin_N
