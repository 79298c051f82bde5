"""The curves of a risk-controlled budget: noise on calibration, its bound, noise at deployment, by share of the pool.

Paper, figure "Risk-controlled threshold calibration". Noise at deployment is known only if the run has an audit set.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curation.arms import ARMS
from curation.arrays import Float64s, Int64s
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.measures import compute_count_share
from curation.report.record import GenerationRecord, RunInputs
from curation.report.rows import LOWEST, GradedSet, Judged
from curation.selection.order import Batch, Streamed
from curation.selection.risk import compute_risk_curve
from curation.tables import io, scans
from curation.trust import get_trust


def compute_risk_curves(
    run: RunInputs, record: GenerationRecord, judged: Mapping[str, Judged], pool: GradedSet | None
) -> Json | None:
    """Return the rule's curves at cuts through the pool, and the chosen cut.

    The cuts are quantiles of the pool's scores, which are read in passes (:mod:`curation.selection.order`). The result
    is ``None`` if the budget has no risk rule, or a cut for each class.

    ``chosen`` is ``None`` if no cut is certified. A bound is ``None`` if no calibration row is kept.
    """
    risk = record.budget["risk"]
    if risk is None or "classes" in risk:  # the table of classes has their cuts
        return None
    trust = ARMS[record.budget["reference"]].trust
    rows, out_M = judged["calibration"].one_a_cluster, _read_too_long(record, "pool")
    raw_N = rows.scores[trust].raw_N
    may_N = rows.parsed_N & (raw_N > LOWEST) & ~np.isin(rows.row_ids_N, _read_too_long(record, "calibration"))
    passes = _Passes(record.labels["pool"], trust, out_M)
    ordered = Streamed(passes.mapped)
    settings = {key: risk[key] for key in ("rule", "kind", "alpha", "delta")}
    kept_N, seed = np.where(may_N, raw_N, -np.inf), derive(run.seed, "risk")
    found = compute_risk_curve(kept_N, rows.correct_N, ordered, **settings, seed=seed)
    threshold = record.budget["threshold"]
    cuts_G = np.unique([*found.threshold_G.tolist(), *([] if threshold is None else [threshold])])
    least = dict(zip(cuts_G.tolist(), passes.find_least_trust(cuts_G).tolist(), strict=True))
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
            "share": int(ordered.num_above([threshold], inclusive=True)[0]) / ordered.num_rows,
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
        "num_pool": ordered.num_rows,
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


@dataclass(frozen=True, eq=False)
class _Passes:
    """The labelled rows of the pool and a trust function, pickled to every task."""

    labels: TableRef
    trust: str
    out_M: Int64s
    """Ids of rows that may not be selected, besides those whose label could not be read."""

    def mapped(self, function: Callable[[Iterable[Batch]], Any]) -> Iterator[Any]:
        """Return, for each part of the rows, ``function`` of ids and raw scores (NaN if a row may not be selected)."""
        return scans.map_fragments(
            self.labels, lambda fragments: function(pair[:2] for pair in self._iter_batches(fragments))
        )

    def find_least_trust(self, threshold_G: Float64s) -> Float64s:
        """Return the least trust at or above each threshold of the raw score, with which trust never falls."""

        def find(fragments: Sequence[int] | None) -> Float64s:
            """Return the least trust below the first threshold, and from each one to the next, float64 [G + 1]."""
            least = np.full(len(threshold_G) + 1, np.inf)
            for _, raw_B, trust_B in self._iter_batches(fragments):
                may_M = np.flatnonzero(~np.isnan(raw_B))
                np.minimum.at(least, np.searchsorted(threshold_G, raw_B[may_M], side="right"), trust_B[may_M])
            return least

        parts = [*scans.map_fragments(self.labels, find)]
        return np.asarray(np.minimum.accumulate(np.min(parts, axis=0)[::-1])[::-1][1:])

    def _iter_batches(self, fragments: Sequence[int] | None) -> Iterator[tuple[Int64s, Float64s, Float64s]]:
        function = get_trust(self.trust, 0)
        columns = {name: f"`{name}`" for name in dict.fromkeys(["row_id", *function.features])}
        columns["is parsed"] = "label IS NOT NULL"
        for batch in scans.iter_table_batches(self.labels, columns, io.make_answered_filter(self.labels), fragments):
            ids_B = batch.column("row_id").to_numpy()
            may_B = batch.column("is parsed").to_numpy(zero_copy_only=False) & ~np.isin(ids_B, self.out_M)
            raw_B = np.where(may_B, function.raw_score(batch).astype(np.float64), np.nan)
            yield ids_B, raw_B, function.score(batch).astype(np.float64)
