"""Internal confidence (I-conf): the length-normalised probability of an answer (paper, App. "Baseline Details")."""

import numpy as np
import pyarrow as pa

from curation.trust import Scores


class InternalConfidence:
    """Raw score: mean log-probability of the answer's tokens; trust: its exponential."""

    name = "internal_confidence"
    features = ("mean_logprob",)

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Mean natural-log probability of each answer, float32 [N]; NaN for an empty answer."""
        raw_N: Scores = labels.column("mean_logprob").to_numpy(zero_copy_only=False).astype(np.float32)
        return raw_N

    def to_trust(self, raw_N: Scores) -> Scores:
        """Geometric mean probability of raw scores, float32 [N]; rounding above a log-probability of 0 is cut off."""
        trust_N: Scores = np.exp(np.minimum(raw_N, np.float32(0)))
        return trust_N

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Geometric mean probability of the answer's tokens, float32 [N]."""
        return self.to_trust(self.raw_score(labels))
