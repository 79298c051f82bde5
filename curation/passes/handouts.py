"""The rows of a model's dataset, as Ray Data reads them: from the desk, one by one, for as long as it has some."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from curation.passes.messages import Handout

CALLS = pa.schema([("index", pa.int64()), ("pass_id", pa.string())])
"""A row of the dataset: a call for a chunk of a pass."""


class Handouts(Datasource):
    """The work that a desk hands out."""

    def __init__(self, desk: object) -> None:
        self._desk = desk

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown."""
        return None

    def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[ReadTask]:
        """One task, which lasts as long as the dataset."""
        desk = self._desk
        facts = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(lambda: _blocks(desk), facts)]


def _blocks(desk: Any) -> Iterator[pa.Table]:
    index = 0
    while (handout := ray.get(desk.next.remote(index))) is not None:
        yield block(handout)
        index += 1


def block(handout: Handout) -> pa.Table:
    """Return a call as a row of ``CALLS``."""
    return pa.Table.from_pylist([{"index": handout.index, "pass_id": handout.pass_id}], schema=CALLS)
