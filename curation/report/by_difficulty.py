"""Difficulty of the pool and of each arm's rows, and accuracy of labels and of students by difficulty.

Paper, App. "Difficulty Distribution in Quantitative Reasoning" (table by difficulty bin). Bins have round edges and one
width. Pool and test split have separate bins, because their scales may differ (Omni-MATH against AIME).
"""

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arms import ARMS
from curation.arrays import Bools, Float64s, Int64s
from curation.domains import Domain, attempt
from curation.hashing import hash_unit
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.measures import compute_share
from curation.report.rows import GradedRows
from curation.report.tested import Tests, compute_accuracy
from curation.tables import io, scans

DOMAIN_ROWS = 8192
"""Number of rows that are Python objects at a time."""
LEAST_BINS, MOST_BINS, ROWS_A_BIN = 4, 10, 25
"""Minimum and maximum numbers of bins, and minimum mean number of rows per bin for the model or arm with the fewest
rows: with fewer, intervals of shares overlap."""
STEPS = (1, 2, 2.5, 5)
"""Possible widths of bins, to be multiplied by a power of ten."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Difficulties = tuple[Int64s, Float64s]
"""Row ids and difficulties of rows; a difficulty is NaN if unknown."""


def read_difficulties(examples: TableRef | None, domain: Domain, share: float = 1.0, seed: int = 0) -> Difficulties:
    """Return difficulties of rows, or of a share of them, drawn by a hash; none if they lack the domain's columns."""
    schema = pa.schema({"row_id": pa.int64(), "difficulty": pa.float64()})
    columns, batches = {name: f"`{name}`" for name in ("row_id", *domain.columns.names)}, []
    if examples is not None and {*columns} <= {*io.open_table(examples).schema.names}:
        for batch in scans.iter_table_batches(examples, columns, "error IS NULL", num_rows=DOMAIN_ROWS):
            drawn = batch.filter(pa.array(hash_unit(batch.column("row_id").to_numpy(), seed) < share))
            values = [attempt(domain.difficulty, row)[0] for row in drawn.to_pylist()]
            found = [drawn.column("row_id"), np.array(values, dtype=np.float64)]
            batches.append(pa.record_batch(found, schema=schema))
    table = pa.Table.from_batches(batches, schema)
    return table["row_id"].to_numpy(), table["difficulty"].to_numpy()


def summarise_difficulty(difficulties: Difficulties, selected: Mapping[str, Int64s]) -> Json | None:
    """Return the mean and quantiles of the pool's and each arm's difficulty; ``None`` if none is known."""
    ids_N, values_N = difficulties
    ids_K, values_K = ids_N[np.isfinite(values_N)], values_N[np.isfinite(values_N)]
    if not len(values_K):
        return None
    profile, *profiles = [
        {
            "n": len(of_M),
            "mean": float(of_M.mean()) if len(of_M) else None,
            "quantiles": {str(q): float(np.quantile(of_M, q)) for q in QUANTILES} if len(of_M) else None,
        }
        for of_M in (values_K, *(values_K[np.isin(ids_K, ids_M)] for ids_M in selected.values()))
    ]
    num_unknown = len(values_N) - len(values_K)
    return {"num_unknown": num_unknown, "pool": profile, "arms": dict(zip(selected, profiles, strict=True))}


def compute_purity_bins(
    pool: GradedRows | None, selected: Mapping[str, Int64s], difficulties: Difficulties
) -> Json | None:
    """Return the share of right labels per bin: of all graded pool rows, the parsed ones, and each weak arm's rows.

    A bin without rows has ``None``. The result is ``None`` if the pool has no grades or no difficulties.
    """
    if pool is None:
        return None
    marks = {arm: np.isin(pool.row_ids_N, ids) for arm, ids in selected.items() if not ARMS[arm].gold}
    fewest = min([int(keep_N.sum()) for keep_N in marks.values() if keep_N.any()], default=len(pool))
    if (edges := compute_bin_edges(difficulties[1], fewest)) is None:
        return None
    bin_N, numbers = _find_bins(pool.row_ids_N, difficulties, edges), range(len(edges) - 1)

    def shares(keep_N: Bools) -> list[Json | None]:
        return [compute_share(pool.correct_N, pool.cluster_N, keep_N & (bin_N == number)) for number in numbers]

    return {
        "edges": edges.tolist(),
        "num_unknown": int((bin_N < 0).sum()),
        "all": shares(np.ones(len(pool), dtype=np.bool_)),
        "parsed": shares(pool.parsed_N),
        "arms": {arm: shares(keep_N) for arm, keep_N in marks.items()},
    }


def compute_accuracy_bins(tests: Tests, difficulties: Difficulties) -> Json | None:
    """Return accuracy of each tested model per bin of the test rows' difficulty (``None`` for a bin without rows)."""
    fewest = min((len(run.row_ids_N) for runs in tests.values() for run in runs), default=0)
    if not tests or (edges := compute_bin_edges(difficulties[1], fewest)) is None:
        return None
    models: dict[str, list[Json | None]] = {}
    for name, runs in tests.items():
        bins = [_find_bins(run.row_ids_N, difficulties, edges) for run in runs]
        for number in range(len(edges) - 1):
            parts = [run.subset(bin_N == number) for run, bin_N in zip(runs, bins, strict=True)]
            is_full = all(len(part.row_ids_N) for part in parts)
            models.setdefault(name, []).append(compute_accuracy({name: parts}, name) if is_full else None)
    return {"edges": edges.tolist(), "num_unknown": int(np.isnan(difficulties[1]).sum()), "models": models}


def compute_bin_edges(values_N: Float64s, num_rows: int) -> Float64s | None:
    """Return round edges of bins [low, high) of one width that cover all values, or ``None`` without finite values.

    There are at most ``MOST_BINS`` bins, and fewer if their mean number of rows would be below ``ROWS_A_BIN``. If there
    are at most ``MOST_BINS`` distinct values, bins are at least as wide as the smallest gap between two of them.
    """
    levels = np.unique(values_N[np.isfinite(values_N)])
    if not len(levels):
        return None
    most = MOST_BINS if len(levels) <= MOST_BINS else min(MOST_BINS, max(LEAST_BINS, num_rows // ROWS_A_BIN))
    width = (levels[-1] - levels[0]) / most
    if len(levels) <= MOST_BINS:
        width = max(width, np.diff(levels).min() if len(levels) > 1 else 1.0)
    power = 10.0 ** math.floor(math.log10(width))
    for size in (size * power * times for times in (1, 10) for size in STEPS):
        first, last = math.floor(levels[0] / size + 1e-9), math.floor(levels[-1] / size + 1e-9)
        if size >= width * (1 - 1e-9) and last - first < most:
            return np.asarray(np.arange(first, last + 2) * size)
    raise AssertionError("some width covers the values")


def _find_bins(row_ids_N: Int64s, difficulties: Difficulties, edges: Float64s) -> Int64s:
    """Return the bin of each row, int64 [N]; -1 if its difficulty is unknown."""
    ids_M, values_M = map(pa.array, difficulties)
    found = values_M.take(pc.index_in(pa.array(row_ids_N), ids_M))
    value_N = found.to_numpy(zero_copy_only=False)  # NaN for a null
    # A value that rounding puts just below its edge belongs above it.
    slack = 1e-9 * (edges[1] - edges[0])
    return np.where(np.isnan(value_N), -1, np.searchsorted(edges - slack, value_N, side="right") - 1)
