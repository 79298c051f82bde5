"""Pairs of a prompt and a completion as a table to train on."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from curation.refs import TableRef
from curation.tables import io
from train.tokens import Pair


def write_pairs(pairs: Sequence[Pair], path: Path) -> TableRef:
    """Write pairs as a table, with their numbers as row ids."""
    rows = [{"row_id": number, **pair._asdict()} for number, pair in enumerate(pairs)]
    schema = pa.schema([("row_id", pa.int64()), ("prompt", pa.string()), ("completion", pa.string())])
    return io.write(pa.Table.from_pylist(rows, schema=schema), str(path))
