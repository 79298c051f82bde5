"""An arm's rows by class, where labels are sets of classes: each class by itself, and the empty set as one more.

The shares of a class are of the rows whose set holds it, so they add up to more or less than 1. A class's share in the
pool is estimated as that of a label of two, in the set or not (:mod:`curation.selection.class_shares`).
"""

from collections.abc import Iterator

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.arrays import Bools, Int64s
from curation.config.selection import CUTS
from curation.domains.label_sets import LabelSets
from curation.domains.set_counts import given_sets, held, set_confusion
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.record import GenerationRecord, RunRecord
from curation.selection.class_shares import ClassShares, estimated
from curation.tables import io, scans


def by_held_class(run: RunRecord, record: GenerationRecord, arm: str, sets: LabelSets) -> Json:
    """The classes of an arm's weak sets, the empty set last.

    A row for each class: ``given`` pool rows whose set holds it, ``estimated`` share in the pool, ``chosen`` rows and
    their ``share``, the ``purity`` of these rows (right is the whole set) if the pool is graded, ``support``: the
    labelled rows whose gold set holds the class, and ``precision`` and ``recall`` of the teacher's yes there.
    ``distance`` is the greatest gap between a class's share of the selected rows and of the pool: so large a part of
    the rows, or a larger one, would have to have other sets. ``least`` is the same of the nearest selection.
    """
    names = (*sets.classes, sets.empty)
    given_C, (num_known, num_unparsed) = given_sets(record.labels["pool"], sets)
    counts_C23 = set_confusion(run.prepared["source"], record.labels["source"], record.grades["source"], sets)
    shares = [
        estimated(("no", "yes"), np.array([num_known - num_yes, num_yes, num_unparsed]), counts_23)
        for num_yes, counts_23 in zip(given_C, counts_C23, strict=True)
    ]
    estimated_C = np.array([found.shares[1] for found in shares])
    chosen = io.read(record.selections[arm], ["row_id", "label"]).sort_by("row_id").combine_chunks()
    held_nC = held(chosen["label"].combine_chunks(), sets).held_NC
    chosen_C, n = held_nC.sum(axis=0), len(held_nC)
    graded_2C = _graded(record.grades.get("pool"), chosen["row_id"].to_numpy(), held_nC)
    return {
        "arm": arm,
        "is_of_sets": True,
        **_basis(shares[0]),
        "is_divided": record.budget.get("quota") is not None and ARMS[arm].takes_top,
        "is_cut": record.budget["rule"] in CUTS,
        "distance": float(np.abs(chosen_C / max(n, 1) - estimated_C).max()),
        "least": float(np.abs(np.rint(estimated_C * n) / max(n, 1) - estimated_C).max()),
        "num_unparsed": int(num_unparsed),
        "rows": [
            {
                "name": name,
                "given": int(given_C[place]),
                "estimated": float(estimated_C[place]),
                "chosen": int(chosen_C[place]),
                "share": int(chosen_C[place]) / max(n, 1),
                "purity": None if graded_2C is None else _share(graded_2C[1, place], graded_2C[0, place]),
                "support": int(counts_C23[place, 1].sum()),
                "precision": _share(counts_C23[place, 1, 1], counts_C23[place, :, 1].sum()),
                "recall": _share(counts_C23[place, 1, 1], counts_C23[place, 1].sum()),
            }
            for place, name in enumerate(names)
        ],
    }


def _basis(shares: ClassShares) -> Json:
    return {"basis": shares.basis, "why": shares.why, "num_labelled": shares.num_labelled}


def _share(num_right: np.int64, num_rows: np.int64) -> Json | None:
    return metrics.proportion(int(num_right), int(num_rows)).to_json() if num_rows else None


def _graded(grades: TableRef | None, ids_n: Int64s, held_nC: Bools) -> Int64s | None:
    """The selected rows that are graded, and those that are right, by class, int64 [2, C + 1]; None without grades.

    ``ids_n`` ascend.
    """
    if grades is None or not len(ids_n):
        return None
    counts_2C = np.zeros((2, held_nC.shape[1]), dtype=np.int64)
    for place_M, is_right_M in graded_among(grades, ids_n):
        for line, kept_M in enumerate((place_M, place_M[is_right_M])):
            counts_2C[line] += held_nC[kept_M].sum(axis=0)
    return counts_2C


def graded_among(grades: TableRef, ids_n: Int64s) -> Iterator[tuple[Int64s, Bools]]:
    """Places [M] in ``ids_n``, which ascend, of the graded rows among them, and whether each is right, in parts."""
    for batch in scans.batches(grades, {"row_id": "row_id", "correct": "correct"}, None):
        ids_B = batch.column("row_id").to_numpy()
        place_B = np.minimum(np.searchsorted(ids_n, ids_B), len(ids_n) - 1)
        is_among_B = ids_n[place_B] == ids_B
        is_right_B = batch.column("correct").to_numpy(zero_copy_only=False)
        yield place_B[is_among_B], is_right_B[is_among_B]
