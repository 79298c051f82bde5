"""A signal and the table of its values: filled as rows are labelled, by the same model, or by a pass of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from curation import store, tables


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a signal is and where its values go; pickled to every actor."""

    signal: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the signal's class is constructed with."""
    seed: int
    """Of the model's answers."""
    uri: str
    """A table of ``tables.SIGNAL``."""

    def write(self, values: Mapping[int, float | None]) -> pa.Table:
        """Write the values, by row id, as a fragment; a row of ``store.WRITTEN``, none where there are no values."""
        if not values:
            return store.WRITTEN.empty_table()
        columns = [pa.array(list(values)), pa.array(list(values.values()), pa.float32()), pa.nulls(len(values))]
        table = pa.table(dict(zip(tables.SIGNAL.names, columns, strict=True))).cast(tables.SIGNAL)
        return store.write_fragment(table, self.uri, tables.SIGNAL)
