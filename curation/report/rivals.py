"""Comparison of trust with the free signals on the same parsed rows: paired differences of AUC and of purity.

A free signal (``curation.arms.FREE``) is one column that every labelling pass fills. It needs neither gold labels nor a
fit, so a trust function that does not rank better than the best of them is not worth its fit. Rows rank by raw score
alone, without a division of the arm that selects by it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import free_of
from curation.hashing import hash_unit
from curation.json_types import Json
from curation.metrics import CONFIDENCE, Estimate
from curation.report.rows import GradedRows


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A comparison of a trust function with a free signal; differences are the function's value minus the signal's."""

    signal: str
    where: str
    """Set of the rows: ``pool`` or ``validation``."""
    num_top: int
    """Number of top rows of each ranking that purity counts."""
    auc: Estimate | None
    """Difference of the AUCs, or ``None`` if a class has fewer than two rows."""
    purity: Estimate
    """Difference of the shares of right labels among the first ``num_top`` rows."""
    confidence: float
    """Confidence of both intervals."""

    @property
    def is_better(self) -> bool:
        """Whether the signal is shown to rank better than the trust function, by AUC or by purity."""
        return (self.auc is not None and self.auc.high < 0) or self.purity.high < 0

    def to_entry(self) -> Json:
        """Return the comparison as an entry of the trust table: ``signal``, ``num_top``, ``auc`` and ``purity``."""
        auc = None if self.auc is None else self.auc.to_json()
        return {"signal": self.signal, "num_top": self.num_top, "auc": auc, "purity": self.purity.to_json()}


def compare_with_signal(
    rows: GradedRows, where: str, function: str, signal: str, num_top: int, seed: int, *, confidence: float = CONFIDENCE
) -> Rival:
    """Compare a trust function with a signal on a set's parsed rows; ``num_top`` of them represent the selection."""
    parsed = rows.readable
    first_N, second_N = parsed.scores[function].raw_N, parsed.scores[signal].raw_N
    num_top = min(max(1, num_top), len(parsed))
    of_rows: dict[str, Any] = {"confidence": confidence, "cluster_N": parsed.cluster_N}
    auc = metrics.compute_auc_difference(first_N, second_N, parsed.correct_N, **of_rows)
    draw_N = hash_unit(parsed.row_ids_N, seed)
    first_M, second_M = (np.lexsort((draw_N, -raw_N))[:num_top] for raw_N in (first_N, second_N))
    return Rival(
        signal=signal,
        where=where,
        num_top=num_top,
        auc=None if math.isnan(auc.value) else auc,
        purity=metrics.compute_purity_difference(first_M, second_M, parsed.correct_N, **of_rows),
        confidence=confidence,
    )


def find_rivals(
    rows: GradedRows, where: str, function: str, num_top: int, seed: int, *, false_alarms: float
) -> tuple[Rival, ...]:
    """Return comparisons of a trust function with every free signal of the rows, with simultaneous intervals.

    Each of k signals gives two differences, and an interval below zero speaks against trust. With a confidence of
    1 - ``false_alarms`` / k, the probability that a function as good as all signals has such an interval is at most
    ``false_alarms`` (Bonferroni: 2 k lower tails of ``false_alarms`` / 2 k).
    """
    signals = [name for name in free_of(rows.scores) if name in rows.scores and name != function]
    if not signals or not rows.parsed_N.any() or function not in rows.scores:
        return ()
    level = 1 - false_alarms / len(signals)
    return tuple(
        compare_with_signal(rows, where, function, signal, num_top, seed, confidence=level) for signal in signals
    )


def find_best_signal(measured: Mapping[str, GradedRows]) -> tuple[str, str] | None:
    """Return the free signal with the highest AUC on parsed rows, and the set of these rows; ``None`` without a signal.

    The set is the held-out labelled rows, and the pool only without these: a signal that is chosen on the rows on which
    it is then compared with trust has an advantage. It has this advantage if validation rows are compared, as without
    gold labels of the pool.
    """
    for where in ("validation", "pool"):
        rows = measured.get(where)
        if rows is None or not len(parsed := rows.readable):
            continue
        aucs = {
            name: np.nan_to_num(metrics.compute_auc_value(parsed.scores[name].raw_N, parsed.correct_N))
            for name in free_of(parsed.scores)
            if name in parsed.scores
        }
        if aucs:
            return max(aucs, key=lambda name: aucs[name]), where
    return None
