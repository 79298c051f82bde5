"""The score stage, which writes scores of trust functions, and signals, as columns of the labels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.metrics.shift import mark_sampled
from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.storage.lease import Guard, guard_nothing
from curation.tables import io, schemas
from curation.tables.columns import add_columns
from curation.trust import Scores, load_fitted

if TYPE_CHECKING:
    from curation.trust.states import StateTrust


class Score(Stage):
    """A stage that adds the scores of fitted trust functions, and signals, to every row of a split's labels."""

    class Made(NamedTuple):
        labels: TableRef

    labels: In[TableRef]
    fitted: InEach[TrustRef]
    signals: InEach[TableRef]
    of_source: bool
    """Whether rows are of the source split and get held-out scores, by weights that were not fitted on them."""

    def run(self, task: Task) -> Done:
        """Score the rows."""
        scored = score(self.labels, self.fitted, self.signals, of_source=self.of_source, guard=task.guard)
        return Done(outputs=self.Made(labels=scored), rows=io.count(scored))


def score(
    labels: TableRef,
    fitted: Mapping[str, TrustRef],
    signals: Mapping[str, TableRef],
    *,
    of_source: bool = False,
    guard: Guard = guard_nothing,
) -> TableRef:
    """Return a version of the labels table with two columns per fitted trust function and one per signal, by name.

    A score is null if the row has no hidden state; a signal is null if it could not be read. With ``of_source``, a row
    that a function was fitted on has its held-out score, or null. ``fitted`` is empty if the labels already have their
    scores. If there is nothing to add, the labels are returned unchanged.
    """
    added = pa.schema([*score_fields(fitted), *(pa.field(name, pa.float32()) for name in signals)])
    if not len(added):
        return labels
    features = {feature for ref in fitted.values() for feature in _load_function(ref).features}

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        row_ids_N = batch.column("row_id").to_numpy()
        looked_up = [_to_nullable(_find_values(ref, row_ids_N)) for ref in signals.values()]
        scores = compute_score_columns(batch, fitted, of_source=of_source)
        return pa.record_batch([*scores.values(), *looked_up], schema=added)

    return add_columns(labels, ["row_id", *sorted(features)], added, compute, guard=guard)


def score_fields(names: Iterable[str]) -> list[pa.Field]:
    """Return the two columns of each fitted trust function: raw score and trust."""
    columns = schemas.get_raw_column, schemas.trust_column
    return [pa.field(column(name), pa.float32()) for name in names for column in columns]


def compute_score_columns(
    labels: pa.RecordBatch, fitted: Mapping[str, TrustRef], *, of_source: bool = False
) -> dict[str, pa.Array]:
    """Return the scores of labels by column, ordered as :func:`score_fields`; ``of_source`` as in :func:`score`."""
    columns = {}
    for name, ref in fitted.items():
        function = _load_function(ref)
        raw_N = (function.source_score if of_source else function.raw_score)(labels)
        columns[schemas.get_raw_column(name)] = _to_nullable(raw_N)
        columns[schemas.trust_column(name)] = _to_nullable(function.to_trust(raw_N))
    return columns


def _to_nullable(values_N: Scores) -> pa.Array:
    return pa.array(values_N, mask=np.isnan(values_N))


@lru_cache(maxsize=4)
def _load_function(ref: TrustRef) -> "StateTrust":
    return load_fitted(ref)


def _find_values(signal: TableRef, row_ids_N: Int64s) -> Scores:
    """Return the signal's value of each row, float32 [N]; NaN if it has none.

    Both tables are roughly in the order of the pool, so that neighbouring rows need few fragments of the signal.
    """
    found_N = np.full(len(row_ids_N), np.nan, dtype=np.float32)
    for place, (low, high) in enumerate(_read_ranges(signal)):
        if low <= row_ids_N.max(initial=-1) and row_ids_N.min(initial=high + 1) <= high:
            ids_M, values_M = _read_values(signal, place)
            place_N = np.minimum(np.searchsorted(ids_M, row_ids_N), len(ids_M) - 1)
            hit_N = ids_M[place_N] == row_ids_N
            found_N[hit_N] = values_M[place_N[hit_N]]
    return found_N


@lru_cache(maxsize=8)
def _read_ranges(signal: TableRef) -> list[tuple[int, int]]:
    """Return the smallest and the largest row id of each fragment."""
    found = []
    for fragment in io.open_table(signal).get_fragments():
        ids_M = fragment.to_table(columns=["row_id"])["row_id"].to_numpy()
        found.append((int(ids_M.min()), int(ids_M.max())))
    return found


@lru_cache(maxsize=8)
def _read_values(signal: TableRef, place: int) -> tuple[Int64s, Scores]:
    """Return the ids of a fragment, ascending, and their values, which take 12 bytes per row."""
    table = io.open_table(signal).get_fragments()[place].to_table(columns=["row_id", "value"]).sort_by("row_id")
    return table["row_id"].to_numpy(), table["value"].to_numpy().astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class ScoredOnly:
    """A reduction of labels with all states to scores of fitted trust functions, and states of sampled rows only.

    The shift stage reads the sample. The reduction is pickled to every actor.
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
    """Return the reduction that a stage's arguments request, or None if all states are stored.

    ``sample``: states to keep, and seed of a sample of ``rows``, of which the stage has one of ``shares`` parts.
    """
    if sample is None:
        return None
    states, num_rows = tuple(sample["states"]), io.count(rows) // shares
    return ScoredOnly(fitted=tuple(fitted.items()), states=states, num_rows=num_rows, seed=sample["seed"])
