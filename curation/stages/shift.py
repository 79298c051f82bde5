"""The shift stage: tests whether inputs of trust (hidden states, or numbers) differ between pool and other splits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Float32s
from curation.json_types import Json
from curation.metrics.shift import sampled, two_sample
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.tables import io
from curation.tables.schemas import input_column


class MeasureShift(Stage):
    """Tests how the teacher's hidden states of the pool differ from those of other splits."""

    class Made(NamedTuple):
        """The outputs."""

        shift: Json
        """:func:`measure_shift` by split."""

    pool: In[TableRef]
    compared: InEach[TableRef]
    """The other splits' labels."""
    states: list[str]
    seed: int
    revision: int = 2  # it counts foreign rows, too

    def run(self, task: Task) -> Done:
        """Test each split against the pool."""
        found = {
            split: measure_shift(ref, self.pool, self.states, seed=self.seed) for split, ref in self.compared.items()
        }
        return Done(outputs=self.Made(shift=found), rows=io.count(self.pool))


def measure_shift(split: TableRef, pool: TableRef, states: Sequence[str], *, seed: int) -> Json:
    """The two-sample test of ``curation.metrics.shift`` on a seeded sample of rows labelled without error, as JSON."""
    sides = [np.concatenate(list(sample_states(ref, states, seed).values()), axis=1) for ref in (split, pool)]
    schema = io.open_table(pool).schema
    numbers = [state for state in states if not pa.types.is_nested(schema.field(input_column(state)).type)]
    inputs = f"numbers that came with the labels ({', '.join(numbers)})" if numbers else "hidden states"
    return replace(two_sample(*sides, seed=seed), inputs=inputs).to_json()


def sample_states(ref: TableRef, states: Sequence[str], seed: int) -> dict[str, Float32s]:
    """The states of the sampled rows that have all of them, by name, each float32 [N, D], ascending by row id."""
    return states_in(sample_rows(ref, states, seed), states)


def sample_rows(ref: TableRef, states: Sequence[str], seed: int, further: Sequence[str] = ()) -> pa.Table:
    """The sampled rows that have all of these states, ascending by row id: their states and ``further`` columns."""
    columns = [input_column(state) for state in states]
    table = io.open_table(ref)
    num_rows, start = table.count_rows(), 0
    offsets, ids = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for batch in table.scanner(columns=["row_id"], scan_in_order=True).to_batches():
        ids_N = batch.column("row_id").to_numpy()
        taken_M = np.flatnonzero(sampled(ids_N, num_rows, seed))
        offsets.append(start + taken_M)
        ids.append(ids_N[taken_M])
        start += batch.num_rows
    order_M = np.argsort(np.concatenate(ids))  # a table's rows stand in the order in which they were labelled
    taken = table.take(np.concatenate(offsets)[order_M], columns=list(dict.fromkeys([*columns, *further])))
    for column in columns:
        taken = taken.filter(taken[column].is_valid())
    return taken


def states_in(rows: pa.Table, states: Sequence[str]) -> dict[str, Float32s]:
    """The states of rows, by name, each float32 [N, D]; of a column of numbers D is 1."""
    return {state: _matrix(rows[input_column(state)].combine_chunks()) for state in states}


def _matrix(states: pa.Array) -> Float32s:
    """Lists of one size, fixed or not, or numbers, as float32 [N, D]."""
    if not pa.types.is_nested(states.type):
        numbers_N1: Float32s = states.to_numpy(zero_copy_only=False).astype(np.float32)[:, None]
        return numbers_N1
    size = len(states[0]) if len(states) else 1
    values = states.flatten().to_numpy(zero_copy_only=False)
    hidden_ND: Float32s = values.astype(np.float32).reshape(-1, size)
    return hidden_ND
