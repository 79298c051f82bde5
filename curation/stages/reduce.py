"""Reduction of hidden states in the labelling actor if not all of them are stored (``teacher.store_states``).

The input is the states as they would be stored, so that the result equals that of a later stage on stored states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from curation.metrics.shift import mark_sampled
from curation.refs import ProjectionRef, TableRef, TrustRef
from curation.stages.score import compute_score_columns, score_fields
from curation.tables import io, schemas


class Reduction(Protocol):
    """A function from labels with all states to labels with fewer states; pickled to every actor."""

    def schema(self, labels: pa.Schema) -> pa.Schema:
        """Return the schema of the reduced labels."""

    def reduce(self, labels: pa.RecordBatch) -> pa.RecordBatch:
        """Return the reduced labels, row by row."""


@dataclass(frozen=True, kw_only=True)
class Projected:
    """A reduction that stores the projection of the states, which the score stage reads."""

    projection: ProjectionRef

    def schema(self, labels: pa.Schema) -> pa.Schema:
        """Return the schema of labels with the projection in place of the states."""
        from curation.trust.pca import load_projection

        return schemas.make_projected_schema(labels, load_projection(self.projection).size)

    def reduce(self, labels: pa.RecordBatch) -> pa.RecordBatch:
        """Return the labels with the projection instead of their states."""
        from curation.trust.pca import load_projection

        column = schemas.get_state_column("pca")
        found = {column: load_projection(self.projection).project(labels)}
        schema = self.schema(labels.schema)
        return pa.record_batch([found[name] if name in found else labels.column(name) for name in schema.names], schema)


@dataclass(frozen=True, kw_only=True)
class ScoredOnly:
    """A reduction that stores scores of fitted trust functions, and the states of rows that the shift stage samples."""

    fitted: tuple[tuple[str, TrustRef], ...]
    """The trust functions by name."""
    states: tuple[str, ...]
    """The states to keep for the sample."""
    num_rows: int
    """The number of rows of the split from which the sample is drawn."""
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
    projection: ProjectionRef | None,
    fitted: Mapping[str, TrustRef],
    sample: Mapping[str, Any] | None,
    rows: TableRef,
    shares: int = 1,
) -> Reduction | None:
    """Return the reduction that a stage's arguments ask for, or None if all states are stored.

    Args:
        projection: projection that takes the place of the states.
        fitted: trust functions by name, whose scores take the place of the states.
        sample: with ``fitted``, the ``states`` and the ``seed`` of the sample of rows that keep states.
        rows: the table that the sample is drawn from.
        shares: number of parts of ``rows``, of which the stage works on one.
    """
    if projection is not None:
        return Projected(projection=projection)
    if sample is None:
        return None
    return ScoredOnly(
        fitted=tuple(fitted.items()),
        states=tuple(sample["states"]),
        num_rows=io.count(rows) // shares,
        seed=sample["seed"],
    )
