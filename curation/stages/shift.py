"""The shift stage: whether the teacher's hidden states of the pool differ from those of another split."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from curation import store
from curation.refs import TableRef
from curation.shift import MAX_ROWS, two_sample
from curation.tables import state_column
from curation.trust.neural import read_states


def measure_shift(split: TableRef, pool: TableRef, states: Sequence[str], *, seed: int) -> dict[str, Any]:
    """The two-sample test of ``curation.shift`` on a seeded sample of rows labelled without error, as JSON."""
    columns = [state_column(state) for state in states]
    return two_sample(_sample(split, columns, seed), _sample(pool, columns, seed + 1), seed=seed).to_json()


def _sample(ref: TableRef, columns: Sequence[str], seed: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The states of at most ``MAX_ROWS`` rows, columns side by side, float32 [N, D]."""
    table = store.open_table(ref)
    num_rows = table.count_rows()
    chosen = np.random.default_rng(seed).choice(num_rows, size=min(num_rows, MAX_ROWS), replace=False)
    taken = table.take(np.sort(chosen), columns=[*columns, "error"]).combine_chunks()
    if not taken.num_rows:
        return np.zeros((0, 1), dtype=np.float32)
    found = read_states(taken.to_batches()[0], columns)
    hidden_ND = np.concatenate([column.numpy().astype(np.float32) for column in found.columns], axis=1)
    sampled: np.ndarray[Any, np.dtype[np.float32]] = hidden_ND[~found.missing_N]
    return sampled
