"""The labels of the selected rows: their diversity and, if labels are a closed set, the arm's rows by class.

Of a pool of more than ``MOST_GRADED`` rows the labels of a sample are counted; their number and perplexity are then
lower bounds, marked as such.

The classes' shares in the pool are those by which ``selection.quota`` divided the budget, or else the same estimate. If
labels are sets of classes, a class's share is that of the rows whose set holds it, so shares need not add up to 1. The
empty set is a further class. A share in the pool is then estimated as that of a binary label, in the set or not.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from curation.arms import ARMS
from curation.arrays import Bools, Int64s
from curation.config.selection import CUTS
from curation.domains import class_counts
from curation.domains.grading import read_grades_among
from curation.domains.label_sets import LabelSets
from curation.hashing import derive
from curation.json_types import Json
from curation.report.measures import compute_share
from curation.report.record import GenerationRecord, RunInputs
from curation.report.rows import MOST_GRADED, SAMPLE, read_scores
from curation.selection.class_shares import ClassShares, compute_share_distance, estimate_shares
from curation.selection.quotas import allocate
from curation.tables import io

MOST_NAMED = 3
"""Maximum number of classes that a finding names."""
Purity = Callable[[Bools], Json | None]
"""A function that returns the purity of the selected rows that a mask marks, if the pool is graded."""


def collect_class_table(run: RunInputs, record: GenerationRecord, arm: str | None) -> Json | None:
    """Return the table of an arm's weak labels by class; ``None`` without an arm or a closed set of labels.

    Each class has a row: the number of pool rows with the label (``given``), the ``estimated`` share in the pool, the
    selected rows (``chosen``) and their ``share``, and their ``purity`` if the pool is graded. ``distance`` is the part
    of the rows that would need other classes for the pool's shares, and ``least`` that of the nearest selection.

    Unless labels are sets of classes, a class's row also has the labelled rows to which the teacher gave the label
    (``labelled``), how many of these are right, and the most frequent true class of the others (``confused``).
    ``certified`` is the class's cut if the budget bounds risk by label, as JSON.
    """
    if arm is None or not record.n:
        return None
    if run.domain.label_sets is not None:
        return _collect_set_table(run, record, arm, run.domain.label_sets)
    if (names := run.domain.closed_labels()) is None:
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
    class_n, n, further = class_counts.find_class_places(labels, names), len(labels), []
    for place, name in enumerate(names):
        of_C = counts_CT[:, place].copy()
        right, of_C[place] = int(of_C[place]), 0
        other = int(of_C.argmax())
        confused = {"name": names[other], "rows": int(of_C[other])} if of_C[other] else None
        errors = {"labelled": right + int(of_C.sum()), "right": right, "confused": confused}
        further.append({**errors, "certified": certified.get(name)})
    marks, total = (class_n == place for place in range(len(names))), int((class_n < len(names)).sum())
    rows = _make_rows(names, given_T, shares.shares, marks, total, compute_purity, further)
    best_C = allocate(shares.shares, np.full(len(names), n), n)
    return {
        **_describe_shares(record, arm, shares),
        "is_of_sets": False,
        "is_divided": quota is not None and not certified and ARMS[arm].takes_top,
        "is_certified": bool(certified),
        "distance": compute_share_distance(np.array([row["share"] for row in rows]), shares.shares),
        "least": compute_share_distance(best_C / max(n, 1), shares.shares),
        "num_unparsed": int(given_T[-1]),
        "rows": rows,
    }


def _describe_shares(record: GenerationRecord, arm: str, shares: ClassShares) -> Json:
    known = {"basis": shares.basis, "why": shares.why, "num_labelled": shares.num_labelled}
    return {"arm": arm, **known, "is_cut": record.budget["rule"] in CUTS}


def _make_rows(
    names: Sequence[str],
    given_C: Int64s,
    estimated_C: Sequence[float],
    marks: Iterable[Bools],
    total: int,
    compute_purity: Purity,
    further: Sequence[Json],
) -> list[Json]:
    """Return the row of each class; ``marks`` are masks of the selected rows that have it, of ``total`` that count."""
    return [
        {
            "name": name,
            "given": int(given_C[place]),
            "estimated": estimated_C[place],
            "chosen": int(mark_n.sum()),
            "share": int(mark_n.sum()) / max(total, 1),
            "purity": compute_purity(mark_n),
            **facts,
        }
        for place, (name, mark_n, facts) in enumerate(zip(names, marks, further, strict=True))
    ]


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


def _read_selected(record: GenerationRecord, arm: str) -> tuple[pa.Array, Purity]:
    """Return the labels of an arm's rows, and a function for the purity of some of them."""
    rows, grades = io.read(record.selections[arm], ["row_id", "label"]).sort_by("row_id"), record.grades.get("pool")
    labels, ids_n = rows["label"].combine_chunks(), rows["row_id"].to_numpy()
    if grades is None:
        return labels, lambda keep_n: None
    graded = read_grades_among(grades, ids_n)
    place_M = np.searchsorted(ids_n, graded.row_ids_N)
    return labels, lambda keep_n: compute_share(graded.correct_N, graded.cluster_N, keep_n[place_M])


def _collect_set_table(run: RunInputs, record: GenerationRecord, arm: str, sets: LabelSets) -> Json:
    """Return the table of an arm's weak sets by class, the empty set last.

    A class's rows are those whose set holds it; they are right if the whole set is. Its row also has the labelled rows
    whose gold set holds the class (``support``), and the teacher's ``precision`` and ``recall`` there. ``distance`` is
    the greatest gap between a class's shares of the selected rows and of the pool: at least this share of the rows
    would need other sets. ``least`` is the distance of the nearest possible selection.
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
    further = [
        {
            "support": int(counts_23[1].sum()),
            "precision": compute_share(gold_N, known.cluster_N, said_N),
            "recall": compute_share(said_N, known.cluster_N, gold_N),
        }
        for counts_23, gold_N, said_N in zip(counts_C23, known.gold_NC.T, known.said_NC.T == 1, strict=True)
    ]
    labels, compute_purity = _read_selected(record, arm)
    held_nC, estimated_C = class_counts.make_held_mask(labels, sets), np.array([found.shares[1] for found in shares])
    n = len(held_nC)
    return {
        **_describe_shares(record, arm, shares[0]),
        "is_of_sets": True,
        "is_divided": record.budget.get("quota") is not None and ARMS[arm].takes_top,
        "distance": float(np.abs(held_nC.sum(axis=0) / max(n, 1) - estimated_C).max()),
        "least": float(np.abs(np.rint(estimated_C * n) / max(n, 1) - estimated_C).max()),
        "num_unparsed": int(num_unparsed),
        "rows": _make_rows(names, given_C, estimated_C.tolist(), held_nC.T, n, compute_purity, further),
    }


def count_labels(labels: pa.ChunkedArray, num_rows: int) -> Json:
    """Count the different ones of ``num_rows`` labels, or of a sample of them, and their perplexity.

    Perplexity is the exponential of the entropy of the labels' shares: k for k equally frequent labels.
    """
    count_G = labels.value_counts().field("counts").to_numpy()
    share_G = count_G / max(len(labels), 1)
    return {
        "num_rows": num_rows,
        "num_labels": len(count_G),
        "perplexity": float(np.exp(-(share_G * np.log(share_G)).sum())) if len(count_G) else None,
        "largest": float(share_G.max()) if len(count_G) else None,
        "is_bound": len(labels) < num_rows,
    }


def measure_diversity(record: GenerationRecord, num_pool: int, seed: int) -> Json:
    """Return label counts of each arm and of the pool's parsed rows."""
    labels = record.labels["pool"]
    rows = read_scores(labels, [], share=min(1.0, MOST_GRADED / max(num_pool, 1)), seed=derive(seed, SAMPLE))
    num_parsed = io.count(labels, f"({io.make_answered_filter(labels)}) AND label IS NOT NULL")
    arms = {}
    for name, ref in record.selections.items():
        selected = io.read(ref, ["label"], "label IS NOT NULL")["label"]
        arms[name] = count_labels(selected, len(selected))
    return {"arms": arms, "pool": count_labels(rows.label_N.drop_null(), num_parsed)}
