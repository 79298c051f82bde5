"""The shift stage: tests whether the teacher's hidden states of the pool differ from those of another split."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curation import store
from curation.refs import TableRef
from curation.shift import sampled, two_sample
from curation.tables import state_column


def measure_shift(split: TableRef, pool: TableRef, states: Sequence[str], *, seed: int) -> dict[str, Any]:
    """The two-sample test of ``curation.shift`` on a seeded sample of rows labelled without error, as JSON."""
    columns = [state_column(state) for state in states]
    return two_sample(_sample(split, columns, seed), _sample(pool, columns, seed), seed=seed).to_json()


def _sample(ref: TableRef, columns: Sequence[str], seed: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The states of the sampled rows that have all of them, concatenated, float32 [N, D]."""
    table = store.open_table(ref)
    num_rows, start = table.count_rows(), 0
    offsets = [np.zeros(0, dtype=np.int64)]
    for batch in table.scanner(columns=["row_id"], scan_in_order=True).to_batches():
        offsets.append(start + np.flatnonzero(sampled(batch.column("row_id").to_numpy(), num_rows, seed)))
        start += batch.num_rows
    taken = table.take(np.concatenate(offsets), columns=list(columns)).drop_null()
    parts = [_matrix(taken[name].combine_chunks()) for name in columns]
    hidden_ND: np.ndarray[Any, np.dtype[np.float32]] = np.concatenate(parts, axis=1)
    return hidden_ND


def _matrix(states: pa.Array) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Lists of one size, fixed or not, as float32 [N, D]."""
    size = len(states[0]) if len(states) else 1
    values = states.flatten().to_numpy(zero_copy_only=False)
    hidden_ND: np.ndarray[Any, np.dtype[np.float32]] = values.astype(np.float32).reshape(-1, size)
    return hidden_ND
