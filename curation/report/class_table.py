"""An arm's rows by class, if labels are a closed set: the classes' shares in pool and selection, and errors.

If labels are sets of classes, :mod:`curation.report.set_table` has the table.

The classes' shares in the pool are those by which ``selection.quota`` divided the budget, or else the same estimate.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from curation.arms import ARMS
from curation.arrays import Int64s
from curation.config.selection import CUTS
from curation.domains import class_counts
from curation.domains.grading import read_grades_among
from curation.json_types import Json
from curation.report.measures import compute_share_among
from curation.report.record import GenerationRecord, RunInputs
from curation.report.set_table import collect_set_table
from curation.selection.class_shares import Basis, ClassShares, compute_share_distance, estimate_shares
from curation.selection.quotas import allocate
from curation.tables import io

COLLAPSE = 0.3
"""Maximum distance of a selection's class shares from the pool's, beyond what whole rows make necessary."""
MOST_NAMED = 3
"""Maximum number of classes that a finding names."""


@dataclass(frozen=True, kw_only=True)
class ClassesChosen:
    """The class shares of a selection, compared with those of the pool."""

    distance: float
    """Total variation distance between the two."""
    least: float
    """Smallest distance that a selection of as many rows can have, since numbers of rows are whole."""
    over: tuple[tuple[str, float, float], ...]
    """Classes with the greatest surplus, the greatest first: name, share of the rows, share of the pool."""
    under: tuple[tuple[str, float, float], ...]
    """Classes with the greatest deficit, the greatest first, in the same form."""
    is_divided: bool
    """Whether the budget was divided by class."""
    basis: Basis
    """Source of the pool's shares; ``given`` means the configuration."""
    is_cut: bool
    """Whether the budget takes all rows above a cut."""
    is_of_sets: bool = False
    """Whether labels are sets of classes; ``distance`` is then the greatest gap of one class."""

    @property
    def excess(self) -> float:
        """The share of the rows that would have to be of other classes to reach ``least``."""
        return self.distance - self.least


def collect_class_table(run: RunInputs, record: GenerationRecord, arm: str | None) -> Json | None:
    """Return the table of an arm's weak labels by class; ``None`` without an arm, or if labels are no closed set.

    Each class has a row: the number of pool rows with the label (``given``), the ``estimated`` share in the pool, the
    selected rows (``chosen``) and their ``share``, their ``purity`` if the pool is graded, the labelled rows to which
    the teacher gave the label (``labelled``), how many of these are right, and the most frequent true class of the
    others (``confused``). ``certified`` is the class's cut if the budget bounds risk by label, as JSON. Sets of classes
    have other rows (:func:`curation.report.set_table.collect_set_table`).
    """
    if arm is None or not record.n:
        return None
    if run.domain.label_sets is not None:
        return collect_set_table(run, record, arm, run.domain.label_sets)
    names = run.domain.closed_labels()
    if names is None:
        return None
    given_T = class_counts.count_given(record.labels["pool"], names)
    counts = class_counts.count_confusion(
        run.prepared["source"], record.labels["source"], record.grades["source"], names
    )
    quota = record.budget.get("quota")
    certified = {found["label"]: found for found in (record.budget.get("risk") or {}).get("classes", ())}
    shares = estimate_shares(names, given_T, counts) if quota is None or certified else _parse_quota(quota)
    table = io.read(record.selections[arm], ["row_id", "label"]).sort_by("row_id").combine_chunks()
    ids_n, class_n = table["row_id"].to_numpy(), class_counts.find_class_places(table["label"].combine_chunks(), names)
    chosen_C = np.bincount(class_n, minlength=len(names) + 1)[: len(names)]
    share_C = chosen_C / max(int(chosen_C.sum()), 1)
    best_C = allocate(shares.shares, np.full(len(names), len(ids_n)), len(ids_n))
    grades = record.grades.get("pool")
    graded = None if grades is None else read_grades_among(grades, ids_n)
    class_M = class_n[:0] if graded is None else class_n[np.searchsorted(ids_n, graded.row_ids_N)]
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
        "least": compute_share_distance(best_C / max(len(ids_n), 1), shares.shares),
        "num_unparsed": int(given_T[-1]),
        "rows": [
            {
                "name": name,
                "given": int(given_T[place]),
                "estimated": shares.shares[place],
                "chosen": int(chosen_C[place]),
                "share": float(share_C[place]),
                "purity": None
                if graded is None
                else compute_share_among(graded.correct_N, class_M == place, graded.cluster_N),
                **_count_errors(counts, place, names),
                "certified": certified.get(name),
            }
            for place, name in enumerate(names)
        ],
    }


def as_evidence(table: Json | None) -> ClassesChosen | None:
    """Return the numbers of a table that the verdict reads."""
    if table is None:
        return None
    lines = [(row["name"], row["share"], row["estimated"]) for row in table["rows"]]
    lines.sort(key=lambda line: line[2] - line[1])
    return ClassesChosen(
        over=tuple(line for line in lines[:MOST_NAMED] if line[1] > line[2]),
        under=tuple(line for line in lines[: -MOST_NAMED - 1 : -1] if line[1] < line[2]),
        **{key: table[key] for key in ("distance", "least", "basis", "is_divided", "is_cut", "is_of_sets")},
    )


def _parse_quota(found: Any) -> ClassShares:
    return ClassShares(**{**found, "classes": tuple(found["classes"]), "shares": tuple(found["shares"])})


def _count_errors(confusion_CT: Int64s, place: int, names: tuple[str, ...]) -> Json:
    """Count the rows to which the teacher gave the class, and the right ones; name the true class of most others."""
    of_C = confusion_CT[:, place].copy()
    num_rows, right = int(of_C.sum()), int(of_C[place])
    of_C[place] = 0
    other = int(of_C.argmax())
    confused = {"name": names[other], "rows": int(of_C[other])} if of_C[other] else None
    return {"labelled": num_rows, "right": right, "confused": confused}
