"""Reduction of hidden states: their projection by PCA, a stage, and in the labelling actor (``teacher.store_states``).

The input is the states as they would be stored, so that the result equals that of a later stage on stored states.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.config import TrustConfig
from curation.config.trust import ROW_KEYS
from curation.json_types import Json
from curation.metrics.shift import mark_sampled
from curation.refs import ProjectionRef, TableRef, TrustRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stages.score import compute_score_columns, score_fields
from curation.stopping import iter_checked
from curation.storage.inside import run_around, to_record
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.tables.columns import add_columns
from curation.trust.parts import FIT, assign_parts, make_candidates_filter

if TYPE_CHECKING:
    from curation.trust.states import States


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


Reduction = Projected | ScoredOnly
"""A function from labels with all states to labels with fewer states, row by row; pickled to every actor."""


def make_reduction(
    projection: ProjectionRef | None,
    fitted: Mapping[str, TrustRef],
    sample: Mapping[str, Any] | None,
    rows: TableRef,
    shares: int = 1,
) -> Reduction | None:
    """Return the reduction that a stage's arguments ask for, or None if all states are stored.

    ``sample``: states to keep, and seed of a sample of ``rows``, of which the stage has one of ``shares`` parts.
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


class Project(Stage):
    """A stage that fits principal components of the labels' hidden states, and adds the projection as a column."""

    class Made(NamedTuple):
        labels: TableRef
        """The labels with the projection of their states as a column."""
        projection: ProjectionRef
        fit: Json
        """``size``, ``variance_kept`` and ``num_rows``."""

    labels: In[TableRef]
    size: int
    trust: TrustConfig
    seed: int

    def run(self, task: Task) -> Done:
        """Fit the projection, and add it to the labels."""
        from curation.trust.pca import load_projection  # heavy

        ref = fit_pca(self.labels, self.trust, size=self.size, seed=self.seed, output=task.directory / "pca")
        fit = {"size": self.size, **{key: load_projection(ref).fit[key] for key in ("variance_kept", "num_rows")}}
        task.say(f"{self.size} components keep {fit['variance_kept']:.1%} of the variance")
        projected = add_projection(self.labels, ref, guard=task.guard)
        return Done(outputs=self.Made(labels=projected, projection=ref, fit=fit), rows=io.count(self.labels))


def fit_pca(labels: TableRef, config: TrustConfig, *, size: int, seed: int, output: Place) -> ProjectionRef:
    """Fit a projection on the rows that the trust function is fitted on, graded or not, and save it to ``output``."""
    from curation.trust.pca import fit_projection  # heavy
    from curation.trust.states import read_states

    columns = [schemas.get_state_column(state) for state in config.states]

    def batches() -> Iterator["States"]:
        scanner = io.open_table(labels).scanner(columns=["row_id", *columns], filter=make_candidates_filter(config))
        for batch in iter_checked(scanner.to_batches()):
            fitted_N = assign_parts(batch.column("row_id").to_numpy(), config, seed) == FIT
            yield read_states(batch.filter(pa.array(fitted_N)), columns)

    settings = config.model_dump(mode="json", include=set(ROW_KEYS))
    origin = {"labels": to_record(labels.to_json(), run_around(output)), "seed": seed, **settings}
    return fit_projection(batches(), size=size, states=config.states, origin=origin).save(output)


def add_projection(labels: TableRef, ref: ProjectionRef, *, guard: Guard = guard_nothing) -> TableRef:
    """Return a version of the labels table with the projection of its states as a further column."""
    from curation.trust.pca import load_projection  # heavy

    projection = load_projection(ref)
    value = io.open_table(labels).schema.field(projection.features[0]).type.value_type
    added = pa.schema([pa.field(schemas.get_state_column("pca"), pa.list_(value, projection.size))])

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([load_projection(ref).project(batch)], schema=added)

    return add_columns(labels, projection.features, added, compute, guard=guard)
