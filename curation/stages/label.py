"""The label stage: a table of examples and a teacher become a labels table, each row exactly once."""

from collections import Counter
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from curation.errors import RunFailedError
from curation.hashing import hash64
from curation.passes.cutting import Bools, Int64s
from curation.passes.run import PassOptions, PassResult, run_pass
from curation.refs import TableRef
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas
from curation.tables.row_ids import bitmap, missing


@dataclass(frozen=True, kw_only=True)
class Share:
    """One of ``of`` parts of a table, drawn by a seeded hash of the row id; a chain's generations take one each."""

    index: int = 0
    of: int = 1
    seed: int = 0

    def takes(self, row_ids_N: Int64s) -> Bools:
        """Which rows belong to the share, bool [N]."""
        taken: Bools = hash64(row_ids_N, self.seed) % np.uint64(self.of) == self.index
        return taken


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """What became of the rows."""

    rows: int
    unparsed: int
    """Labelled rows from whose completion no label could be read."""
    truncated: int
    prompt_tokens: int
    output_tokens: int
    errors: dict[str, int]
    """Error rows by kind."""
    dropped: int = 0
    """Rows that a first cut dropped before they were answered."""
    unasked: int = 0
    """Rows that were answered without a first cut, after it had turned itself off."""

    @property
    def first_cut(self) -> str:
        """What a first cut did, in words."""
        asked = self.rows - sum(self.errors.values()) - self.unasked
        off = f"; it turned itself off where it dropped too few, for {self.unasked:,} rows" if self.unasked else ""
        return f"{self.dropped:,} of {asked:,} rows were dropped after their prompt{off}"


def label(
    job: LabelJob,
    *,
    state_size: int,
    share: Share,
    **how: Unpack[PassOptions],
) -> PassResult:
    """Label what is not labelled yet and commit it as it comes.

    Raises:
        RunFailedError: an actor kept dying without getting anything done, or more than ``max_error_rate`` of the rows
            failed.
        CommitError: the store refused, or rows in and rows out differ.
    """
    for ask in job.asks:
        io.create(ask.uri, schemas.SIGNAL)
    result = run_pass(
        job,
        name="labelling",
        uri=job.labels_uri,
        schema=job.schema(state_size),
        takes=share.takes,
        **how,
    )
    check_errors(result.table, job.teacher.max_error_rate, job.examples)
    return result


def count_labels(ref: TableRef) -> LabelCounts:
    """Counts over a labels table, streamed."""
    rows = unparsed = truncated = prompt_tokens = output_tokens = dropped = unasked = 0
    errors: Counter[str] = Counter()
    table = io.open_table(ref)
    columns = ["label", "truncated", "num_prompt_tokens", "num_output_tokens", "error"]
    cut = schemas.DROPPED in table.schema.names
    for batch in table.scanner(columns=[*columns, *(schemas.FIRST_CUT.names if cut else [])]).to_batches():
        rows += batch.num_rows
        num_dropped = (pc.sum(batch.column(schemas.DROPPED)).as_py() or 0) if cut else 0
        dropped += num_dropped
        failed = batch.column("error").drop_null()
        if cut:  # an error row may have a score, if its answer failed
            nulls = (batch.column(name).is_null() for name in (schemas.FIRST_CUT_RAW, "error"))
            unasked += pc.sum(pc.and_(*nulls)).as_py() or 0
        errors.update(text.split(":", 1)[0] for text in failed.to_pylist())
        unparsed += batch.column("label").null_count - len(failed) - num_dropped
        truncated += pc.sum(batch.column("truncated")).as_py() or 0
        prompt_tokens += pc.sum(batch.column("num_prompt_tokens")).as_py() or 0
        output_tokens += pc.sum(batch.column("num_output_tokens")).as_py() or 0
    return LabelCounts(
        rows=rows,
        unparsed=unparsed,
        truncated=truncated,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        errors=dict(errors.most_common()),
        dropped=dropped,
        unasked=unasked,
    )


def check_errors(labels: TableRef, max_error_rate: float, examples: TableRef) -> None:
    """Refuse a labels table with too many error rows.

    Those that are error rows of the ``examples`` do not count: ``splits.max_error_rate``, of a filter
    ``pool.max_error_rate``, is their limit.

    Raises:
        RunFailedError: more than ``max_error_rate`` of the rows that were asked failed.
    """
    unread = _error_ids(examples)
    rows, failed, kinds = 0, 0, Counter[str]()
    for batch in io.open_table(labels).scanner(columns=["row_id", "error"]).to_batches():
        asked_N = missing(batch.column("row_id").to_numpy(), unread)
        texts = batch.column("error").filter(pa.array(asked_N)).drop_null().to_pylist()
        rows, failed = rows + int(asked_N.sum()), failed + len(texts)
        kinds.update(text.split(":", 1)[0] for text in texts)
    if rows and failed / rows > max_error_rate:
        ((kind, number),) = kinds.most_common(1)
        raise RunFailedError(
            f"{labels.uri}: {failed} of {rows} rows failed ({number} of them {kind}), more than "
            f'teacher.max_error_rate {max_error_rate}; `curate inspect {labels.uri} --where "error IS NOT NULL"` shows '
            "them; fix the rows or raise the limit, then run the same command"
        )


def _error_ids(examples: TableRef) -> BitMap64:
    found = BitMap64()
    for batch in io.open_table(examples).scanner(columns=["row_id"], filter="error IS NOT NULL").to_batches():
        found |= bitmap(batch.column("row_id").to_numpy())
    return found
