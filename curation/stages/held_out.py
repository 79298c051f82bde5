"""No row that trained a student is source, calibration, probe or test row of the generation that it teaches.

A student is surer of rows that it was trained on, and right on them more often. Trust that is fitted, calibrated or
measured on such rows promises too much on the pool.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.errors import SourceError
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, InEach, Stage, setting
from curation.rundir.run import Task
from curation.stages.label import RowShare
from curation.tables import io
from curation.tables.row_ids import include, missing

if TYPE_CHECKING:
    from curation.stages.label import RowShare


class HeldOutCounts(NamedTuple):
    """Result of a comparison on held-out rows."""

    num_trained: int
    """Different rows on which the teacher and the students before it were trained."""
    num_rows: dict[str, int]
    """Rows of each split that was compared."""


class HoldOut(Stage):
    """Refuses a generation of which a split, or the share of the pool, has a row that a student was trained on."""

    Made = HeldOutCounts

    trained: InEach[TableRef]
    """Selections, by whom they trained."""
    splits: InEach[TableRef]
    share: Json
    """The :class:`curation.stages.label.RowShare` of the pool as JSON."""
    teacher: str = setting()
    """Who is to answer, in words."""

    def run(self, task: Task) -> Done:
        """Compare row ids."""
        found = check_held_out(self.trained, self.splits, RowShare(**self.share), teacher=self.teacher)
        return Done(outputs=found, rows=sum(found.num_rows.values()))


def check_held_out(
    trained: Mapping[str, TableRef], splits: Mapping[str, TableRef], share: "RowShare", *, teacher: str
) -> HeldOutCounts:
    """Compare row ids; holds those of the ``trained`` tables (selections, by whom they trained) as a bitmap.

    All tables are of one source, in which a row has one id. ``share`` is what the generation labels of the pool.

    Raises:
        SourceError: a row of a split, or of the share, is one that the teacher or a student before it was trained on.
    """
    seen = BitMap64()
    for who, ref in trained.items():
        ids_N = np.concatenate([np.zeros(0, dtype=np.int64), *_ids(ref)])
        _refuse(ids_N[share.takes(ids_N)], "the generation's share of the pool", who, teacher)
        include(seen, ids_N)
    num_rows = {}
    for split, ref in splits.items():
        num_rows[split] = 0
        for ids_N in _ids(ref):
            num_rows[split] += len(ids_N)
            _refuse(ids_N[~missing(ids_N, seen)], f"splits.{split}", "a student", teacher)
    return HeldOutCounts(num_trained=len(seen), num_rows=num_rows)


def _ids(ref: TableRef) -> list[Int64s]:
    batches = io.open_table(ref).scanner(columns=["row_id"]).to_batches()
    return [batch.column("row_id").to_numpy() for batch in batches]


def _refuse(shared_N: Int64s, where: str, who: str, teacher: str) -> None:
    if len(shared_N):
        raise SourceError(
            f"{where}: {len(shared_N):,} of its rows (e.g. row {shared_N[0]}) have trained {who}, and {teacher} "
            "answers them: trust fitted, calibrated or measured on rows that trained the teacher does not hold for the "
            "pool; keep each row in one split, or take a new run directory if the splits were changed in this one"
        )
