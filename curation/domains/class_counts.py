"""Rows by class and by the teacher's label, for domains with a closed set of labels, or of sets of classes."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Int64s
from curation.domains.grading import read_grades
from curation.domains.rarest_class import RarestClass
from curation.refs import TableRef
from curation.tables import io, scans

Grouping = Sequence[str] | RarestClass
"""The C classes that labels are or, where labels are sets of classes, the C strata that stand for them."""


def places(labels: pa.Array, classes: Grouping) -> Int64s:
    """The place of each label among the C classes, int64 [N]; C for a null, and for a label that is none of them."""
    if isinstance(classes, RarestClass):
        return classes.places(labels)
    found = pc.index_in(labels, value_set=pa.array(classes, pa.string()))
    return np.asarray(pc.fill_null(found, len(classes)).to_numpy(zero_copy_only=False), dtype=np.int64)


def given(labels: TableRef, classes: Grouping) -> Int64s:
    """The answered rows of a labels table by label: of the C classes, then without a readable one, int64 [C + 1]."""

    def counted(fragments: Sequence[int] | None) -> Int64s:
        total = np.zeros(len(classes) + 1, dtype=np.int64)
        for batch in scans.batches(labels, {"label": "label"}, io.answered(labels), fragments):
            total += np.bincount(places(batch.column("label"), classes), minlength=len(total))
        return total

    total: Int64s = np.sum([*scans.mapped(labels, counted)], axis=0)
    return total


def confusion(examples: TableRef, labels: TableRef, grades: TableRef, classes: Grouping) -> Int64s:
    """Labelled rows by gold class and teacher's label, int64 [C, C + 1]; the first row of each question counts.

    ``examples`` have the gold labels. Rows of which only the grade is known are left out: a wrong one has no class.
    """
    graded = read_grades(grades)
    ids_N = graded.row_ids_N[np.unique(graded.question_N, return_index=True)[1]]
    gold_N = places(io.take(examples, ids_N, ["gold"])["gold"].combine_chunks(), classes)
    label_N = places(io.take(labels, ids_N, ["label"])["label"].combine_chunks(), classes)
    is_known_N = gold_N < len(classes)
    counts = np.zeros((len(classes), len(classes) + 1), dtype=np.int64)
    np.add.at(counts, (gold_N[is_known_N], label_N[is_known_N]), 1)
    return counts
