"""Rows by the classes that their labels hold, for domains whose labels are sets of classes.

Beside the C classes the empty set is counted, as if it were one more: what holds no class. So each row counts once for
every class of its set, or once for the empty set.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Bools, Int64s
from curation.domains import attempt
from curation.domains.grading import read_grades
from curation.domains.label_sets import LabelSets
from curation.refs import TableRef
from curation.tables import io, scans


@dataclass(frozen=True, kw_only=True)
class HeldClasses:
    """The classes that some labels hold, with the empty set as the last."""

    held_NC: Bools
    """Whether a row's set holds each class, or is empty, bool [N, C + 1]; false for a row without a set."""

    @property
    def is_known_N(self) -> Bools:
        """Rows that have a set, bool [N]."""
        return np.asarray(self.held_NC.any(axis=1))


def held(labels: pa.Array, sets: LabelSets) -> HeldClasses:
    """The classes of each label; none of a null, and of a text that is no set of these classes."""
    place_of = {name: place for place, name in enumerate(sets.classes)}
    encoded = labels.dictionary_encode()
    held_MC = np.zeros((len(encoded.dictionary) + 1, len(place_of) + 1), dtype=np.bool_)
    for row, text in enumerate(encoded.dictionary.to_pylist()):
        names, _ = attempt(sets.names, text)
        if names is not None and {*names} <= place_of.keys():
            held_MC[row, [place_of[name] for name in names] or [-1]] = True
    row_N = pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    return HeldClasses(held_NC=held_MC[row_N])


def given_sets(labels: TableRef, sets: LabelSets) -> tuple[Int64s, Int64s]:
    """The answered rows of a labels table by class, the empty set last, int64 [C + 1]; rows with, without a set [2]."""

    def counted(fragments: Sequence[int] | None) -> Int64s:
        total = np.zeros(len(sets.classes) + 3, dtype=np.int64)
        for batch in scans.batches(labels, {"label": "label"}, io.answered(labels), fragments):
            found = held(batch.column("label"), sets)
            num_known = int(found.is_known_N.sum())
            total += np.array([*found.held_NC.sum(axis=0), num_known, batch.num_rows - num_known])
        return total

    total: Int64s = np.sum([*scans.mapped(labels, counted)], axis=0)
    return total[:-2], total[-2:]


def set_confusion(examples: TableRef, labels: TableRef, grades: TableRef, sets: LabelSets) -> Int64s:
    """Labelled rows by class, gold and teacher's label, int64 [C + 1, 2, 3]; the first row of each question counts.

    The second axis is whether the gold set holds the class (no, yes), the third whether the teacher's does (no, yes,
    its label could not be read). The last class is the empty set. Rows without a gold set are left out.
    """
    graded = read_grades(grades)
    ids_N = graded.row_ids_N[np.unique(graded.question_N, return_index=True)[1]]
    gold = held(io.take(examples, ids_N, ["gold"])["gold"].combine_chunks(), sets)
    label = held(io.take(labels, ids_N, ["label"])["label"].combine_chunks(), sets)
    counts = np.zeros((len(sets.classes) + 1, 2, 3), dtype=np.int64)
    said_NC = np.where(label.is_known_N[:, None], label.held_NC, 2)
    for in_gold in (0, 1):
        of_NC = gold.is_known_N[:, None] & (gold.held_NC == in_gold)
        for said in (0, 1, 2):
            counts[:, in_gold, said] = (of_NC & (said_NC == said)).sum(axis=0)
    return counts
