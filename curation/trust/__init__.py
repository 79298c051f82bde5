"""Trust functions: how likely each weak label is right, judged without gold labels.

A heuristic is one file with one class and one line in ``HEURISTICS``. The neural trust function stands apart, since it
is fitted first (``train.trust``) and then loaded from a ``TrustRef``.
"""

import importlib
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.errors import ConfigError

Scores = npt.NDArray[np.float32]

HEURISTICS = {
    "internal_confidence": "curation.trust.confidence:InternalConfidence",
    "naive": "curation.trust.naive:Naive",
}


class TrustFunction(Protocol):
    """A trust function tau (paper, section "Trust Functions"); larger is more reliable.

    Rows with ``error`` set or an unparsed label are the caller's business; a row whose features are null scores NaN.
    """

    name: str

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the labels table that it reads."""
        ...

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """What rows are ranked by, on any scale that grows with trust, float32 [N]."""
        ...

    def to_trust(self, raw_N: Scores) -> Scores:
        """Trust in [0, 1] of raw scores, float32 [N]."""
        ...

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Trust in [0, 1] of each row, float32 [N]."""
        ...


def get_heuristic(name: str) -> Callable[..., TrustFunction]:
    """The class of the heuristic registered as ``name``.

    Raises:
        ConfigError: no such name.
    """
    if name not in HEURISTICS:
        raise ConfigError(f"trust function: {name!r} is not one of {', '.join(sorted(HEURISTICS))}")
    module_name, _, class_name = HEURISTICS[name].partition(":")
    module: Any = importlib.import_module(module_name)
    return cast(Callable[..., TrustFunction], getattr(module, class_name))
