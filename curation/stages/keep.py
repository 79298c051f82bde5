"""The selected rows with further columns of the user's files, such as the user's ids, read at the end of a run.

Only the ids of selected rows are held, 8 bytes each plus 8 bytes to find them; the pool's files are read once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, InEach, Stage, setting
from curation.rundir.run import Task
from curation.sources import SourceFile, as_kept, get_row_ids, make_kept_fields, read_rows, require_columns
from curation.stages.rows import NO_IDS, read_ids
from curation.stages.selected import PART_ROWS, write_both_forms
from curation.storage.cache import staged
from curation.tables import io, schemas


def check_kept(columns: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Raise ``SourceError`` if a file of the pool lacks a column to keep, or its types differ between files."""
    if columns:
        require_columns(files, [columns])
        make_kept_fields(files, columns)


class Keep(Stage):
    """A stage that writes the rows of every arm again, with further columns of the pool's files (``selection.keep``).

    Raises:
        SourceError: files disagree about the type of a column, or changed since the run began.
    """

    class Made(NamedTuple):
        files: dict[str, dict[str, str]]
        """Paths of ``parquet`` and ``jsonl`` files by arm, with a selection's columns, then the kept columns."""

    selected: InEach[TableRef | None]
    """Selections by arm, None for an arm that dropped out."""
    columns: list[str]
    id_column: str | None
    files: list[Json]
    """The :class:`curation.sources.SourceFile` of each of the pool's files, as JSON."""
    contents: list[str] = setting(default_factory=list)
    """Digests of the files' bytes, in the order of ``files``."""

    def run(self, task: Task) -> Done:
        """Read the columns of all selected rows, and write each arm's files."""
        files = SourceFile.with_contents(self.files, self.contents)
        selections = {arm: table for arm, table in self.selected.items() if table is not None}
        wanted_M = np.unique(np.concatenate([NO_IDS, *map(read_ids, selections.values())]))
        fields = make_kept_fields(files, self.columns)
        schema = pa.schema([schemas.ROW_ID, *fields])
        found: list[Int64s] = []
        parts = _iter_rows(files, fields, wanted_M, self.id_column, found)
        kept = io.write_parts(parts, schema, str(task.directory / "kept.lance"))
        ids_M = np.concatenate([NO_IDS, *found])
        order_M = np.argsort(ids_M, kind="stable")
        made: dict[str, dict[str, str]] = {}
        wide = pa.schema([*schemas.SELECTION, *fields])
        for arm, table in selections.items():
            joined = _iter_joined(table, kept, ids_M[order_M], order_M)
            targets = {end: task.directory / f"{arm}.{end}" for end in ("parquet", "jsonl")}
            with staged(targets["parquet"]) as path, staged(targets["jsonl"]) as text:
                for _ in write_both_forms((part.cast(wide) for part in joined), wide, path, text):
                    pass
            made[arm] = {end: str(target) for end, target in targets.items()}
            task.say(f"{arm}: rows with {', '.join(self.columns)} in {made[arm]['parquet']} and .jsonl")
        return Done(outputs=self.Made(files=made), rows=len(ids_M))


def _iter_rows(
    files: Sequence[SourceFile],
    fields: Sequence[pa.Field],
    wanted_M: Int64s,
    id_column: str | None,
    found: list[Int64s],
) -> Iterator[pa.Table]:
    """Yield the rows of these ascending ids with these columns, in the files' order; add their ids to ``found``."""
    names = [field.name for field in fields]
    for file in files:
        start = 0
        for batch in read_rows(file, columns=names):
            ids_B = get_row_ids(file, start, start + batch.num_rows, id_column)
            start += batch.num_rows
            place_B = np.searchsorted(wanted_M, ids_B)  # `np.isin` would sort all wanted ids for each batch
            (inside_M,) = np.nonzero(place_B < len(wanted_M))
            at_M = inside_M[wanted_M[place_B[inside_M]] == ids_B[inside_M]]
            taken = batch.take(pa.array(at_M))
            columns = [as_kept(taken.column(field.name), field.type) for field in fields]
            found.append(ids_B[at_M])
            yield pa.table([pa.array(ids_B[at_M]), *columns], schema=pa.schema([schemas.ROW_ID, *fields]))


def _iter_joined(selection: TableRef, kept: TableRef, sorted_M: Int64s, order_M: Int64s) -> Iterator[pa.Table]:
    """Yield a selection's rows by rank, each with its kept columns; ``order_M``: the kept row of each sorted id."""
    for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS):
        rows = pa.table(batch.cast(schemas.SELECTION))
        ids_M = rows["row_id"].to_numpy()
        beside = io.take_offsets(kept, order_M[np.searchsorted(sorted_M, ids_M)]).drop_columns(["row_id"])
        for name in beside.column_names:
            rows = rows.append_column(beside.schema.field(name), beside[name])
        yield rows
