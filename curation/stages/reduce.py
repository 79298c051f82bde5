"""Scores in place of hidden states, computed in the labelling actor (``teacher.store_states: false``).

The input is the states as they would be stored, so that the result equals that of a later stage on stored states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curation.metrics.shift import mark_sampled
from curation.refs import TableRef, TrustRef
from curation.stages.score import compute_score_columns, score_fields
from curation.tables import io, schemas


@dataclass(frozen=True, kw_only=True)
class ScoredOnly:
    """A function from labels with all states to scores of fitted trust functions, and states of sampled rows alone.

    The shift stage reads the sample. The function is pickled to every actor.
    """

    fitted: tuple[tuple[str, TrustRef], ...]
    states: tuple[str, ...]
    num_rows: int
    seed: int

    def schema(self, labels: pa.Schema) -> pa.Schema:
        """Return the schema ``schemas.make_kept_schema``, followed by the scores."""
        return pa.schema([*schemas.make_kept_schema(labels, self.states), *score_fields(dict(self.fitted))])

    def reduce(self, labels: pa.RecordBatch) -> pa.RecordBatch:
        """Return the labels with their scores, and states only of sampled rows."""
        left_out_N = ~mark_sampled(labels.column("row_id").to_numpy(), self.num_rows, self.seed)
        places = pa.array(np.arange(labels.num_rows), mask=left_out_N)  # a null takes a null
        schema = self.schema(labels.schema)
        columns = dict(zip(labels.schema.names, labels.columns, strict=True)) | compute_score_columns(
            labels, dict(self.fitted)
        )
        for name in filter(schemas.is_state, schema.names):
            columns[name] = columns[name].cast(schema.field(name).type).take(places)
        return pa.record_batch([columns[name] for name in schema.names], schema)


def make_reduction(
    fitted: Mapping[str, TrustRef], sample: Mapping[str, Any] | None, rows: TableRef, shares: int = 1
) -> ScoredOnly | None:
    """Return the reduction that a stage's arguments ask for, or None if all states are stored.

    ``sample``: states to keep, and seed of a sample of ``rows``, of which the stage has one of ``shares`` parts.
    """
    if sample is None:
        return None
    states, num_rows = tuple(sample["states"]), io.count(rows) // shares
    return ScoredOnly(fitted=tuple(fitted.items()), states=states, num_rows=num_rows, seed=sample["seed"])
