"""The stages that make a labels table from a table of examples and a teacher, each row exactly once.

In the read stage, a model reads the answers that a server gave, for their hidden states. The label stage has committed
these answers, and they are never bought again, whichever model reads them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Bools, Int64s
from curation.config import DomainConfig
from curation.domains import attempt, get_domain
from curation.domains.given import as_asked
from curation.errors import RunFailedError, get_error_kind
from curation.escaping import get_logger
from curation.hashing import hash64
from curation.json_types import Json
from curation.label_columns import DOMAIN_NUMBERS, ORDER_AGREEMENT, TOKEN_COLUMNS
from curation.passes.job import ChunkWorker, Models, PassOptions, PassResult, Row
from curation.passes.run import run_pass
from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, InEach, setting
from curation.rundir.run import Task
from curation.signals import label_request, make_asks
from curation.stages.asking import AskModel, GatedStage, GateRule
from curation.stages.label_chunks import LabelJob, LabelsJob, count_tokens
from curation.stages.rows import read_id_bitmap
from curation.stages.score import make_reduction
from curation.stopping import iter_checked
from curation.tables import io, schemas
from curation.tables.row_ids import find_missing_ids
from curation.teachers import Request, get_state_width

logger = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RowShare:
    """One of ``of`` parts of a table, drawn by a seeded hash of the row id; a chain's generations take one each."""

    index: int = 0
    of: int = 1
    seed: int = 0

    def takes(self, row_ids_N: Int64s) -> Bools:
        """Return which rows belong to the share, bool [N]."""
        taken: Bools = hash64(row_ids_N, self.seed) % np.uint64(self.of) == self.index
        return taken


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Counts of rows by result."""

    rows: int
    unparsed: int
    """Labelled rows from whose completion no label could be read."""
    truncated: int
    prompt_tokens: int
    """Number of tokens read; both token counts include the second order of pairs asked about in both orders."""
    output_tokens: int
    errors: dict[str, int]
    both_orders: int = 0
    """Number of pairs of answers with a result in both orders."""
    disagreeing: int = 0
    """Number of pairs whose preferred answer depends on the order."""
    order_tokens: int = 0
    """Prompt and output tokens of the second order, which ``prompt_tokens`` and ``output_tokens`` include."""
    dropped: int = 0
    """Rows that a gate dropped before they were answered."""


class MakeLabels(AskModel):
    """A stage whose output is a labels table, written by a pass of a model.

    With a ``sample``, the table has the scores of the ``fitted`` trust functions, and states only of the rows that the
    sample draws.
    """

    class Made(NamedTuple):
        labels: TableRef
        counts: LabelCounts
        pass_: dict[str, Any]

    examples: In[TableRef]
    domain: DomainConfig
    fitted: InEach[TrustRef] = field(default_factory=dict)  # type: ignore[arg-type]
    sample: dict[str, Any] | None = None

    def labels_fields(self, task: Task) -> Json:
        """Return the fields of the pass's job that say which rows, teacher and output table it has."""
        uri = str(task.directory / "labels.lance")
        return {"examples": self.examples, "domain": self.domain, "labels_uri": uri, **self.teacher_fields(task)}

    def finish(self, result: PassResult, gate: GateRule | None = None) -> Done:
        """Return the stage's outputs, with the rows counted and the pass recorded; warn of clipped states."""
        counts = count_labels(result.table, gate)
        if result.clipped_values:
            logger.warning(
                "%s: %s numbers of the states of %s rows are beyond float16 and were stored as its largest one "
                "(65504); set teacher.state_dtype: float32 to keep them",
                result.table.uri,
                f"{result.clipped_values:,}",
                f"{result.rows:,}",
            )
        made = self.Made(labels=result.table, counts=counts, pass_=self.teacher.record(result))
        return Done(outputs=made, rows=counts.rows)


class Label(GatedStage, MakeLabels):
    """A stage that labels the examples of a split, or a ``share`` of them, except rows that a ``gate`` drops."""

    seed: int
    share: dict[str, int] | None = None
    signals: Mapping[str, Mapping[str, Any]] = setting(default_factory=dict)
    """Signals that ask the same model, as ``make_asks`` takes them; they are measured as the rows are labelled, for
    their own stages to find."""
    asks_teacher: bool = setting(default=False)
    """Whether the run's first teacher answers, so that a probe of that model predicts the time."""
    revision: int = 2  # margin, entropy and their like

    def run(self, task: Task) -> Done:
        """Label the rows that are not labelled yet, and count the results."""
        share = RowShare(**(self.share or {}))
        job = LabelJob(
            seed=self.seed,
            reduction=make_reduction(self.fitted, self.sample, self.examples, share.of),
            asks=make_asks(self.signals, task.directory, task.manifest.attempts),
            gate=self.gate,
            **self.labels_fields(task),
        )
        with self.passing(task) as how:
            result = label(job, state_size=get_state_width(job.teacher, job.model), share=share, **how)
        done = self.finish(result, self.gate)
        if self.gate is not None:
            counts = done.outputs.counts
            task.say(self.gate.describe(counts.rows - sum(counts.errors.values()), counts.dropped))
        return done


def label(job: LabelJob, *, state_size: int, share: RowShare, **how: Unpack[PassOptions]) -> PassResult:
    """Label the rows that are not labelled yet, and commit labels as they come; see :func:`run_pass`."""
    for ask in job.asks:
        io.create(ask.uri, schemas.SIGNAL)
    schema = job.schema(state_size)
    result = run_pass(job, name="labelling", uri=job.labels_uri, schema=schema, takes=share.takes, **how)
    check_errors(result.table, job.teacher.max_error_rate, job.examples)
    return result


def count_labels(ref: TableRef, gate: GateRule | None = None) -> LabelCounts:
    """Count the rows of a labels table by result, in streams; ``gate`` is the rule with which it was made, if any."""
    counts = Counter(rows=0, unparsed=0, truncated=0, prompt_tokens=0, output_tokens=0)
    errors, table = Counter[str](), io.open_table(ref)
    gated = () if gate is None else gate.columns.names
    counted = {"label", "truncated", "error", *gated, *DOMAIN_NUMBERS, *chain(*TOKEN_COLUMNS.values())}
    columns = [name for name in table.schema.names if name in counted]
    for batch in iter_checked(table.scanner(columns=columns).to_batches()):
        failed = batch.column("error").drop_null()
        errors.update(map(get_error_kind, failed.to_pylist()))
        counts.update(rows=batch.num_rows, unparsed=batch.column("label").null_count - len(failed))
        counts.update(truncated=pc.sum(batch.column("truncated")).as_py() or 0)
        counts.update({f"{kind}_tokens": count_tokens(batch, kind) for kind in TOKEN_COLUMNS})
        if ORDER_AGREEMENT in columns:
            agreement, tokens = batch.column(ORDER_AGREEMENT), [second for _, second in TOKEN_COLUMNS.values()]
            counts.update(both_orders=len(agreement) - agreement.null_count)
            counts.update(disagreeing=pc.sum(pc.less(agreement, 0.5)).as_py() or 0)
            counts.update(order_tokens=sum(pc.sum(batch.column(name)).as_py() or 0 for name in tokens))
        if gate is not None:
            dropped = pc.sum(batch.column(schemas.DROPPED)).as_py() or 0
            counts.update(dropped=dropped, unparsed=-dropped)
    return LabelCounts(**counts, errors=dict(errors.most_common()))


def check_errors(labels: TableRef, max_error_rate: float, examples: TableRef) -> None:
    """Raise ``RunFailedError`` if more than ``max_error_rate`` of the rows that the model was asked about failed.

    Error rows of the ``examples`` do not count: their limit is ``splits.max_error_rate`` or, in a filter,
    ``pool.max_error_rate``.
    """
    unread = read_id_bitmap(examples, "error IS NOT NULL")
    rows, failed, kinds = 0, 0, Counter[str]()
    for batch in iter_checked(io.open_table(labels).scanner(columns=["row_id", "error"]).to_batches()):
        asked_N = find_missing_ids(batch.column("row_id").to_numpy(), unread)
        texts = batch.column("error").filter(pa.array(asked_N)).drop_null().to_pylist()
        rows, failed = rows + int(asked_N.sum()), failed + len(texts)
        kinds.update(map(get_error_kind, texts))
    if rows and failed / rows > max_error_rate:
        ((kind, number),) = kinds.most_common(1)
        raise RunFailedError(
            f"{labels.uri}: {failed} of {rows} rows failed ({number} of them {kind}), more than "
            f'teacher.max_error_rate {max_error_rate}; `curate inspect {labels.uri} --where "error IS NOT NULL"` shows '
            "them; fix the rows or raise the limit, then run the same command"
        )


SERVER_COLUMNS = ("row_id", "completion", "label", "num_prompt_tokens", "num_output_tokens", "truncated", "error")
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
        answered = read_id_bitmap(self.answers)
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
                takes=lambda ids_N: ~find_missing_ids(ids_N, answered),
                **how,
            )
        check_errors(result.table, self.teacher.ask.max_error_rate, self.answers)
        return self.finish(result)


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
        answers = self._take_answers(rows)
        texts = dict(zip(answers["row_id"].to_pylist(), answers["completion"].to_pylist(), strict=True))
        unread = set(answers.filter(answers["error"].is_valid())["row_id"].to_pylist())
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
        parts = [self._make_error_rows(answers.filter(pc.is_in(answers["row_id"], value_set=failed)), errors)]
        for batch in self._teacher.label(requests, self._job.decoding, seed=0):
            parts.append(self._join_answers(answers, pa.Table.from_batches([batch])))
            self.answered(batch.num_rows)
        return pa.concat_tables(parts)

    def give_up(self, rows: list[Row], error: str) -> pa.Table:
        """Return an error row for each row."""
        return self._make_error_rows(self._take_answers(rows), {row["row_id"]: error for row in rows})

    def write(self, parts: list[pa.Table], note: dict[str, Any]) -> pa.Table:
        """Write a fragment of labels; return its row of ``commits.WRITTEN``."""
        return self._job.write(pa.concat_tables(parts), self._schema, note)

    def _take_answers(self, rows: list[Row]) -> pa.Table:
        return self._answers.take(np.array([row["row_id"] for row in rows], dtype=np.int64))

    def _join_answers(self, answers: pa.Table, read: pa.Table) -> pa.Table:
        """Return answers with the states that were read, in the order of ``read``; unreadable answers become null."""
        order = pc.index_in(read["row_id"], value_set=answers["row_id"].combine_chunks())
        answers, is_read = answers.take(order), read["error"].is_null()
        columns = {name: answers[name] for name in answers.column_names}
        if self._job.reads_numbers:
            columns |= {name: read[name] for name in read.column_names if name not in SERVER_COLUMNS}
        columns |= {name: read[name] for name in read.column_names if schemas.is_state(name)}
        for name in ("completion", "label"):
            columns[name] = pc.if_else(is_read, answers[name], None)
        return self._cast({**columns, "error": read["error"]})

    def _make_error_rows(self, answers: pa.Table, errors: dict[int, str]) -> pa.Table:
        """Return error rows for ``answers``, each with its own error or that of ``errors``."""
        own = zip(answers["row_id"].to_pylist(), answers["error"].to_pylist(), strict=True)
        problems = [error or errors[row_id] for row_id, error in own]
        nulls = dict.fromkeys(("completion", "label"), pa.nulls(len(answers), pa.string()))
        columns = {name: answers[name] for name in answers.column_names}
        return self._cast({**columns, **nulls, "error": pa.array(problems, pa.string())})

    def _cast(self, columns: dict[str, Any]) -> pa.Table:
        """Return a table of the full schema, with nulls for missing columns."""
        num_rows = len(columns["row_id"])
        filled = [columns.get(column.name, pa.nulls(num_rows, column.type)) for column in self._full_schema]
        return pa.table(filled, names=self._full_schema.names).cast(self._full_schema)
