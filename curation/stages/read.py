"""The read stage, in which a model reads the answers that a server gave, each exactly once, for their hidden states.

The answers are those that the label stage committed, and are never bought again, whichever model reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.domains import attempt, get_domain
from curation.domains.given import as_asked
from curation.passes.job import ChunkWorker, Models, Row
from curation.passes.run import run_pass
from curation.refs import TableRef
from curation.rundir.graph import Done, In
from curation.rundir.run import Task
from curation.signals import label_request
from curation.stages.label import MakeLabels, check_errors
from curation.stages.label_chunks import LabelsJob
from curation.stages.reduce import make_reduction
from curation.stages.rows import read_id_bitmap
from curation.tables import io, schemas
from curation.tables.row_ids import find_missing_ids
from curation.teachers import Request, get_state_width

OF_ANSWER = ("row_id", "completion", "label", "num_prompt_tokens", "num_output_tokens", "truncated", "error")
"""Columns of a labels table that always come from the server."""


class Read(MakeLabels):
    """A stage that reads the answers of a split, teacher-forced, and adds their hidden states.

    Log-probabilities and similar numbers stay those of the server, or are the reader's if ``reads_numbers``. An answer
    that cannot be read, such as one too long for the model, becomes an error row; its tokens stay counted. Rows
    committed before an interruption are not read again. Scores of ``fitted`` functions with a ``sample`` take the
    place of the states, as in ``curation.stages.label``.
    """

    answers: In[TableRef]
    reads_numbers: bool

    def run(self, task: Task) -> Done:
        """Read the rows that are not read yet, and count the results."""
        bought = read_id_bitmap(self.answers)
        job = ReadJob(
            answers=self.answers,
            reads_numbers=self.reads_numbers,
            reduction=make_reduction(self.fitted, self.sample, self.answers),
            **self.labels_fields(task),
        )
        with self.passing(task) as how:
            result = run_pass(
                job,
                name="reading",
                uri=job.labels_uri,
                schema=job.schema(get_state_width(job.teacher, job.model)),
                takes=lambda ids_N: ~find_missing_ids(ids_N, bought),
                **how,
            )
        check_errors(result.table, self.teacher.ask.max_error_rate, self.answers)
        return self.finished(result)


@dataclass(frozen=True, kw_only=True)
class ReadJob(LabelsJob):
    """A job that reads the answers to the rows of a table."""

    answers: TableRef
    reads_numbers: bool

    def worker(self, models: Models) -> "ReadWorker":
        """Return the worker that reads the job's chunks in a process."""
        return ReadWorker(self, models)


class ReadWorker(ChunkWorker[pa.Table]):
    """A worker that reads answers by one model."""

    def __init__(self, job: ReadJob, models: Models) -> None:
        self._job, self._answers = job, io.Lookup(job.answers)
        self._domain = as_asked(get_domain(job.domain), job.decoding)
        self._teacher = self.meter = job.load(models)
        self._full_schema, self._schema = (of(self._teacher.state_size) for of in (job.full_schema, job.schema))

    def work(self, rows: list[Row]) -> pa.Table:
        """Read the answers to rows, and return their rows of the labels table."""
        bought = self._take_answers(rows)
        texts = dict(zip(bought["row_id"].to_pylist(), bought["completion"].to_pylist(), strict=True))
        unread = set(bought.filter(bought["error"].is_valid())["row_id"].to_pylist())
        errors: dict[int, str] = {}
        requests: list[Request] = []
        for row in rows:
            if (row_id := row["row_id"]) not in unread:
                request, problem = attempt(label_request, self._domain, row_id, row)
                if request is None:
                    errors[row_id] = problem
                else:
                    requests.append(request.reading(texts[row_id]))
        failed = pa.array(sorted({*unread, *errors}), pa.int64())
        parts = [self._without_states(bought.filter(pc.is_in(bought["row_id"], value_set=failed)), errors)]
        for batch in self._teacher.label(requests, self._job.decoding, seed=0):
            parts.append(self._join_answers(bought, pa.Table.from_batches([batch])))
            self.answered(batch.num_rows)
        return pa.concat_tables(parts)

    def give_up(self, rows: list[Row], error: str) -> pa.Table:
        """Return an error row for each row."""
        return self._without_states(self._take_answers(rows), {row["row_id"]: error for row in rows})

    def write(self, parts: list[pa.Table], note: dict[str, Any]) -> pa.Table:
        """Write a fragment of labels; return its row of ``commits.WRITTEN``."""
        return self._job.write(pa.concat_tables(parts), self._schema, note)

    def _take_answers(self, rows: list[Row]) -> pa.Table:
        return self._answers.take(np.array([row["row_id"] for row in rows], dtype=np.int64))

    def _join_answers(self, bought: pa.Table, read: pa.Table) -> pa.Table:
        """Return answers with the states that were read, in the order of ``read``; unreadable answers become null."""
        order = pc.index_in(read["row_id"], value_set=bought["row_id"].combine_chunks())
        bought, is_read = bought.take(order), read["error"].is_null()
        columns = {name: bought[name] for name in bought.column_names}
        if self._job.reads_numbers:
            columns |= {name: read[name] for name in read.column_names if name not in OF_ANSWER}
        columns |= {name: read[name] for name in read.column_names if schemas.is_state(name)}
        for name in ("completion", "label"):
            columns[name] = pc.if_else(is_read, bought[name], None)
        return self._cast({**columns, "error": read["error"]})

    def _without_states(self, bought: pa.Table, errors: dict[int, str]) -> pa.Table:
        """Return error rows for ``bought`` answers, each with its own error or that of ``errors``."""
        own = zip(bought["row_id"].to_pylist(), bought["error"].to_pylist(), strict=True)
        problems = [error or errors[row_id] for row_id, error in own]
        gone: dict[str, Sequence[Any]] = {name: pa.nulls(len(bought), pa.string()) for name in ("completion", "label")}
        columns = {name: bought[name] for name in bought.column_names}
        return self._cast({**columns, **gone, "error": pa.array(problems, pa.string())})

    def _cast(self, columns: dict[str, Any]) -> pa.Table:
        """Return a table of the full schema, with nulls for missing columns."""
        num_rows = len(columns["row_id"])
        filled = [columns.get(column.name, pa.nulls(num_rows, column.type)) for column in self._full_schema]
        return pa.table(filled, names=self._full_schema.names).cast(self._full_schema)
