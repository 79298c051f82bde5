"""Numbers about trust and selection, as JSON: metrics, reliability, histogram, purity against n, difficulty."""

import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import ARMS, REFERENCE_ARM
from curation.arrays import Bools, Int64s
from curation.json_types import Json
from curation.report.rows import GradedRows

ECE_BINS = metrics.NUM_BINS
BRIER_PARTS = ("reliability", "resolution", "uncertainty", "within_bins")
HISTOGRAM_BINS = 20
CURVE_POINTS = 120
MOST_THREADS = 4
"""Maximum number of trust functions measured in parallel: a bootstrap's draws, which take most of the time, release
the GIL. As many draws are cached."""


def compute_share(
    correct_N: Bools, cluster_N: Int64s | None, keep_N: Bools | None = None, *, confidence: float = metrics.CONFIDENCE
) -> Json | None:
    """Return the share of right rows, or of those that ``keep_N`` marks, with its exact interval, widened for clusters.

    The result is ``None`` for no rows.
    """
    if keep_N is not None:
        correct_N, cluster_N = correct_N[keep_N], None if cluster_N is None else cluster_N[keep_N]
    found = metrics.compute_share_right(correct_N, cluster_N, confidence=confidence)
    return found.to_json() if found.n else None


def compute_count_share(num_right: int, num_rows: int) -> Json | None:
    """Return a share with its exact interval; ``None`` for no rows."""
    return metrics.compute_proportion(int(num_right), int(num_rows)).to_json() if num_rows else None


def trust_metrics(rows: GradedRows, num_top: int, constant: float, seed: int) -> Json:
    """Return AUC, ECE, Brier score and its parts, and the purity of the first ``num_top`` rows, by trust function.

    Rows are ranked as the arm of each trust function prefers them. ``constant`` is the trust that the baseline gives
    to every row. AUC is ``None`` if all rows are right or all are wrong.
    """
    num_top = min(num_top, len(rows))

    def measure(name: str) -> Json:
        of: Json = {"seed": seed, "cluster_N": rows.cluster_N}
        # First, as the calibration begins with the same cells, and few resamples are cached.
        parts = metrics.compute_brier_parts(rows.scores[name].trust_N, rows.correct_N, **of)
        found = measure_calibration(rows, name, seed)
        top = rows.rank(name, [num_top])[0].to_json() if num_top else None
        return {**found, "brier_parts": {key: parts[key].to_json() for key in BRIER_PARTS}, "purity_at_n": top}

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        functions: Json = dict(zip(rows.scores, pool.map(measure, rows.scores), strict=True))
    readable = None if rows.parsed_N.all() else rows.auc(rows.parsed_N)
    return {
        "num_rows": len(rows),
        "num_top": num_top,
        "share_right": rows.share_right().to_json(),
        "functions": functions,
        "constant": compute_constant_metrics(rows, constant, seed),
        "parsed_flag": None if rows.parsed_N.all() else {"auc": None if readable is None else readable.to_json()},
    }


def compute_constant_metrics(graded: GradedRows, constant: float, seed: int) -> Json:
    """Return ECE and Brier score of a constant trust, the baseline of all trust functions."""
    trust_N = np.full(len(graded), constant)
    of: Json = {"seed": seed, "cluster_N": graded.cluster_N}
    ece = metrics.ece(trust_N, graded.correct_N, **of)
    brier = metrics.brier(trust_N, graded.correct_N, **of)
    return {"value": constant, "ece": ece.to_json(), "brier": brier.to_json()}


def measure_calibration(graded: GradedRows, function: str, seed: int) -> Json:
    """Return AUC, ECE over bins of equal width and of equal mass, and Brier score of a trust function."""
    score, correct_N, auc = graded.scores[function], graded.correct_N, graded.auc(graded.scores[function].raw_N)
    of: Json = {"seed": seed, "cluster_N": graded.cluster_N}
    # In this order, as numbers over the same cells share their resamples.
    width = metrics.ece(score.trust_N, correct_N, **of).to_json()
    brier = metrics.brier(score.trust_N, correct_N, **of).to_json()
    mass = metrics.ece(score.trust_N, correct_N, equal="mass", **of).to_json()
    return {"auc": None if auc is None else auc.to_json(), "ece": width, "ece_equal_mass": mass, "brier": brier}


def collect_reliability(rows: GradedRows) -> Json:
    """Return, by trust function, the non-empty bins with mean trust, share right and its exact interval."""
    found = {name: metrics.compute_reliability(score.trust_N, rows.correct_N) for name, score in rows.scores.items()}
    return {
        name: [{**item._asdict(), "share_right": item.share_right.to_json()} for item in bins]
        for name, bins in found.items()
    }


def compute_histogram(rows: GradedRows) -> Json:
    """Return numbers of rows by trust, right and wrong ones separately."""
    trust_N, correct_N = rows.scores[REFERENCE_ARM].trust_N, rows.correct_N
    edges = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)
    counts = {
        name: np.histogram(trust_N[keep_N], bins=edges)[0].tolist()
        for name, keep_N in (("right", correct_N), ("wrong", ~correct_N))
    }
    return {"edges": edges.tolist(), **counts}


def compute_purity_curves(rows: GradedRows | None, selected: Iterable[str], n: int) -> Json | None:
    """Return purity by the number of rows taken, for each weak arm; ``None`` without such an arm or graded rows."""
    arms, num_rows = [arm for arm in selected if not ARMS[arm].gold], 0 if rows is None else len(rows)
    if rows is None or not num_rows or not arms:
        return None
    spread = np.geomspace(min(20, num_rows), num_rows, CURVE_POINTS)
    points = sorted({*spread.astype(int).tolist(), min(rows.scale(n), num_rows)} - {0})
    curves = {arm: [estimate.to_json() for estimate in rows.rank(arm, points)] for arm in arms}
    return {"n": n, "points": [round(point / rows.drawn) for point in points], "arms": curves}


def make_finite(value: object) -> Any:
    """Return a JSON value with NaN and infinity replaced by ``None``, and NumPy numbers by Python numbers."""
    if isinstance(value, Mapping):
        return {str(key): make_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
