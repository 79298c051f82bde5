"""A domain without cost for benchmarks of the engine, with its rows, and the same labelling by Ray Data."""

from collections.abc import Iterator, Mapping
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from curation.config import ActorsConfig
from curation.domains import Domain, Example, get_domain
from curation.refs import TableRef
from curation.stages.label_chunks import LabelJob, label_rows
from curation.tables import io, schemas
from curation.teachers import load_teacher

WRITE_ROWS = 1 << 18


class Plain(Domain):
    """A domain whose prompt is a column and whose label is the completion."""

    def gold(self, raw: Mapping[str, Any]) -> None:
        """Return None: nobody knows what is right."""
        return None

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the completion."""
        return completion


def make_examples(uri: str, num_rows: int) -> TableRef:
    """Return an examples table with ids from 0 on, written in parts."""
    schema = schemas.make_examples_schema(Plain.columns, gold=False)

    def parts() -> Iterator[pa.RecordBatch]:
        for start in range(0, num_rows, WRITE_ROWS):
            ids_N = np.arange(start, min(start + WRITE_ROWS, num_rows))
            columns = [pa.array(ids_N), pa.array([f"row {row}" for row in ids_N]), pa.nulls(len(ids_N), pa.string())]
            yield pa.record_batch(columns, schema)

    dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(schema, parts()), uri, schema=schema)
    return TableRef(uri=uri, version=dataset.version)


def write_parquet(job: LabelJob, target: str, actors: ActorsConfig) -> None:
    """Label the examples of a job by ``map_batches`` + ``write_parquet``, a chunk of the job at a time."""
    import ray.data

    num_rows, size = io.count(job.examples), job.teacher.chunk_rows
    items: list[Any] = [{"start": start, "stop": min(start + size, num_rows)} for start in range(0, num_rows, size)]
    ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        _Actor,  # type: ignore[arg-type]
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=actors.min, max_size=actors.max),
        num_cpus=1,
    ).write_parquet(target)


class _Actor:
    """The same teacher as an actor of Ray Data, which returns rows as blocks."""

    def __init__(self, job: LabelJob) -> None:
        self._job, self._domain, self._teacher = job, get_domain(job.domain), load_teacher(job.teacher, None)

    def __call__(self, batch: Mapping[str, Any]) -> pa.Table:
        """Return the labelled rows of one chunk."""
        rows = io.open_table(self._job.examples).take(range(int(batch["start"][0]), int(batch["stop"][0])))
        return pa.Table.from_batches(list(label_rows(self._job, self._domain, self._teacher, rows.to_pylist())))
