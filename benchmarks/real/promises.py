"""What trust above .9 promises, over many deals of a set's rows into labelled ones and others.

A set may have a hundred such rows, whose share of right ones is known to six points. Many deals of the same rows say
whether the promise is off on the whole, which one deal cannot.
"""

from typing import Any

import numpy as np

from benchmarks.real.arms import fitted
from curation.trust.parts import FIT, VALIDATION
from train.trust_loop import LabelledRows

LABELLED, SURE = 1_000, 0.9


def promises(source: LabelledRows, pool: LabelledRows, states: tuple[str, ...], *, deals: int) -> dict[str, Any]:
    """The promise less the share right of rows with trust above ``SURE``, mean over deals, and its standard error.

    A deal gives ``LABELLED`` of all rows a label; the others are measured.
    """
    used = np.flatnonzero(source.part_N >= 0)
    hidden_ND = np.concatenate([source.hidden_ND[used], pool.hidden_ND])
    numbers_NK = np.concatenate([source.numbers_NK[used], pool.numbers_NK])
    correct_N = np.concatenate([source.correct_N[used], pool.correct_N])
    gold_N = None
    if source.gold_N is not None and pool.gold_N is not None:
        gold_N = np.concatenate([source.gold_N[used], pool.gold_N])
    ids_N = np.arange(len(correct_N), dtype=np.int64)
    labelled = min(LABELLED, len(used))
    part_N = np.full(labelled, FIT, dtype=np.int8)
    part_N[: labelled // 5] = VALIDATION
    score = fitted("stacked", states)
    num_sure, off = [], []
    for deal in range(deals):
        order = np.random.default_rng(deal).permutation(len(ids_N))
        given, rest = (
            source._replace(
                hidden_ND=hidden_ND[taken],
                numbers_NK=numbers_NK[taken],
                correct_N=correct_N[taken],
                row_ids_N=ids_N[taken],
                gold_N=None if gold_N is None else gold_N[taken],
                part_N=part_N if len(taken) == labelled else np.full(len(taken), FIT, dtype=np.int8),
            )
            for taken in (order[:labelled], order[labelled:])
        )
        trust_N = score(given, rest, deal).trust_N
        assert trust_N is not None, "a stack gives probabilities"
        sure_N = trust_N > SURE
        num_sure.append(int(sure_N.sum()))
        if sure_N.any():
            off.append(float(trust_N[sure_N].mean() - rest.correct_N[sure_N].mean()))
    if len(off) < 2:  # no interval
        return {"deals": deals, "labelled": labelled, "rows": float(np.mean(num_sure))}
    error = float(np.std(off, ddof=1) / len(off) ** 0.5)
    return {
        "deals": deals,
        "labelled": labelled,
        "rows": float(np.mean(num_sure)),
        "mean": float(np.mean(off)),
        "error": error,
    }
