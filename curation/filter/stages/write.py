"""Writes the rows of a round that pass the cut, with their prompts, as files of equal numbers of rows.

Ray tasks first count the rows of each fragment of the labels that pass; then each task writes one file. It streams its
part of the labels, takes the examples of the rows that pass and renders their prompts, so it never holds more than a
batch of rows. File names follow from the stage's inputs and the number of the part, files are written atomically, and a
note beside the stage's other records marks a finished part: a repeated task writes the same file again, and a driver
that resumes skips parts with a note.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import ray
import ray.exceptions

from curation.config.filter import Format
from curation.domains import get_domain
from curation.errors import CommitError
from curation.filter.stages.cut import ThresholdCut
from curation.filter.stages.pool import PoolRows
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage, setting
from curation.rundir.run import Task
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place, to_place, write_atomically
from curation.tables import io, schemas
from curation.tables.files import WrittenFile, write_file
from curation.tasks import make_driver_error, run_in_tasks
from curation.telemetry.standing import Standing, Update

ADDED = pa.schema(
    [
        pa.field("prompt", pa.string()),
        pa.field("completion", pa.string()),
        pa.field("label", pa.string()),
        pa.field("trust", pa.float32()),
        pa.field("trust_raw", pa.float32()),  # the score that ranks rows: a float32 sigmoid saturates at 1
        pa.field("source_file", pa.string()),
    ]
)
"""Columns of written rows beside the pool's own."""


class Span(NamedTuple):
    """A range of a fragment's rows that pass: ``take`` rows after ``skip`` others."""

    fragment: int
    skip: int
    take: int


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """The rows of one file."""

    number: int
    spans: tuple[Span, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(span.take for span in self.spans)


def divide(counts: Sequence[tuple[int, int]], rows_per_file: int) -> Iterator[FilePart]:
    """Yield parts of ``rows_per_file`` rows, the last one with the rest, from counts of passing rows by fragment."""
    spans: list[Span] = []
    number = held = 0
    for fragment, count in counts:
        skip = 0
        while skip < count:
            take = min(count - skip, rows_per_file - held)
            spans.append(Span(fragment, skip, take))
            skip, held = skip + take, held + take
            if held == rows_per_file:
                yield FilePart(number=number, spans=tuple(spans))
                spans, number, held = [], number + 1, 0
    if spans:
        yield FilePart(number=number, spans=tuple(spans))


class Write(Stage):
    """A stage that writes the rows of a round that pass; it is pickled to the tasks that write its files."""

    class Made(NamedTuple):
        files: list[Json]
        """Files with ``path``, ``rows``, ``bytes`` and ``sha256``."""
        columns: list[str]

    labels: In[TableRef]
    examples: In[TableRef]
    threshold: In[Json]
    form: Format
    rows_per_file: int
    rows: PoolRows = setting()
    function: str = setting()
    output: str = setting()

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row: its id, the pool's own columns, and those of ``ADDED``."""
        own = [field for field in self.rows.schema() if field.name not in ("row_id", "error", *ADDED.names)]
        return pa.schema([schemas.ROW_ID, *own, *ADDED])

    def run(self, task: Task) -> Done:
        """Write the rows."""
        with task.progress() as update:
            stem = f"part-{task.directory.name[-8:]}"
            files = self.write(stem, task.directory / "notes", guard=task.guard, progress=update)
        rows = sum(file.rows for file in files)
        return Done(outputs=self.Made([file.to_json() for file in files], self.schema.names), rows=rows)

    def write(
        self, stem: str, notes: Place, *, guard: Guard = guard_nothing, progress: Update = lambda standing: None
    ) -> list[WrittenFile]:
        """Write the files ``stem-NUMBER`` that have no note yet; return all.

        Raises:
            CommitError: the store refused, or the numbers of rows that pass and of rows written differ.
            RunFailedError: Ray gave up.
        """
        to_place(self.output).mkdir(parents=True, exist_ok=True)
        noted = {path.name for path in notes.iterdir()} if notes.is_dir() else set()
        there = {path.name for path in to_place(self.output).iterdir()}  # a later cut may have removed a noted file
        done: dict[int, WrittenFile] = {}
        try:
            job = ray.put(self)
            fragments = [fragment.fragment_id for fragment in io.open_table(self.labels).get_fragments()]
            counts = run_in_tasks(count_passing, ((job, fragment) for fragment in fragments))
            parts = list(divide(list(zip(fragments, counts, strict=True)), self.rows_per_file))
            for part in parts:
                if (name := f"{part.number:05}.json") in noted:
                    written = WrittenFile(**json.loads((notes / name).read_text()))
                    if written.path in there:
                        done[part.number] = written
            left = [part for part in parts if part.number not in done]
            total, num_written = sum(part.num_rows for part in parts), sum(file.rows for file in done.values())
            made = run_in_tasks(write_part, ((job, part, stem) for part in left))
            for part, written in zip(left, made, strict=True):
                if written.rows != part.num_rows:
                    raise CommitError(f"{self.output}/{written.path}: {part.num_rows} rows in, {written.rows} rows out")
                guard()
                write_atomically(notes / f"{part.number:05}.json", json.dumps(written.to_json()))
                done[part.number] = written
                num_written += written.rows
                progress(Standing(rows=num_written, total=total))
        except ray.exceptions.RayError as error:
            raise make_driver_error(error, "writing") from error
        return [done[part.number] for part in parts]


def count_passing(job: Write, fragment: int) -> int:
    """Return how many rows of a fragment of the labels pass."""
    cut = ThresholdCut.from_json(job.threshold)
    return sum(batch.num_rows for batch in cut.iter_passing(job.labels, [], fragment))


def write_part(job: Write, part: FilePart, stem: str) -> WrittenFile:
    """Write a part as a file."""
    path = to_place(job.output) / f"{stem}-{part.number:05}.{job.form}"
    return write_file(_iter_batches(job, part), job.schema, path, job.form)


def _iter_batches(job: Write, part: FilePart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, at most ``cut.BATCH_ROWS`` at a time."""
    cut, schema, domain = ThresholdCut.from_json(job.threshold), job.schema, get_domain(job.rows.domain)
    trust, raw = schemas.trust_column(job.function), schemas.get_raw_column(job.function)
    own = [name for name in schema.names if name not in ADDED.names]
    asked = list(dict.fromkeys([*own, *domain.columns.names]))
    for span in part.spans:
        seen, stop = 0, span.skip + span.take
        for batch in cut.iter_passing(job.labels, ["completion", trust, raw], span.fragment):
            labels = batch.slice(max(span.skip - seen, 0), max(0, stop - max(seen, span.skip)))
            seen += batch.num_rows
            if labels.num_rows:
                row_ids_B = labels.column("row_id").to_numpy()
                taken = io.take_offsets(job.examples, job.rows.offsets(row_ids_B), asked).combine_chunks()
                if not np.array_equal(taken["row_id"].to_numpy(), row_ids_B):
                    raise CommitError(f"{job.examples.uri}: rows are not in the order of the files; remove the output")
                added = {
                    "prompt": pa.array([domain.prompt(example) for example in taken.to_pylist()], pa.string()),
                    "completion": labels.column("completion"),
                    "label": labels.column("label"),
                    "trust": labels.column(trust),
                    "trust_raw": labels.column(raw),
                    "source_file": job.rows.paths(row_ids_B),
                }
                columns = [added[name] if name in added else taken[name].chunk(0) for name in schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            if seen >= stop:
                break
