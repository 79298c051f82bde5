"""Which weak labels are right: the labels table against gold labels, by the domain's own rule."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curation import store
from curation.domains import Domain
from curation.refs import TableRef


@dataclass(frozen=True, kw_only=True)
class Graded:
    """Rows that are labelled without error and have a gold label, ascending by row id."""

    row_ids_N: npt.NDArray[np.int64]
    correct_N: npt.NDArray[np.bool_]
    """Unparsed labels are wrong."""


def grade(labels: TableRef, gold: TableRef, domain: Domain) -> Graded:
    """Join ``labels`` (columns ``row_id``, ``label``, ``error``) with ``gold`` (``row_id``, ``gold``) by row id."""
    weak = store.read(labels, columns=["row_id", "label"], filter="error IS NULL")
    right = store.read(gold, columns=["row_id", "gold"], filter="gold IS NOT NULL")
    gold_of = dict(zip(right["row_id"].to_pylist(), right["gold"].to_pylist(), strict=True))
    rows = sorted(
        (row_id, label)
        for row_id, label in zip(weak["row_id"].to_pylist(), weak["label"].to_pylist(), strict=True)
        if row_id in gold_of
    )
    return Graded(
        row_ids_N=np.fromiter((row_id for row_id, _ in rows), dtype=np.int64, count=len(rows)),
        correct_N=np.fromiter(
            (domain.is_correct(label, gold_of[row_id]) for row_id, label in rows), dtype=np.bool_, count=len(rows)
        ),
    )
