"""Columns of the pool's files, such as the user's ids, beside the rows of a selection (``curate export --columns``)."""

import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import RunConfig
from curation.errors import ExportError
from curation.refs import TableRef
from curation.rundir.manifest import Manifest
from curation.sources import (
    SourceFile,
    as_kept,
    check_unchanged,
    discover,
    get_row_ids,
    make_kept_fields,
    read_rows,
    require_columns,
)
from curation.stages.rows import PART_ROWS, read_ids
from curation.tables import io, schemas


def read_with_columns(
    config: RunConfig, manifest: Manifest, selection: TableRef, columns: Sequence[str]
) -> pa.RecordBatchReader:
    """Return a reader of a selection's rows by rank, each with these columns of its file.

    The files are read once; beside a batch of rows, only the ids of selected rows are held.

    Raises:
        ExportError: the selection has a column of that name.
        SourceError: a file changed or lacks a column, or the files disagree on its type.
    """
    columns = list(dict.fromkeys(columns))
    schema, source = io.open_table(selection).schema, config.splits.pool.source
    if taken := [name for name in columns if name in schema.names]:
        raise ExportError(
            f"--columns: {taken[0]!r} is a column that every selection has; rename it in the pool's files"
        )
    known = manifest.source_files[source]
    check_unchanged(known, discover(config.sources[source], known))
    require_columns(known, [columns])
    fields = make_kept_fields(known, columns)
    wide = pa.schema([*schema, *fields])

    def joined() -> Iterator[pa.RecordBatch]:
        parts = iter_found(known, fields, np.sort(read_ids(selection)), config.sources[source].id_column)
        with tempfile.TemporaryDirectory(prefix="curation-") as folder:
            kept = io.Lookup(io.write_parts(parts, pa.schema([schemas.ROW_ID, *fields]), f"{folder}/kept.lance"))
            for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS):
                beside = kept.take(batch.column("row_id").to_numpy(), columns).combine_chunks()
                yield from pa.table([*batch.columns, *beside.columns], schema=wide).to_batches()

    return pa.RecordBatchReader.from_batches(wide, joined())


def iter_found(
    files: Sequence[SourceFile], fields: Sequence[pa.Field], wanted_M: Int64s, id_column: str | None
) -> Iterator[pa.Table]:
    """Yield the row ids and fields of the rows with these ascending ids, in the files' order."""
    for file in files:
        start = 0
        for batch in read_rows(file, columns=[field.name for field in fields]):
            ids_B = get_row_ids(file, start, start + batch.num_rows, id_column)
            start += batch.num_rows
            place_B = np.searchsorted(wanted_M, ids_B)  # `np.isin` would sort all wanted ids for each batch
            (inside_M,) = np.nonzero(place_B < len(wanted_M))
            at_M = inside_M[wanted_M[place_B[inside_M]] == ids_B[inside_M]]
            taken = batch.take(pa.array(at_M))
            columns = [as_kept(taken.column(field.name), field.type) for field in fields]
            yield pa.table([pa.array(ids_B[at_M]), *columns], schema=pa.schema([schemas.ROW_ID, *fields]))
