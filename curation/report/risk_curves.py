"""The curves of a risk-controlled budget: noise on calibration, its bound, noise at deployment, by share of the pool.

Paper, figure "Risk-controlled threshold calibration". Noise at deployment is known only if the run has an audit set.
"""

from collections.abc import Mapping

import numpy as np

from curation.arms import ARMS
from curation.arrays import Int64s
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.measures import compute_count_share
from curation.report.record import GenerationRecord, RunInputs
from curation.report.rows import LOWEST, SAMPLE, GradedRows, read_scores
from curation.selection.risk import compute_risk_curve
from curation.tables import io


def compute_risk_curves(
    run: RunInputs,
    record: GenerationRecord,
    graded: Mapping[str, GradedRows],
    pool: GradedRows | None,
    *,
    num_pool: int,
    share: float,
) -> Json | None:
    """Return the rule's curves at cuts through the pool, and the chosen cut.

    The cuts are quantiles of the scores of the pool, of which a ``share`` is drawn. The result is ``None`` if the
    budget has no risk rule, or a cut for each class.

    ``chosen`` is ``None`` if no cut is certified. A bound is ``None`` if no calibration row is kept.
    """
    risk = record.budget["risk"]
    if risk is None or "classes" in risk:  # the table of classes has their cuts
        return None
    trust = ARMS[record.budget["reference"]].trust
    rows, out_M = graded["calibration"].one_a_cluster, _read_too_long(record, "pool")
    raw_N = rows.scores[trust].raw_N
    may_N = rows.parsed_N & (raw_N > LOWEST) & ~np.isin(rows.row_ids_N, _read_too_long(record, "calibration"))
    every = read_scores(record.labels["pool"], [trust], share=share, seed=derive(run.seed, SAMPLE))
    scored = every.scores[trust]
    kept_N = every.parsed_N & (scored.raw_N > LOWEST) & ~np.isin(every.row_ids_N, out_M)
    pool_N = np.where(kept_N, scored.raw_N, -np.inf).astype(np.float32).astype(np.float64)
    settings = {key: risk[key] for key in ("rule", "kind", "alpha", "delta")}
    calibration_N, seed = np.where(may_N, raw_N, -np.inf), derive(run.seed, "risk")
    found = compute_risk_curve(calibration_N, rows.correct_N, pool_N, **settings, seed=seed)
    threshold = record.budget["threshold"]
    cuts_G = np.unique([*found.threshold_G.tolist(), *([] if threshold is None else [threshold])])
    # The least trust at or above each cut: trust never falls with the raw score.
    order_M = np.argsort(pool_N)[-int(kept_N.sum()) :]
    least_M = np.minimum.accumulate(scored.trust_N[order_M][::-1])[::-1]
    places_G = np.searchsorted(pool_N[order_M], cuts_G, side="left")
    least = dict(zip(cuts_G.tolist(), np.append(least_M, np.inf)[places_G].tolist(), strict=True))
    deployed: dict[float, Json | None] = {}
    if pool is not None:
        wrong_G, right_G = pool.above(trust, cuts_G, out_M)
        shares = map(compute_count_share, wrong_G, wrong_G + right_G)
        deployed = dict(zip(cuts_G.tolist(), shares, strict=True))
    points = [
        {
            "share": float(found.share_G[g]),
            "threshold": cut,
            "trust": least[cut],
            "tried": bool(found.tried_G[g]),
            "calibration": compute_count_share(found.wrong_G[g], found.kept_G[g]),
            "bound": float(found.bound_G[g]) if found.kept_G[g] else None,
            "deployment": deployed.get(cut),
        }
        for g, cut in enumerate(found.threshold_G.tolist())
    ]
    chosen = None
    if threshold is not None:
        chosen = {
            "share": int((pool_N >= threshold).sum()) / len(pool_N),
            "threshold": threshold,
            "trust": least[threshold],
            "calibration": compute_count_share(round(risk["noise"] * risk["num_kept"]), risk["num_kept"]),
            "bound": risk["bound"],
            "deployment": deployed.get(threshold),
        }
    return {
        **settings,
        "level": found.level,
        "start": found.start,
        "num_calibration": found.num_rows,
        "num_pool": num_pool,
        "num_graded": None if pool is None else len(pool),
        "points": points,
        "chosen": chosen,
    }


def _read_too_long(record: GenerationRecord, split: str) -> Int64s:
    """Return the ids of a split's rows that are too long to train on, which the budget skips, int64 [M]."""
    if split not in record.too_long:
        return np.zeros(0, dtype=np.int64)
    table = io.read(TableRef.from_json(record.too_long[split]["table"]), columns=["row_id"])
    return np.asarray(table["row_id"].to_numpy())
