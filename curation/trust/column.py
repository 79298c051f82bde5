"""Trust functions that read columns of the labels table.

A heuristic (the paper's App. "Baseline Details", or ours) reads one column; a fitted trust function reads the two that
hold its raw score and its trust. The pass or the signal that fills a column documents the column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from curation.arms import Unit
from curation.errors import SourceError
from curation.hashing import hash_unit
from curation.tables.schemas import get_raw_column, trust_column
from curation.trust import Scores

UNREAD = np.finfo(np.float32).min
"""The raw score that ranks a row without a value last; finite, because such a row may be selected."""


@dataclass(frozen=True, kw_only=True)
class ColumnTrust:
    """A trust function with a column as raw score; trust is a non-decreasing function of it or, if fitted, a column."""

    name: str
    column: str
    trust: Unit | None
    """The scale of the column; ``None`` for a fitted function, whose trust is in the column ``trust_column(name)``."""
    unread_last: bool = False
    """Whether rows without a value rank last, with a trust of 0, instead of being left out."""

    @classmethod
    def fitted(cls, name: str) -> Self:
        """Return a fitted trust function that reads its own scores from the labels table."""
        return cls(name=name, column=get_raw_column(name), trust=None)

    @property
    def features(self) -> tuple[str, ...]:
        """The column of the raw score and, for a fitted function, the column of its trust."""
        return (self.column,) if self.trust is not None else (self.column, trust_column(self.name))

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the column's values, float32 [N]; a null becomes ``UNREAD`` with ``unread_last``, else NaN."""
        values_N = self._read(labels, self.column)
        return np.where(np.isnan(values_N), UNREAD, values_N) if self.unread_last else values_N

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the trust in [0, 1] of each row, float32 [N]; a null becomes 0 with ``unread_last``, else NaN."""
        if self.trust is None:
            return self._read(labels, trust_column(self.name))
        with np.errstate(over="ignore"):
            return TO_UNIT[self.trust](self.raw_score(labels))

    def _read(self, labels: pa.RecordBatch, column: str) -> Scores:
        """Return a column's values; raise ``SourceError`` if it is missing."""
        if column not in labels.schema.names:
            raise SourceError(f"labels: column {column} is missing; label with the arm {self.name} selected")
        values_N: Scores = labels.column(column).to_numpy(zero_copy_only=False).astype(np.float32)
        return values_N


TO_UNIT: dict[Unit, Callable[[Scores], Scores]] = {
    # rounding may put shares outside [0, 1], and log-probabilities above 0
    "share": lambda raw_N: np.clip(raw_N, np.float32(0), np.float32(1)),
    "logprob": lambda raw_N: np.exp(np.minimum(raw_N, np.float32(0))),
    "logit": lambda raw_N: np.reciprocal(1 + np.exp(-raw_N)),
    # one over the number of equally likely words or options that would be as unsure
    "negentropy": lambda raw_N: np.exp(np.minimum(raw_N, np.float32(0))),
}
"""Functions that convert a column's values to trust, by the column's scale."""


class Naive:
    """A uniform draw, by row id alone: trust is a seeded hash in [0, 1], so that ranking by it selects at random."""

    name = "naive"
    features = ("row_id",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the draw of each row, float32 [N]."""
        return hash_unit(labels.column("row_id").to_numpy(), self.seed).astype(np.float32)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the draw of each row, float32 [N]."""
        return self.raw_score(labels)
