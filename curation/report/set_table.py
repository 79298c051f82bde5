"""An arm's rows by class, if labels are sets of classes: each class by itself, with the empty set as a further class.

A class's share is that of the rows whose set holds the class, so shares need not add up to 1. The share in the pool is
estimated as that of a binary label, in the set or not (:mod:`curation.selection.class_shares`).
"""

import numpy as np

from curation.arms import ARMS
from curation.config.selection import CUTS
from curation.domains.class_counts import count_given_sets, make_held_mask, read_labelled_sets
from curation.domains.grading import read_grades_among
from curation.domains.label_sets import LabelSets
from curation.json_types import Json
from curation.report.measures import compute_share_among
from curation.report.record import GenerationRecord, RunInputs
from curation.selection.class_shares import estimate_shares
from curation.tables import io


def collect_set_table(run: RunInputs, record: GenerationRecord, arm: str, sets: LabelSets) -> Json:
    """Return the table of an arm's weak sets by class, the empty set last.

    Each class has a row: the pool rows whose set holds the class (``given``), the ``estimated`` share in the pool, the
    selected rows (``chosen``) and their ``share``, the ``purity`` of these rows (right if the whole set is) if the pool
    is graded, the labelled rows whose gold set holds the class (``support``), and the teacher's ``precision`` and
    ``recall`` there. ``distance`` is the greatest gap between a class's shares of the selected rows and of the pool: at
    least this share of the rows would need other sets. ``least`` is the distance of the nearest possible selection.
    """
    names = (*sets.classes, sets.empty)
    given_C, (num_known, num_unparsed) = count_given_sets(record.labels["pool"], sets)
    known = read_labelled_sets(run.prepared["source"], record.labels["source"], record.grades["source"], sets)
    counts_C23 = known.counts_C23
    shares = [
        estimate_shares(("no", "yes"), np.array([num_known - num_yes, num_yes, num_unparsed]), counts_23)
        for num_yes, counts_23 in zip(given_C, counts_C23, strict=True)
    ]
    estimated_C = np.array([found.shares[1] for found in shares])
    chosen = io.read(record.selections[arm], ["row_id", "label"]).sort_by("row_id").combine_chunks()
    held_nC = make_held_mask(chosen["label"].combine_chunks(), sets)
    chosen_C, n = held_nC.sum(axis=0), len(held_nC)
    ids_n, grades = chosen["row_id"].to_numpy(), record.grades.get("pool")
    graded = None if grades is None else read_grades_among(grades, ids_n)
    held_MC = held_nC[:0] if graded is None else held_nC[np.searchsorted(ids_n, graded.row_ids_N)]
    return {
        "arm": arm,
        "is_of_sets": True,
        "basis": shares[0].basis,
        "why": shares[0].why,
        "num_labelled": shares[0].num_labelled,
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
                "purity": None
                if graded is None
                else compute_share_among(graded.correct_N, held_MC[:, place], graded.cluster_N),
                "support": int(counts_C23[place, 1].sum()),
                "precision": compute_share_among(
                    known.gold_NC[:, place], known.said_NC[:, place] == 1, known.cluster_N
                ),
                "recall": compute_share_among(known.said_NC[:, place] == 1, known.gold_NC[:, place], known.cluster_N),
            }
            for place, name in enumerate(names)
        ],
    }
