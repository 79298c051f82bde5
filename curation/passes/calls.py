"""The data source of a model's dataset, whose rows Ray Data reads from the work queue one by one until it closes."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import ray
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

CALLS = pa.schema([("index", pa.int64()), ("pass_id", pa.string())])


class Calls(Datasource):
    """The calls that a work queue asks for."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None, since the size is unknown."""
        return None

    def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[ReadTask]:
        """Return one task, which lasts as long as the dataset."""
        queue = self._queue

        def iter_blocks() -> Iterator[pa.Table]:
            index = 0
            while (call := ray.get(queue.next.remote(index))) is not None:
                yield pa.Table.from_pylist([asdict(call)], schema=CALLS)
                index += 1

        return [ReadTask(iter_blocks, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))]
