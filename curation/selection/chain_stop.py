"""Whether a chain goes on after a generation: decided from plain numbers, without gold labels of the pool."""

import math
from dataclasses import dataclass

from curation.arms import REFERENCE_ARM
from curation.config.chain import StopConfig
from curation.json_types import Json
from curation.metrics import Estimate


@dataclass(frozen=True, kw_only=True)
class Signs:
    """Signs of a generation's trust function."""

    function: str
    """The trust function, by its name in ``curation.arms.TRUST``."""
    auc: Estimate
    """On parsed validation rows of the source; NaN where all labels are right or all wrong."""
    certified: float | None
    """The share of the generation's labelled pool rows that a risk rule certifies; ``None`` where none was asked."""
    compared: str
    """The split that the pool is compared with."""
    shift: Json
    """``curation.metrics.shift.Shift`` between that split and the pool, as JSON."""


def reasons_to_stop(signs: Signs, stop: StopConfig) -> list[str]:
    """Why the chain is to stop, a clause each; none: it goes on."""
    found = []
    if not signs.auc.low > stop.min_auc:  # also of NaN
        shown = "has no AUC" if math.isnan(signs.auc.value) else f"has an AUC of {_interval(signs.auc)}"
        function = "trust" if signs.function == REFERENCE_ARM else f"{signs.function} trust"
        found.append(
            f"{function} {shown} on {signs.auc.n:,} parsed validation rows, which is not shown to be above "
            f"chain.stop.min_auc {stop.min_auc:g}"
        )
    if signs.certified is not None and not signs.certified > stop.min_certified:
        found.append(
            f"{100 * signs.certified:.1f} % of the pool's labels are certified, not more than "
            f"chain.stop.min_certified {stop.min_certified:g}"
        )
    auc = signs.shift["auc"]
    if auc["low"] is not None and auc["low"] > stop.max_shift:  # null: too few rows for a test
        found.append(
            f"a classifier tells the pool's hidden states from those of the {signs.compared} rows with an AUC of "
            f"{_interval(Estimate(**auc))}, above chain.stop.max_shift {stop.max_shift:g}"
        )
    return found


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
