"""Heuristic trust functions: closed forms and nulls."""

import numpy as np
import pyarrow as pa
from curation.trust.confidence import InternalConfidence

from curation.hashing import hash_unit
from curation.trust.naive import Naive


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_internal_confidence_is_the_geometric_mean_probability() -> None:
    labels = batch(mean_logprob=pa.array([0.0, np.log(0.25), None, 1e-7, -300.0], pa.float32()))
    raw_N, trust_N = InternalConfidence().raw_score(labels), InternalConfidence().score(labels)
    assert raw_N.dtype == trust_N.dtype == np.float32
    np.testing.assert_allclose(trust_N, [1, 0.25, np.nan, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(raw_N[[0, 1, 2, 4]], np.float32([0, np.log(0.25), np.nan, -300]))


def test_naive_depends_on_seed_and_row_alone() -> None:
    row_ids_N = np.arange(20_000) + (7 << 40)
    trust_N = Naive(3).score(batch(row_id=pa.array(row_ids_N)))
    order_N = np.random.default_rng(0).permutation(len(row_ids_N))
    np.testing.assert_array_equal(Naive(3).score(batch(row_id=pa.array(row_ids_N[order_N]))), trust_N[order_N])
    np.testing.assert_array_equal(trust_N, hash_unit(row_ids_N, 3).astype(np.float32))
    assert trust_N.dtype == np.float32 and trust_N.min() >= 0 and trust_N.max() <= 1
    assert abs(trust_N.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(trust_N, Naive(4).score(batch(row_id=pa.array(row_ids_N))))[0, 1]) < 0.03
