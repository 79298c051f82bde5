"""The labelling actor of Ray Data: a chunk of examples in, one written fragment of the labels table out.

One call handles one chunk and emits the fragment's name (DESIGN: the *only* output of its task). Signals that ask the
same model are measured in the same call, while the chunk's prompts are in the engine's prefix cache: a fragment more
each. A row that cannot be rendered, labelled or parsed becomes an error row here and never raises.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curation import store, tables
from curation.config import DecodingConfig, DomainConfig, TeacherConfig
from curation.domains import Domain, Example, attempt, get_domain
from curation.refs import ModelRef, TableRef
from curation.signals import Signal, Weak, get_signal, label_request
from curation.signals.measure import measure
from curation.stages.asks import Ask
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
    asks: tuple[Ask, ...] = ()
    """Signals to measure of each labelled row by the same model."""

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
        self._signals = [(ask, get_signal(ask.signal, **ask.options)) for ask in job.asks]
        self._notes = chain([self._teacher.facts], repeat(None))  # told once, by whichever call is first

    def __call__(self, batch: Mapping[str, Any]) -> pa.Table:
        """Label a chunk (columns of :class:`Chunk`, one row) and write its fragments; rows of ``store.WRITTEN``."""
        job = self._job
        examples = store.open_table(job.examples).take(Chunk.of(batch).offsets).to_pylist()
        labelled = pa.Table.from_batches(list(label_rows(job, self._domain, self._teacher, examples)))
        values = [self._measured(labelled, examples, ask, signal) for ask, signal in self._signals]
        if job.reduction is not None:
            (whole,) = labelled.combine_chunks().to_batches()
            labelled = pa.Table.from_batches([job.reduction.reduce(whole)])
        written = [
            store.write_fragment(labelled.cast(self._schema), job.labels_uri, self._schema, note=next(self._notes))
        ]
        written += [ask.write(of_ask) for ask, of_ask in zip(job.asks, values, strict=True)]
        return pa.concat_tables(written)

    def _measured(
        self, labelled: pa.Table, examples: list[dict[str, Any]], ask: Ask, signal: Signal
    ) -> dict[int, float | None]:
        """The signal's value of each row that has a label."""
        by_id = {example["row_id"]: example for example in examples}
        known = labelled.filter(pc.field("label").is_valid() & pc.field("error").is_null())
        weak = known.select(["row_id", "label", "completion"]).to_pylist()
        rows = [(row_id := row.pop("row_id"), by_id[row_id], Weak(**row)) for row in weak]
        return measure(signal, self._domain, self._teacher, rows, self._job.decoding, seed=ask.seed)


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
