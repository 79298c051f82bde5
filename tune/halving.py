"""Successive halving: bad trials of a search end early, by the validation AUC of their networks.

A trial passes a rung, a share of its steps, if it is among the best 1 / eta of the trials that reached it. ASHA (Li et
al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020) compares it with those that have
reached the rung by then. Here trial k is compared only with trials 0 to k - ``ahead``, which all have ended when it
begins. So a trial's bar is known from the start, no process waits for another, and a search that was killed, or ran
with another number of trials at once, ends the same trials.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from curation.json_types import JsonView
from train.trust_loop import FitRecord

NUM_RUNGS = 3


def compute_rung_aucs(steps: Sequence[int], validation_aucs: Sequence[float], max_steps: int, eta: int) -> list[float]:
    """Return the best validation AUC up to each rung that a fit reached, the lowest rung first.

    The rungs are at ``max_steps`` / eta ** 3, / eta ** 2 and / eta steps; a fit reaches one at its first evaluation
    there or later.
    """
    found = []
    for power in range(NUM_RUNGS, 0, -1):
        reached = [place for place, step in enumerate(steps) if step >= max_steps / eta**power]
        if not reached:
            break
        found.append(max(validation_aucs[: reached[0] + 1]))
    return found


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The validation AUCs that a trial has to reach to go on."""

    eta: int
    aucs: Sequence[float | None]
    """The least AUC at each rung, the lowest rung first; ``None`` accepts any AUC."""

    def ends(self, record: FitRecord, max_steps: int) -> bool:
        """Return whether a fit with this record is below the bar."""
        reached = compute_rung_aucs(record.steps, record.validation_aucs, max_steps, self.eta)
        return any(bar is not None and auc < bar for auc, bar in zip(reached, self.aucs, strict=False))


class Halving:
    """The bars of a search's trials, from the rungs of earlier trials."""

    def __init__(self, eta: int, ahead: int) -> None:
        self._eta, self._ahead = eta, ahead
        self._rungs: dict[int, Sequence[float]] = {}

    def tell(self, number: int, fit: JsonView | None) -> None:
        """Record a trial's rungs (the key ``rungs`` of its fit's record); none if it failed or has no network."""
        self._rungs[number] = () if fit is None else fit.get("rungs", ())

    def bar(self, number: int) -> Bar | None:
        """Return the bar of a trial, or ``None`` if earlier trials have to end first."""
        earlier = range(number - self._ahead + 1)
        if any(other not in self._rungs for other in earlier):
            return None
        aucs: list[float | None] = []
        for rung in range(NUM_RUNGS):
            reached = [self._rungs[other][rung] for other in earlier if len(self._rungs[other]) > rung]
            reached.sort(reverse=True)
            aucs.append(reached[math.ceil(len(reached) / self._eta) - 1] if len(reached) >= self._eta else None)
        return Bar(eta=self._eta, aucs=aucs)
