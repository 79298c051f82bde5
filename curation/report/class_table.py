"""An arm's rows by class, if labels are a closed set: the classes' shares in pool and selection, and errors.

The classes' shares in the pool are those by which ``selection.quota`` divided the budget, or else the same estimate. If
labels are sets of classes, a class's share is that of the rows whose set holds it, so shares need not add up to 1. The
empty set is a further class. A share in the pool is then estimated as that of a binary label, in the set or not.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from curation.arms import ARMS
from curation.arrays import Bools, Int64s
from curation.config.selection import CUTS
from curation.domains import class_counts
from curation.domains.grading import read_grades_among
from curation.domains.label_sets import LabelSets
from curation.json_types import Json
from curation.report.measures import compute_share_among
from curation.report.record import GenerationRecord, RunInputs
from curation.selection.class_shares import ClassShares, compute_share_distance, estimate_shares
from curation.selection.quotas import allocate
from curation.tables import io

MOST_NAMED = 3
"""Maximum number of classes that a finding names."""


def collect_class_table(run: RunInputs, record: GenerationRecord, arm: str | None) -> Json | None:
    """Return the table of an arm's weak labels by class; ``None`` without an arm, or if labels are no closed set.

    Each class has a row: the number of pool rows with the label (``given``), the ``estimated`` share in the pool, the
    selected rows (``chosen``) and their ``share``, their ``purity`` if the pool is graded, the labelled rows to which
    the teacher gave the label (``labelled``), how many of these are right, and the most frequent true class of the
    others (``confused``). ``certified`` is the class's cut if the budget bounds risk by label, as JSON. Sets of classes
    have other rows (:func:`_collect_set_table`).
    """
    if arm is None or not record.n:
        return None
    if run.domain.label_sets is not None:
        return _collect_set_table(run, record, arm, run.domain.label_sets)
    names = run.domain.closed_labels()
    if names is None:
        return None
    given_T = class_counts.count_given(record.labels["pool"], names)
    source = run.prepared["source"], record.labels["source"], record.grades["source"]
    counts_CT = class_counts.count_confusion(*source, names)
    quota = record.budget.get("quota")
    certified = {found["label"]: found for found in (record.budget.get("risk") or {}).get("classes", ())}
    if quota is None or certified:
        shares = estimate_shares(names, given_T, counts_CT)
    else:
        shares = ClassShares(**{**quota, "classes": tuple(quota["classes"]), "shares": tuple(quota["shares"])})
    labels, compute_purity = _read_selected(record, arm)
    class_n, n = class_counts.find_class_places(labels, names), len(labels)
    chosen_C = np.bincount(class_n, minlength=len(names) + 1)[: len(names)]
    share_C = chosen_C / max(int(chosen_C.sum()), 1)
    best_C = allocate(shares.shares, np.full(len(names), n), n)
    return {
        "arm": arm,
        "is_of_sets": False,
        "basis": shares.basis,
        "why": shares.why,
        "num_labelled": shares.num_labelled,
        "is_divided": quota is not None and not certified and ARMS[arm].takes_top,
        "is_cut": record.budget["rule"] in CUTS,
        "is_certified": bool(certified),
        "distance": compute_share_distance(share_C, shares.shares),
        "least": compute_share_distance(best_C / max(n, 1), shares.shares),
        "num_unparsed": int(given_T[-1]),
        "rows": [
            {
                "name": name,
                "given": int(given_T[place]),
                "estimated": shares.shares[place],
                "chosen": int(chosen_C[place]),
                "share": float(share_C[place]),
                "purity": compute_purity(class_n == place),
                **_count_errors(counts_CT, place, names),
                "certified": certified.get(name),
            }
            for place, name in enumerate(names)
        ],
    }


def as_evidence(table: Json | None) -> Json | None:
    """Return the numbers of a table that the verdict reads.

    ``over`` are the classes with the greatest surplus, the greatest first: name, share of the rows, share of the pool;
    ``under`` those with the greatest deficit.
    """
    if table is None:
        return None
    lines = [[row["name"], row["share"], row["estimated"]] for row in table["rows"]]
    lines.sort(key=lambda line: line[2] - line[1])
    return {
        **{key: table[key] for key in ("distance", "least", "basis", "is_divided", "is_cut", "is_of_sets")},
        "over": [line for line in lines[:MOST_NAMED] if line[1] > line[2]],
        "under": [line for line in lines[: -MOST_NAMED - 1 : -1] if line[1] < line[2]],
    }


def _read_selected(record: GenerationRecord, arm: str) -> tuple[pa.Array, Callable[[Bools], Json | None]]:
    """Return the labels of an arm's rows, and a function for the purity of the rows that a mask marks, if graded."""
    rows, grades = io.read(record.selections[arm], ["row_id", "label"]).sort_by("row_id"), record.grades.get("pool")
    labels, ids_n = rows["label"].combine_chunks(), rows["row_id"].to_numpy()
    if grades is None:
        return labels, lambda keep_n: None
    graded = read_grades_among(grades, ids_n)
    place_M = np.searchsorted(ids_n, graded.row_ids_N)
    return labels, lambda keep_n: compute_share_among(graded.correct_N, keep_n[place_M], graded.cluster_N)


def _count_errors(confusion_CT: Int64s, place: int, names: tuple[str, ...]) -> Json:
    """Count the rows to which the teacher gave the class, and the right ones; name the true class of most others."""
    of_C = confusion_CT[:, place].copy()
    num_rows, right = int(of_C.sum()), int(of_C[place])
    of_C[place] = 0
    other = int(of_C.argmax())
    confused = {"name": names[other], "rows": int(of_C[other])} if of_C[other] else None
    return {"labelled": num_rows, "right": right, "confused": confused}


def _collect_set_table(run: RunInputs, record: GenerationRecord, arm: str, sets: LabelSets) -> Json:
    """Return the table of an arm's weak sets by class, the empty set last.

    Each class has a row: the pool rows whose set holds the class (``given``), the ``estimated`` share in the pool, the
    selected rows (``chosen``) and their ``share``, the ``purity`` of these rows (right if the whole set is) if the pool
    is graded, the labelled rows whose gold set holds the class (``support``), and the teacher's ``precision`` and
    ``recall`` there. ``distance`` is the greatest gap between a class's shares of the selected rows and of the pool: at
    least this share of the rows would need other sets. ``least`` is the distance of the nearest possible selection.
    """
    names = (*sets.classes, sets.empty)
    given_C, (num_known, num_unparsed) = class_counts.count_given_sets(record.labels["pool"], sets)
    source = run.prepared["source"], record.labels["source"], record.grades["source"]
    known = class_counts.read_labelled_sets(*source, sets)
    counts_C23 = known.counts_C23
    shares = [
        estimate_shares(("no", "yes"), np.array([num_known - num_yes, num_yes, num_unparsed]), counts_23)
        for num_yes, counts_23 in zip(given_C, counts_C23, strict=True)
    ]
    estimated_C = np.array([found.shares[1] for found in shares])
    labels, compute_purity = _read_selected(record, arm)
    held_nC = class_counts.make_held_mask(labels, sets)
    chosen_C, n = held_nC.sum(axis=0), len(held_nC)
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
                "purity": compute_purity(held_nC[:, place]),
                "support": int(counts_C23[place, 1].sum()),
                "precision": compute_share_among(gold_N, said_N, known.cluster_N),
                "recall": compute_share_among(said_N, gold_N, known.cluster_N),
            }
            for place, (name, gold_N, said_N) in enumerate(
                zip(names, known.gold_NC.T, known.said_NC.T == 1, strict=True)
            )
        ],
    }
