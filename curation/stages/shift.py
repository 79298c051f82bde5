"""The shift stage: tests whether the teacher's hidden states of the pool differ from those of another split."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.metrics.shift import CLEAR_AUC, sampled, two_sample
from curation.refs import TableRef
from curation.tables import io
from curation.tables.schemas import state_column


def measure_shift(split: TableRef, pool: TableRef, states: Sequence[str], *, seed: int) -> dict[str, Any]:
    """The two-sample test of ``curation.metrics.shift`` on a seeded sample of rows labelled without error, as JSON."""
    columns = [state_column(state) for state in states]
    return two_sample(_sample(split, columns, seed), _sample(pool, columns, seed), seed=seed).to_json()


def measure_against(
    reference: Mapping[str, npt.NDArray[np.floating[Any]]], pool: TableRef, *, seed: int
) -> dict[str, Any]:
    """The same test against states that are kept elsewhere, [N, D] by state; ``alarm``: the pool differs clearly.

    An alarm takes an AUC whose whole interval is above ``CLEAR_AUC``: tests that are repeated for each delivery of rows
    would otherwise raise one in twenty by chance.
    """
    reference_ND = np.concatenate(list(reference.values()), axis=1)
    found = two_sample(reference_ND, _sample(pool, [state_column(state) for state in reference], seed), seed=seed)
    return {**found.to_json(), "alarm": bool(found.differs and found.auc.low > CLEAR_AUC)}


def _sample(ref: TableRef, columns: Sequence[str], seed: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The states of the sampled rows that have all of them, concatenated, float32 [N, D]."""
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
    taken = table.take(np.concatenate(offsets)[order_M], columns=list(columns)).drop_null()
    parts = [_matrix(taken[name].combine_chunks()) for name in columns]
    hidden_ND: np.ndarray[Any, np.dtype[np.float32]] = np.concatenate(parts, axis=1)
    return hidden_ND


def _matrix(states: pa.Array) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Lists of one size, fixed or not, as float32 [N, D]."""
    size = len(states[0]) if len(states) else 1
    values = states.flatten().to_numpy(zero_copy_only=False)
    hidden_ND: np.ndarray[Any, np.dtype[np.float32]] = values.astype(np.float32).reshape(-1, size)
    return hidden_ND
