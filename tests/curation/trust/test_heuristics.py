"""The uniform draw; the heuristics that read a column are in test_column."""

import numpy as np
import pyarrow as pa

from curation.hashing import hash_unit
from curation.trust import Naive


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_naive_depends_on_seed_and_row_alone() -> None:
    row_ids_N = np.arange(20_000) + (7 << 40)
    trust_N = Naive(3).score(batch(row_id=pa.array(row_ids_N)))
    order_N = np.random.default_rng(0).permutation(len(row_ids_N))
    np.testing.assert_array_equal(Naive(3).score(batch(row_id=pa.array(row_ids_N[order_N]))), trust_N[order_N])
    np.testing.assert_array_equal(trust_N, hash_unit(row_ids_N, 3).astype(np.float32))
    assert trust_N.dtype == np.float32 and trust_N.min() >= 0 and trust_N.max() <= 1
    assert abs(trust_N.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(trust_N, Naive(4).score(batch(row_id=pa.array(row_ids_N))))[0, 1]) < 0.03
