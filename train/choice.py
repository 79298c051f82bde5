"""The choice between a whole stack and simpler functions, by cross-validation on the labelled rows."""

from collections.abc import Sequence
from typing import NamedTuple

from curation.arms import is_free
from curation.arrays import Bools, Float64s
from curation.json_types import Json
from curation.metrics import auc_difference, auc_value
from curation.metrics.estimates import NORMAL_QUANTILE
from curation.trust.stacked import Combination


class Candidate(NamedTuple):
    """A function that may be taken, with its out-of-fold scores."""

    name: str
    """``stacked``, ``fitted_confidence``, or a free signal."""
    combination: Combination
    raw_M: Float64s
    """The logits of the labelled rows that are used."""


def chosen(simpler: Sequence[Candidate], stacked: Candidate, correct_M: Bools, proof: float) -> tuple[Candidate, Json]:
    """The function that is taken, and why, as JSON.

    The whole stack, unless a simpler function is ahead of it in cross-validated AUC by more than ``proof`` standard
    errors of the paired difference (DeLong); then the one that is furthest ahead.
    """
    taken, most = stacked, 0.0
    found: list[Json] = []
    for candidate in simpler:
        ahead = auc_difference(candidate.raw_M, stacked.raw_M, correct_M)
        error = (ahead.high - ahead.low) / (2 * NORMAL_QUANTILE)
        auc = auc_value(candidate.raw_M, correct_M)
        found.append({"name": candidate.name, "auc": auc, "loses_by": -ahead.value, "standard_error": error})
        if ahead.value > proof * error and ahead.value > most:
            taken, most = candidate, ahead.value
    auc = auc_value(stacked.raw_M, correct_M)
    best = max((item for item in found if is_free(item["name"])), key=lambda item: item["auc"], default=None)
    rows = f"{len(correct_M):,} labelled rows"
    if taken is not stacked:
        reason = (
            f"trust is {taken.name} alone: in cross-validation on {rows} its AUC is {most:.3f} above that of "
            f"{stacked.name}, more than {proof:g} standard errors"
        )
    else:
        against = "" if best is None else f"; the best free signal, {best['name']}, has {best['auc']:.3f}"
        reason = f"trust is {stacked.name}: its AUC in cross-validation on {rows} is {auc:.3f}{against}"
    own = {"name": stacked.name, "auc": auc, "loses_by": 0.0, "standard_error": 0.0}
    return taken, {"taken": taken.name, "candidates": [*found, own], "reason": reason}
