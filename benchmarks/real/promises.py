"""What trust above .9 promises, over many deals of a set's rows into labelled ones and others.

A set may have a hundred such rows, whose share of right ones is known to six points. Many deals of the same rows say
whether the promise is off on the whole, which one deal cannot.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.real.arms import fitted
from curation.arrays import Bools, Float64s
from curation.trust.parts import FIT, VALIDATION
from train.trust_loop import LabelledRows

LABELLED, SURE = 1_000, 0.9


class Sure(NamedTuple):
    """The rows of a deal whose trust is above ``SURE``."""

    num: int
    promised: float
    """The sum of their trust."""
    right: int

    @classmethod
    def of(cls, trust_N: Float64s, correct_N: Bools) -> "Sure":
        """Return those among rows that were not labelled."""
        sure_N = trust_N > SURE
        return cls(int(sure_N.sum()), float(trust_N[sure_N].sum()), int(correct_N[sure_N].sum()))


def dealt(
    source: LabelledRows, pool: LabelledRows, *, deals: int, labelled: int = LABELLED
) -> Iterator[tuple[int, LabelledRows, LabelledRows]]:
    """Yield all rows of a set, assigned again and again to ``labelled`` ones and others; the deal's number first."""
    used = np.flatnonzero(source.part_N >= 0)
    hidden_ND = np.concatenate([source.hidden_ND[used], pool.hidden_ND])
    numbers_NK = np.concatenate([source.numbers_NK[used], pool.numbers_NK])
    correct_N = np.concatenate([source.correct_N[used], pool.correct_N])
    gold_N = None
    if source.gold_N is not None and pool.gold_N is not None:
        gold_N = np.concatenate([source.gold_N[used], pool.gold_N])
    ids_N = np.arange(len(correct_N), dtype=np.int64)
    labelled = min(labelled, len(used))

    def rows(taken: np.ndarray[Any, np.dtype[np.int64]], num_validation: int) -> LabelledRows:
        part_N = np.full(len(taken), FIT, dtype=np.int8)
        part_N[:num_validation] = VALIDATION
        return source._replace(
            hidden_ND=hidden_ND[taken],
            numbers_NK=numbers_NK[taken],
            correct_N=correct_N[taken],
            row_ids_N=ids_N[taken],
            gold_N=None if gold_N is None else gold_N[taken],
            part_N=part_N,
        )

    for deal in range(deals):
        order = np.random.default_rng(deal).permutation(len(ids_N))
        yield deal, rows(order[:labelled], labelled // 5), rows(order[labelled:], 0)


def promises(source: LabelledRows, pool: LabelledRows, states: tuple[str, ...], *, deals: int) -> dict[str, Any]:
    """Return the promise of the default's surest rows less the share that is right, over deals; see :func:`summed`.

    A deal gives ``LABELLED`` of all rows a label; the others are measured.
    """
    score, found, labelled = fitted("stacked", states), [], 0
    for deal, given, rest in dealt(source, pool, deals=deals):
        trust_N = score(given, rest, deal).trust_N
        assert trust_N is not None, "a stack gives probabilities"
        found.append(Sure.of(trust_N, rest.correct_N))
        labelled = len(given.correct_N)
    return {"deals": deals, "labelled": labelled, **summed(found)}


def summed(deals: Sequence[Sure]) -> dict[str, float]:
    """Return sure rows per deal, and two estimates, with standard errors, of their promise less the share right.

    ``mean``: of the deals that have such rows, each as much as another: what a run has to expect. ``of_rows``: of all
    such rows together (error by the jackknife over deals): a deal with two rows weighs less than one with a hundred.
    With fewer than two deals that have such rows both are left out.
    """
    num_D, promised_D, right_D = (np.array(column, dtype=np.float64) for column in zip(*deals, strict=True))
    found = {"rows": float(num_D.mean())}
    some = num_D > 0
    if some.sum() < 2:
        return found
    gap_D = ((promised_D - right_D)[some]) / num_D[some]
    found |= {"mean": float(gap_D.mean()), "error": float(gap_D.std(ddof=1) / some.sum() ** 0.5)}
    gaps, num = (promised_D - right_D).sum(), num_D.sum()
    without_D = (gaps - promised_D[some] + right_D[some]) / (num - num_D[some])
    error = np.sqrt((some.sum() - 1) / some.sum() * ((without_D - without_D.mean()) ** 2).sum())
    return found | {"of_rows": float(gaps / num), "of_rows_error": float(error)}
