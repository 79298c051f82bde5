"""Numbers about trust and selection, as JSON: metrics, reliability, purity against n."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.arrays import Bools, Float64s, Int64s
from curation.json_types import Json
from curation.report.rows import GradedRows

ECE_BINS = metrics.NUM_BINS
CURVE_POINTS = 120


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


def measure_functions(rows: GradedRows, num_top: int, constant: float, seed: int) -> Json:
    """Return AUC, ECE, Brier score, and the purity of the first ``num_top`` rows, by trust function.

    Rows are ranked as the arm of each trust function prefers them. ``constant`` is the trust that the baseline gives
    to every row. AUC is ``None`` if all rows are right or all are wrong.
    """
    num_top = min(num_top, len(rows))
    return {
        "num_rows": len(rows),
        "num_top": num_top,
        "share_right": rows.share_right().to_json(),
        "functions": {
            name: {
                **measure_calibration(rows, name, seed),
                "purity_at_n": rows.rank(name, [num_top])[0].to_json() if num_top else None,
            }
            for name in rows.scores
        },
        "constant": {"value": constant, **compute_errors(rows, np.full(len(rows), constant), seed)},
    }


def measure_calibration(graded: GradedRows, function: str, seed: int) -> Json:
    """Return AUC, ECE and Brier score of a trust function."""
    score = graded.scores[function]
    auc = graded.auc(score.raw_N)
    return {"auc": None if auc is None else auc.to_json(), **compute_errors(graded, score.trust_N, seed)}


def compute_errors(graded: GradedRows, trust_N: Float64s, seed: int) -> Json:
    """Return ECE and Brier score of a trust in each row."""
    return {
        name: measure(trust_N, graded.correct_N, seed=seed, cluster_N=graded.cluster_N).to_json()
        for name, measure in (("ece", metrics.ece), ("brier", metrics.brier))
    }


def collect_reliability(rows: GradedRows) -> Json:
    """Return, by trust function, the non-empty bins with mean trust, share right and its exact interval."""
    return {
        name: [
            {**item._asdict(), "share_right": item.share_right.to_json()}
            for item in metrics.compute_reliability(score.trust_N, rows.correct_N)
        ]
        for name, score in rows.scores.items()
    }


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
