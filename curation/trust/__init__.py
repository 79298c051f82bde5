"""Trust functions: how likely each weak label is right, judged without gold labels.

Each is one file with one class; the arm that selects by it is one line in ``curation.stages.select``. The neural one is
fitted first (``train.trust``) and then loaded from a ``TrustRef``.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Scores = npt.NDArray[np.float32]


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
