"""The rows on which a first cut is set: collected from a run, written to a package, and read from one."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation.arrays import Bools, Float64s, Int64s
from curation.errors import PackageError, UserError
from curation.extras.first_cut.threshold import HeldOut
from curation.filter.package.folder import TrustPackage
from curation.filter.package.tables import read_rows, to_floats
from curation.refs import TableRef, TrustRef
from curation.stopping import iter_checked
from curation.storage.cache import fetch_folder
from curation.tables import io, schemas
from curation.trust import Scores, load_fitted

if TYPE_CHECKING:
    from curation.trust.states import StateTrust

FILE = "cascade.parquet"
"""The file of a package with the rows."""
SCHEMA = pa.schema(
    [("first", pa.float32()), ("raw", pa.float32()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32())]
)


def write_held_out(rows: HeldOut, folder: Path) -> None:
    """Write the rows into the folder of a package."""
    scores = (pa.array(scores_M, pa.float32(), from_pandas=True) for scores_M in (rows.first_M, rows.full_M))
    tokens = (pa.array(tokens_M, pa.int32()) for tokens_M in (rows.prompt_tokens_M, rows.output_tokens_M))
    pq.write_table(pa.table([*scores, *tokens], schema=SCHEMA), folder / FILE)


def read_held_out(package: TrustPackage) -> HeldOut:
    """Return the rows of a package; a ``PackageError`` if it has none, or the file holds something else."""
    if "cascade" not in package.description.parts:
        why = (
            "its run kept no state of the last prompt token, or its rows allowed none (`curate export-trust` says "
            "which); leave cascade out, or run again with teacher.states: [prompt_last, output_last] (and what else "
            "trust reads), and export that run"
        )
        if package.description.ask.reads_given:
            why = (
                "its model reads answers that are there before the prompt is read, so that a first cut would save "
                "none; leave cascade out"
            )
        elif package.description.served is not None:
            why = "a server answers, and keeps no state of a prompt; leave cascade out"
        raise PackageError(f"{package.uri}: holds no first cut, so that a filter cannot have a cascade: {why}")
    with package.reading(FILE):
        table = read_rows(fetch_folder(package.uri) / FILE, SCHEMA)
        first_M, full_M = (to_floats(table[name]).astype(np.float64) for name in ("first", "raw"))
        asked, answered = (table[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    return HeldOut(first_M=first_M, full_M=full_M, prompt_tokens_M=asked, output_tokens_M=answered)


def write_cut_target(
    labels: TableRef, full: TrustRef, takes: Callable[[Int64s], Bools], *, keep: float, uri: str
) -> TableRef:
    """Write the target of the first function: whether the full function is to select a row (schema ``schemas.GRADES``).

    The first function thus predicts which rows a first cut must not lose, without gold labels. Predicting whether the
    label is right, as other trust functions do, works too but loses more. ``takes`` masks the rows to fit on by their
    ids; of these the full pass selects the share ``keep`` with the highest raw scores.
    """
    ids, raw = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    function = load_fitted(full)
    for batch in _iter_answered(labels, [function], takes):
        ids.append(batch.column("row_id").to_numpy())
        raw.append(_mask_unselectable(batch, function.raw_score(batch)))
    ids_N, raw_N = np.concatenate(ids), np.concatenate(raw)
    if not len(ids_N):
        raise UserError(
            f"{labels.uri}: no answered row to fit a first cut on; `curate inspect` shows why its rows failed"
        )
    num, order = len(ids_N), np.argsort(-np.nan_to_num(raw_N, nan=-np.inf), kind="stable")
    chosen_N = np.zeros(num, dtype=np.bool_)
    chosen_N[order[: round(keep * num)]] = True
    chosen_N &= ~np.isnan(raw_N)
    columns = [ids_N, chosen_N, np.zeros(num, dtype=np.bool_), pa.nulls(num, pa.string()), ids_N]
    return io.write(pa.table(columns, schema=schemas.GRADES).sort_by("row_id"), uri)


def collect_held_out(labels: TableRef, first: TrustRef, full: TrustRef, takes: Callable[[Int64s], Bools]) -> HeldOut:
    """Return both scores and the tokens of the labelled rows that ``takes`` marks by id, for ``find_first_cut``.

    Neither function may have been fitted on these rows: ``curation.trust.parts`` says which part of the source a row
    is in. A row whose label could not be read is never selected by the full pass.
    """
    functions = [load_fitted(ref) for ref in (first, full)]
    parts: list[list[Float64s]] = [[np.zeros(0)] * 4]
    for batch in _iter_answered(labels, functions, takes):
        tokens = [batch.column(name).to_numpy() for name in ("num_prompt_tokens", "num_output_tokens")]
        full_B = _mask_unselectable(batch, functions[1].source_score(batch))
        parts.append([functions[0].raw_score(batch).astype(np.float64), full_B, *tokens])
    first_M, full_M, *tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    asked_M, answered_M = (tokens_M.astype(np.int64) for tokens_M in tokens)
    return HeldOut(first_M=first_M, full_M=full_M, prompt_tokens_M=asked_M, output_tokens_M=answered_M)


def _iter_answered(
    labels: TableRef, functions: "Sequence[StateTrust]", takes: Callable[[Int64s], Bools]
) -> Iterator[pa.RecordBatch]:
    """Yield the answered rows that ``takes`` marks, with the columns that the functions read."""
    features = dict.fromkeys(feature for function in functions for feature in function.features)
    columns = dict.fromkeys(["row_id", "label", "num_prompt_tokens", "num_output_tokens", *features])
    scanner = io.open_table(labels).scanner(columns=list(columns), filter=io.make_answered_filter(labels))
    for batch in iter_checked(scanner.to_batches()):
        yield batch.filter(pa.array(takes(batch.column("row_id").to_numpy())))


def _mask_unselectable(batch: pa.RecordBatch, score_N: Scores) -> Float64s:
    """Return the full function's scores, with NaN for rows that are never selected."""
    raw_N: Float64s = score_N.astype(np.float64)
    raw_N[batch.column("label").is_null().to_numpy(zero_copy_only=False)] = np.nan
    return raw_N
