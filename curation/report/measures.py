"""Numbers about trust and selection, as JSON: metrics, reliability, histogram, purity against n, difficulty."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import REFERENCE_ARM
from curation.hashing import hash_unit
from curation.report.rows import Bools, Floats, Ints, Judged, arm_order

ECE_BINS = metrics.NUM_BINS
BRIER_PARTS = ("reliability", "resolution", "uncertainty", "within_bins")
HISTOGRAM_BINS = 20
DIFFICULTY_BINS = 24
CURVE_POINTS = 120
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Json = dict[str, Any]


def share(correct_N: Bools, *, confidence: float = metrics.CONFIDENCE) -> Json | None:
    """The share of right rows with its exact interval; ``None`` for no rows."""
    if not len(correct_N):
        return None
    return metrics.proportion(int(correct_N.sum()), len(correct_N), confidence=confidence).to_json()


def trust_metrics(judged: Judged, orders: Mapping[str, Ints], num_top: int, constant: float, seed: int) -> Json:
    """AUC, ECE, Brier score and its parts, and the purity of the first ``num_top`` rows, by trust function.

    ``orders`` are the rankings for purity, positions [N]; ``constant`` is the trust that the control predictor gives to
    every row. AUC is ``None`` if all rows are right or all are wrong.
    """
    num_top = min(num_top, len(judged))
    functions: Json = {}
    for name, score in judged.scores.items():
        parts = metrics.brier_parts(score.trust_N, judged.correct_N, bins=ECE_BINS, seed=seed)
        functions[name] = {
            **_calibration(judged, name, seed),
            "brier_parts": {key: getattr(parts, key).to_json() for key in BRIER_PARTS},
            "purity_at_n": share(judged.correct_N[orders[name][:num_top]]),
            "coverage": [
                {"coverage": point.coverage, "purity": point.purity.to_json()}
                for point in metrics.coverage_curve(judged.correct_N[orders[name]])
            ],
        }
    return {
        "num_rows": len(judged),
        "num_top": num_top,
        "share_right": share(judged.correct_N),
        "functions": functions,
        "constant": constant_metrics(judged, constant, seed),
        "parsed_flag": None if judged.parsed_N.all() else {"auc": _auc(judged.parsed_N, judged, seed)},
    }


def constant_metrics(judged: Judged, constant: float, seed: int) -> Json:
    """ECE and Brier score of a constant trust: the baseline for every trust function."""
    trust_N = np.full(len(judged), constant)
    return {
        "value": constant,
        "ece": metrics.ece(trust_N, judged.correct_N, bins=ECE_BINS, seed=seed).to_json(),
        "brier": metrics.brier(trust_N, judged.correct_N, seed=seed).to_json(),
    }


def regime(judged: Judged, function: str, num_top: int, constant: float, seed: int) -> Json:
    """One labelled set under one trust function: share right, AUC, ECE, Brier score, purity of its first rows."""
    score = judged.scores[function]
    first = np.lexsort((hash_unit(judged.row_ids_N, seed), -score.raw_N))[:num_top]
    return {
        "n": len(judged),
        "share_right": share(judged.correct_N),
        **_calibration(judged, function, seed),
        "num_top": num_top,
        "purity_at_n": share(judged.correct_N[first]),
        "constant": constant_metrics(judged, constant, seed),
    }


def _calibration(judged: Judged, function: str, seed: int) -> Json:
    score, correct_N = judged.scores[function], judged.correct_N
    return {
        "auc": _auc(score.raw_N, judged, seed),
        "ece": metrics.ece(score.trust_N, correct_N, bins=ECE_BINS, seed=seed).to_json(),
        "ece_equal_mass": metrics.ece(score.trust_N, correct_N, bins=ECE_BINS, equal="mass", seed=seed).to_json(),
        "brier": metrics.brier(score.trust_N, correct_N, seed=seed).to_json(),
    }


def _auc(raw_N: Floats | Bools, judged: Judged, seed: int) -> Json | None:
    if not 0 < judged.correct_N.sum() < len(judged):
        return None
    return metrics.auc(raw_N.astype(np.float64), judged.correct_N, seed=seed).to_json()


def reliability(judged: Judged) -> Json:
    """Non-empty bins of trust, by trust function: mean trust against the share right and its exact interval."""
    result: Json = {}
    for name, score in judged.scores.items():
        result[name] = [
            {
                "low": item.low,
                "high": item.high,
                "mean_trust": item.mean_trust,
                "share_right": metrics.proportion(round(item.share_right * item.n), item.n).to_json(),
            }
            for item in metrics.reliability(score.trust_N, judged.correct_N, bins=ECE_BINS)
        ]
    return result


def histogram(judged: Judged) -> Json:
    """Numbers of rows by trust, right and wrong ones separately."""
    trust_N = judged.scores[REFERENCE_ARM].trust_N
    edges = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)
    counts = {
        name: np.histogram(trust_N[keep_N], bins=edges)[0].tolist()
        for name, keep_N in (("right", judged.correct_N), ("wrong", ~judged.correct_N))
    }
    return {"edges": edges.tolist(), **counts}


def purity_curves(judged: Judged, selected: Mapping[str, Ints], n: int, seed: int) -> Json:
    """Purity against the number of rows taken, by arm; ``selected`` are the arms' row ids by rank."""
    num_rows = len(judged)
    spread = np.geomspace(min(20, num_rows), num_rows, CURVE_POINTS)
    points = sorted({*spread.astype(int).tolist(), min(n, num_rows)} - {0})
    curves = {}
    for arm, row_ids_M in selected.items():
        correct_N = judged.correct_N[arm_order(judged, arm, row_ids_M, seed)]
        curves[arm] = [estimate.to_json() for estimate in metrics.purity_curve(correct_N, points)]
    return {"n": n, "points": points, "arms": curves}


def difficulty(row_ids_N: Ints, values_N: Floats, selected: Mapping[str, Bools]) -> Json | None:
    """Quantiles and shares per bin of the pool and of each arm's rows; ``None`` if the domain has no difficulty.

    ``selected`` marks an arm's rows among ``row_ids_N``. All arms share the bins.
    """
    known_N = np.isfinite(values_N)
    if not known_N.any():
        return None
    edges = np.histogram_bin_edges(values_N[known_N], bins=DIFFICULTY_BINS)

    def profile(keep_N: Bools) -> Json:
        kept = values_N[keep_N & known_N]
        counts = np.histogram(kept, bins=edges)[0]
        return {
            "n": len(kept),
            "mean": float(kept.mean()) if len(kept) else None,
            "quantiles": dict(zip(map(str, QUANTILES), np.quantile(kept, QUANTILES).tolist(), strict=True))
            if len(kept)
            else None,
            "shares": (counts / max(len(kept), 1)).tolist(),
        }

    return {
        "edges": edges.tolist(),
        "num_unknown": int((~known_N).sum()),
        "pool": profile(np.ones(len(row_ids_N), dtype=np.bool_)),
        "arms": {arm: profile(keep_N) for arm, keep_N in selected.items()},
    }


def finite(value: Any) -> Any:
    """A JSON value with NaN and infinity replaced by ``None``, and numpy numbers by Python's."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
