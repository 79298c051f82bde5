"""The score stage: trust scores of every labelled row, as two more columns of the labels table."""

from functools import lru_cache

import numpy as np
import pyarrow as pa

from curation import store, tables
from curation.refs import TableRef, TrustRef
from curation.trust.neural import NeuralTrust

ADDED = pa.schema([tables.RAW_SCORE, tables.TRUST])


def score(labels: TableRef, trust: TrustRef) -> TableRef:
    """A version of the labels table with ``raw_score`` and ``trust``; both null where the row has no hidden state."""
    features = list(NeuralTrust.load(trust).features)

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        function = _loaded(trust)
        raw_N = function.raw_score(batch)
        trust_N = function.to_trust(raw_N)
        missing = pa.array(np.isnan(raw_N))
        return pa.record_batch(
            [
                pa.array(values, pa.float32(), mask=missing.to_numpy(zero_copy_only=False))
                for values in (raw_N, trust_N)
            ],
            schema=ADDED,
        )

    return store.add_columns(labels, features, ADDED, compute)


@lru_cache(maxsize=2)
def _loaded(trust: TrustRef) -> NeuralTrust:
    """One load a worker process, not one a batch."""
    return NeuralTrust.load(trust)
