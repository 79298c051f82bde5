"""The label stage, which makes a labels table from a table of examples and a teacher, each row exactly once."""

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
from curation.errors import RunFailedError, get_error_kind
from curation.escaping import get_logger
from curation.hashing import hash64
from curation.json_types import Json
from curation.label_columns import DOMAIN_NUMBERS, TOKEN_COLUMNS
from curation.passes.job import PassOptions, PassResult
from curation.passes.run import run_pass
from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, InEach, setting
from curation.rundir.run import Task
from curation.signals.measure import make_asks
from curation.stages.asking import AskModel
from curation.stages.both_orders import count_orders
from curation.stages.gating import GatedStage, GateRule
from curation.stages.label_chunks import LabelJob, count_tokens
from curation.stages.reduce import make_reduction
from curation.stages.rows import read_id_bitmap
from curation.stopping import iter_checked
from curation.tables import io, schemas
from curation.tables.row_ids import find_missing_ids
from curation.teachers import get_state_width

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
    """Number of pairs whose preference depends on the order: the other order prefers the other answer."""
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

    def finished(self, result: PassResult, gate: GateRule | None = None) -> Done:
        """Return the stage's outputs, with the rows counted and the pass recorded; warn of clipped states."""
        table = result.table
        counts = count_labels(table, gate)
        if result.clipped_values:
            logger.warning(
                "%s: %s numbers of the states of %s rows are beyond float16 and were stored as its largest one "
                "(65504); set teacher.state_dtype: float32 to keep them",
                table.uri,
                f"{result.clipped_values:,}",
                f"{result.rows:,}",
            )
        made = self.Made(labels=table, counts=counts, pass_=self.teacher.record(result))
        return Done(outputs=made, rows=counts.rows)


class Label(GatedStage, MakeLabels):
    """A stage that labels the examples of a split, or a ``share`` of them, less the rows that a ``gate`` drops."""

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
        job, share = self.job(task), RowShare(**(self.share or {}))
        with self.passing(task) as how:
            result = label(job, state_size=get_state_width(job.teacher, job.model), share=share, **how)
        done = self.finished(result, self.gate)
        if self.gate is not None:
            counts = done.outputs.counts
            task.say(self.gate.describe(counts.rows - sum(counts.errors.values()), counts.dropped))
        return done

    def job(self, task: Task) -> LabelJob:
        """Return the description of the pass."""
        shares = RowShare(**(self.share or {})).of
        return LabelJob(
            seed=self.seed,
            reduction=make_reduction(self.fitted, self.sample, self.examples, shares),
            asks=make_asks(self.signals, task.directory, task.manifest.attempts),
            gate=self.gate,
            **self.labels_fields(task),
        )


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
    wanted = {"label", "truncated", "error", *gated, *DOMAIN_NUMBERS, *chain(*TOKEN_COLUMNS.values())}
    columns = [name for name in table.schema.names if name in wanted]
    for batch in iter_checked(table.scanner(columns=columns).to_batches()):
        failed = batch.column("error").drop_null()
        errors.update(map(get_error_kind, failed.to_pylist()))
        counts.update(rows=batch.num_rows, unparsed=batch.column("label").null_count - len(failed))
        counts.update(truncated=pc.sum(batch.column("truncated")).as_py() or 0)
        counts.update({f"{kind}_tokens": count_tokens(batch, kind) for kind in TOKEN_COLUMNS})
        counts.update(count_orders(batch))
        if gate is not None:
            dropped = pc.sum(batch.column(schemas.DROPPED)).as_py() or 0
            counts.update(dropped=dropped, unparsed=-dropped)
    return LabelCounts(**counts, errors=dict(errors.most_common()))


def check_errors(labels: TableRef, max_error_rate: float, examples: TableRef) -> None:
    """Raise ``RunFailedError`` if more than ``max_error_rate`` of the rows that were asked failed.

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
