"""The curves of a risk-controlled budget: noise on calibration, its bound, noise at deployment, by share of the pool.

Paper, figure "Risk-controlled threshold calibration". Noise at deployment is known only if the run has an audit set.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from curation import metrics
from curation.arms import ARMS
from curation.hashing import derive
from curation.refs import TableRef
from curation.report.measured import GradedSet
from curation.report.measures import Json
from curation.report.record import GenerationRecord, RunRecord
from curation.report.rows import LOWEST, Bools, Floats, Ints, Judged
from curation.selection.risk import curve
from curation.tables import io
from curation.trust import get_trust


def risk_curves(
    run: RunRecord, record: GenerationRecord, judged: Mapping[str, Judged], pool: GradedSet | None
) -> Json | None:
    """The rule's curves at cuts through the pool, and the chosen cut; ``None`` without a risk-controlled budget.

    The cuts are quantiles of the pool's scores, which are all read at once: 16 bytes a row.

    ``chosen`` is ``None`` if no cut is certified. A bound is ``None`` if no calibration row is kept.
    """
    risk = record.budget["risk"]
    if risk is None:
        return None
    trust = ARMS[record.budget["reference"]].trust
    raw_M, correct_M = _ranked(judged["calibration"], trust, _too_long(record, "calibration"))
    out_M = _too_long(record, "pool")
    raw_N, trust_N = _pool(record.labels["pool"], trust, out_M)
    found = curve(
        raw_M,
        correct_M,
        raw_N,
        alpha=risk["alpha"],
        delta=risk["delta"],
        rule=risk["rule"],
        kind=risk["kind"],
        seed=derive(run.seed, "risk"),
    )
    least = _least_trust(raw_N, trust_N)
    threshold = record.budget["threshold"]
    deployed = _deployed(pool, trust, [*found.threshold_G.tolist(), *([] if threshold is None else [threshold])], out_M)
    points = [
        {
            "share": float(found.share_G[g]),
            "threshold": float(found.threshold_G[g]),
            "trust": least(found.threshold_G[g]),
            "tried": bool(found.tried_G[g]),
            "calibration": _noise(found.wrong_G[g], found.kept_G[g]),
            "bound": float(found.bound_G[g]) if found.kept_G[g] else None,
            "deployment": deployed(found.threshold_G[g]),
        }
        for g in range(len(found.threshold_G))
    ]
    chosen = None
    if threshold is not None:
        chosen = {
            "share": float((raw_N >= threshold).mean()),
            "threshold": threshold,
            "trust": least(threshold),
            "calibration": _noise(round(risk["noise"] * risk["num_kept"]), risk["num_kept"]),
            "bound": risk["bound"],
            "deployment": deployed(threshold),
        }
    return {
        **{key: risk[key] for key in ("rule", "kind", "alpha", "delta")},
        "level": found.level,
        "start": found.start,
        "num_calibration": found.num_rows,
        "num_pool": len(raw_N),
        "num_graded": None if pool is None else len(pool),
        "points": points,
        "chosen": chosen,
    }


def _too_long(record: GenerationRecord, split: str) -> Ints:
    """The ids of a split's rows that no arm can train on; the budget skips them, int64 [M]."""
    if split not in record.too_long:
        return np.zeros(0, dtype=np.int64)
    table = io.read(TableRef.from_json(record.too_long[split]["table"]), columns=["row_id"])
    ids_M: Ints = table["row_id"].to_numpy()
    return ids_M


def _ranked(rows: Judged, trust: str, out_M: Ints) -> tuple[Floats, Bools]:
    """Raw scores (-inf for a row that may not be selected), and which labels are right."""
    raw_N = rows.scores[trust].raw_N
    may_N = rows.parsed_N & (raw_N > LOWEST) & ~np.isin(rows.row_ids_N, out_M)
    return np.where(may_N, raw_N, -np.inf), rows.correct_N


def _pool(labels: TableRef, trust: str, out_M: Ints) -> tuple[Floats, Floats]:
    """Raw scores of all labelled pool rows (NaN for a row that may not be selected), and their trust."""
    function = get_trust(trust, 0)
    columns = list(dict.fromkeys(["row_id", "label", *function.features]))
    table = io.read(labels, columns=columns, filter=io.answered(labels))
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    may_N = table["label"].is_valid().to_numpy() & ~np.isin(table["row_id"].to_numpy(), out_M)
    raw_N = np.where(may_N, function.raw_score(batch).astype(np.float64), np.nan)
    return raw_N, function.score(batch).astype(np.float64)


def _least_trust(raw_N: Floats, trust_N: Floats) -> Callable[[float], float]:
    """A function from a pool row's raw score to its trust; trust never falls as the raw score grows."""
    known_N = ~np.isnan(raw_N)
    raw_N, trust_N = raw_N[known_N], trust_N[known_N]
    order_N = np.argsort(raw_N)
    raw_N, trust_N = raw_N[order_N], trust_N[order_N]
    return lambda threshold: float(trust_N[np.searchsorted(raw_N, threshold)])


def _noise(num_wrong: int, num_rows: int) -> Json | None:
    return metrics.proportion(int(num_wrong), int(num_rows)).to_json() if num_rows else None


def _deployed(
    pool: GradedSet | None, trust: str, thresholds: Sequence[float], out_M: Ints
) -> Callable[[float], Json | None]:
    """A function from one of the thresholds to the noise among the graded pool rows at or above it."""
    if pool is None:
        return lambda threshold: None
    threshold_G = np.unique(np.asarray(thresholds, dtype=np.float64))
    wrong_G, right_G = pool.above(trust, threshold_G, out_M)
    place = {threshold: place for place, threshold in enumerate(threshold_G.tolist())}
    return lambda threshold: _noise(wrong_G[place[threshold]], (wrong_G + right_G)[place[threshold]])
