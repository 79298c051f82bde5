"""Trust read from one column of the labels table: the heuristics of the paper's App. "Baseline Details" and ours.

Each is one line of ``COLUMN_TRUST``; what a column holds is documented by the pass or the signal that fills it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from curation.errors import SourceError
from curation.tables import raw_column
from curation.trust import FITTED, Scores


@dataclass(frozen=True, kw_only=True)
class ColumnTrust:
    """Raw score: the column itself; trust: a function of it that never falls as it grows."""

    name: str
    column: str
    to_unit: Callable[[Scores], Scores]
    """Raw scores to [0, 1], NaN to NaN."""

    @property
    def features(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The column's values, float32 [N]; NaN for a null.

        Raises:
            SourceError: the column is missing.
        """
        if self.column not in labels.schema.names:
            raise SourceError(f"labels: column {self.column} is missing; label with the arm {self.name} selected")
        raw_N: Scores = labels.column(self.column).to_numpy(zero_copy_only=False).astype(np.float32)
        return raw_N

    def to_trust(self, raw_N: Scores) -> Scores:
        """Trust in [0, 1] of raw scores, float32 [N]."""
        return self.to_unit(raw_N)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Trust in [0, 1] of each row, float32 [N]; NaN for a null."""
        return self.to_trust(self.raw_score(labels))


def of_share(raw_N: Scores) -> Scores:
    """A share is its own trust; what rounding put outside [0, 1] is cut off."""
    return np.clip(raw_N, np.float32(0), np.float32(1))


def of_logprob(raw_N: Scores) -> Scores:
    """The (geometric mean) probability; rounding above a log-probability of 0 is cut off."""
    trust_N: Scores = np.exp(np.minimum(raw_N, np.float32(0)))
    return trust_N


def of_logit(raw_N: Scores) -> Scores:
    """The sigmoid."""
    with np.errstate(over="ignore"):
        trust_N: Scores = np.reciprocal(1 + np.exp(-raw_N))
    return trust_N


COLUMN_TRUST = {
    trust.name: trust
    for trust in (
        ColumnTrust(name="internal_confidence", column="mean_logprob", to_unit=of_logprob),
        ColumnTrust(name="icl_confidence", column="icl_mean_logprob", to_unit=of_logprob),
        ColumnTrust(name="verbalized_confidence", column="verbalized_confidence", to_unit=of_share),
        ColumnTrust(name="ensemble", column="ensemble_agreement", to_unit=of_share),
        ColumnTrust(name="self_consistency", column="self_consistency", to_unit=of_share),
        ColumnTrust(name="reward", column="reward", to_unit=of_logit),
        *(ColumnTrust(name=name, column=raw_column(name), to_unit=of_logit) for name in FITTED),
    )
}
"""By the name that ``curation.arms`` gives."""
