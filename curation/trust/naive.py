"""Naive trust: a uniform draw per row, so that ranking by it selects at random (paper, App. "Baseline Details")."""

import numpy as np
import pyarrow as pa

from curation.hashing import hash_unit
from curation.trust import Scores


class Naive:
    """Trust is a seeded hash of the row id, uniform in [0, 1]; it does not depend on order, batch or machine."""

    name = "naive"
    features = ("row_id",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The draw of each row, float32 [N]."""
        return hash_unit(labels.column("row_id").to_numpy(), self.seed).astype(np.float32)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """The draw of each row, float32 [N]."""
        return self.raw_score(labels)
