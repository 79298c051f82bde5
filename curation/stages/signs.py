"""What a generation shows of its trust function without the pool's gold labels: AUC, certified share, shift."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from curation import metrics
from curation.config import RiskConfig, TrustConfig
from curation.refs import TableRef
from curation.report.rows import judge
from curation.selection.chain_stop import Signs
from curation.selection.risk import calibrate
from curation.stages.pool_scores import PoolScores
from curation.trust.parts import VALIDATION, part_of


def read_signs(
    *,
    functions: tuple[str, ...],
    source: TableRef,
    grades: TableRef,
    trust: TrustConfig,
    pool: PoolScores,
    budget: Mapping[str, Any],
    risk: RiskConfig | None,
    shift: Mapping[str, Any],
    seed: int,
) -> Signs:
    """The signs of the first of ``functions`` that the scored ``source`` labels have.

    ``risk`` certifies on validation rows; without it the run's ``budget`` tells, if it is one of risk. ``pool`` gives
    the scores of the generation's share; its ``trust`` is replaced by that function.
    """
    judged = judge(source, grades, functions)
    name = next(name for name in functions if name in judged.scores)
    rows = judged.subset(part_of(judged.row_ids_N, trust, seed) == VALIDATION)
    parsed = rows.readable
    certified = budget["n"] / pool.num_rows if budget["risk"] is not None and pool.num_rows else None
    if risk is not None:
        scores = PoolScores(labels=pool.labels, trust=name, seed=seed, too_long=pool.too_long)
        ordered = scores.ordered()
        # Read as float32, like the pool's scores.
        raw_M = np.where(rows.parsed_N, rows.scores[name].raw_N, -np.inf).astype(np.float32)
        cut = calibrate(raw_M, rows.correct_N, ordered, **risk.model_dump(), seed=seed).threshold
        num = 0 if cut is None else int(ordered.num_above([cut], inclusive=True)[0])
        certified = num / scores.num_rows
    compared = "calibration" if "calibration" in shift else "source"
    return Signs(
        function=name,
        auc=metrics.auc(parsed.scores[name].raw_N, parsed.correct_N, seed=seed),
        certified=certified,
        compared=compared,
        shift=shift[compared],
    )
