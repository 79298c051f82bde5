"""The labelling actor of Ray Data: a chunk of examples in, one written fragment of the labels table out.

One call handles one chunk and emits one row, the fragment's name (DESIGN: the *only* output of its task). A row that
cannot be rendered, labelled or parsed becomes an error row here and never raises.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curation import store, tables
from curation.config import DecodingConfig, DomainConfig, TeacherConfig
from curation.domains import Domain, Example, attempt, get_domain
from curation.refs import ModelRef, TableRef
from curation.signals import label_request
from curation.stages.passes import Chunk
from curation.stages.reduce import Reduction
from curation.teachers import Teacher, load_teacher
from curation.teachers.completions import error_batch


@dataclass(frozen=True, kw_only=True)
class LabelJob:
    """All that an actor needs to know; pickled to every actor."""

    examples: TableRef
    """The rows to label (schema ``tables.examples``)."""
    labels_uri: str
    domain: DomainConfig
    teacher: TeacherConfig
    model: ModelRef | None
    decoding: DecodingConfig
    seed: int
    reduction: Reduction | None = None
    """What is made of the hidden states where not all of them are stored."""

    def schema(self, state_size: int) -> pa.Schema:
        """The schema of the labels table."""
        whole = tables.labels(self.teacher.states, self.teacher.state_dtype, state_size)
        return whole if self.reduction is None else self.reduction.schema(whole)


class LabelActor:
    """Holds one teacher; called with one chunk at a time."""

    def __init__(self, job: LabelJob) -> None:
        self._job = job
        self._domain = get_domain(job.domain)
        self._teacher = load_teacher(job.teacher, job.model)
        self._schema = job.schema(self._teacher.state_size)

    def __call__(self, batch: Mapping[str, Any]) -> pa.Table:
        """Label a chunk (columns of :class:`Chunk`, one row) and write its fragment; a row of ``store.WRITTEN``."""
        examples = store.open_table(self._job.examples).take(Chunk.of(batch).offsets).to_pylist()
        labelled = pa.Table.from_batches(list(label_rows(self._job, self._domain, self._teacher, examples)))
        if self._job.reduction is not None:
            (whole,) = labelled.combine_chunks().to_batches()
            labelled = pa.Table.from_batches([self._job.reduction.reduce(whole)])
        return store.write_fragment(labelled.cast(self._schema), self._job.labels_uri, self._schema)


def label_rows(
    job: LabelJob, domain: Domain, teacher: Teacher, examples: list[dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Batches of ``tables.labels``: every example exactly once, in any order."""
    by_id = {example["row_id"]: example for example in examples}
    errors: dict[int, str] = {row_id: example["error"] for row_id, example in by_id.items() if example["error"]}
    requests = []
    for row_id, example in by_id.items():
        if row_id in errors:
            continue
        request, problem = attempt(label_request, domain, row_id, example)
        if request is None:
            errors[row_id] = problem
        else:
            requests.append(request)
    if errors:
        config = job.teacher
        failed = error_batch(list(errors), list(errors.values()), config.states, config.state_dtype, teacher.state_size)
        yield _with_labels(failed, [None] * len(errors))
    for batch in teacher.label(requests, job.decoding, seed=job.seed):
        yield _parsed(batch, domain, by_id)


def _parsed(batch: pa.RecordBatch, domain: Domain, by_id: Mapping[int, Example]) -> pa.RecordBatch:
    labels: list[str | None] = []
    problems = batch.column("error").to_pylist()
    rows = zip(batch.column("row_id").to_pylist(), batch.column("completion").to_pylist(), strict=True)
    for place, (row_id, completion) in enumerate(rows):
        label = None
        if problems[place] is None:
            label, problem = attempt(lambda: domain.parse(completion, by_id[row_id]))  # noqa: B023 (called at once)
            problems[place] = problem or None
        labels.append(label)
    index = batch.schema.get_field_index("error")
    return _with_labels(batch.set_column(index, tables.ERROR, pa.array(problems, pa.string())), labels)


def _with_labels(batch: pa.RecordBatch, labels: list[str | None]) -> pa.RecordBatch:
    return batch.add_column(2, pa.field("label", pa.string()), pa.array(labels, pa.string()))
