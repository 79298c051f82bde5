"""Results of a review: the purity of the selection, and a new certified cut.

:func:`curation.selection.risk.calibrate` certifies the cut on the uniform part of the draw, within the region of the
review. For any threshold, the uniform part contains a simple random sample of the region's rows at or above it,
however good the scores are; drawing without replacement only makes the binomial test more conservative. So the
guarantee needs no assumption on the origin of calibration rows. A row that is unsure or not judged yet counts as wrong.
So the cut is valid however people chose the rows to judge, and early looks at it cost nothing: judging another row can
only lower the number of wrong rows. A row that one person found right and another wrong is unsure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from curation.errors import ReviewError
from curation.extras.review.folder import FORMAT, Review, write_record
from curation.extras.review.source import find_review_rows
from curation.hashing import derive
from curation.json_types import Json
from curation.metrics import Estimate, compute_finite_share, compute_weighted_mean
from curation.selection.review import Stratum
from curation.selection.risk import calibrate

ALPHA = DELTA = 0.1
"""Default ``alpha`` and ``delta`` if neither the command nor the run gives them (the paper's values)."""
Answer = Literal["right", "wrong", "unsure", "none"]
Answers = npt.NDArray[np.str_]


def count_answers(answer_M: Answers) -> dict[str, int]:
    """Return the number of rows by answer."""
    return {answer: int((answer_M == answer).sum()) for answer in get_args(Answer)}


def conclude(review: Review, *, alpha: float | None, delta: float | None) -> Json:
    """Write the result to ``review.json`` and return it; a ``ReviewError`` if no row has a verdict."""
    rows, drawn, strata, verdicts = review.rows, review.drawn, review.strata, review.read_verdicts()
    if not verdicts:
        raise ReviewError(
            f"{review.folder}: none of its {len(rows):,} rows has a verdict; give some by `curate review export` and "
            "`curate review import`"
        )
    answers: list[str] = []
    for row_id in rows["row_id"].to_pylist():
        given = set(verdicts.get(row_id, {}).values())
        decided = given & {"right", "wrong"}  # one person who decides outvotes all who are unsure
        answers.append(decided.pop() if len(decided) == 1 else "unsure" if given else "none")
    answer_M = np.array(answers, dtype=np.str_)
    counts = [count_answers(answer_M[rows["stratum"].to_numpy() == index]) for index in range(len(strata))]
    result = {
        "format": FORMAT,
        "review": review.folder.name,
        **{name: drawn["origin"][name] for name in ("run", "generation", "arm", "ranked", "num_selected")},
        **{name: drawn[name] for name in ("seed", "num_drawn", "num_uniform", "num_region", "floor")},
        "selection": drawn["origin"]["selection"],
        "answers": count_answers(answer_M),
        "people": dict(sorted(Counter(person for people in verdicts.values() for person in people).items())),
        "purity": estimate_share_right(strata, counts, selected=True),
        "below": estimate_share_right(strata, counts, selected=False),
        "strata": [{**asdict(stratum), "answers": count} for stratum, count in zip(strata, counts, strict=True)],
        "cut": _compute_cut(review, answer_M, alpha, delta),
    }
    write_record(review.folder / "review.json", result, review.folder)
    return result


def estimate_share_right(
    strata: Sequence[Stratum], counts: Sequence[Mapping[str, int]], *, selected: bool
) -> Json | None:
    """Return the share of right labels among the selected rows, or among the region's rows below the cut.

    ``value`` and its interval cover the rows that people could decide. ``if_wrong`` and ``if_right`` count every open
    row (unsure) as wrong or as right. Each stratum has an exact interval as a finite population; MOVER combines several
    strata. Rows without a verdict are assumed missing at random, since rows are shown in random order. Return
    None if the region has no such rows, or a stratum has no decided row yet.
    """
    pairs = [(item.num_rows, count) for item, count in zip(strata, counts, strict=True) if item.selected == selected]
    if not pairs or not all(count["right"] + count["wrong"] for _, count in pairs):
        return None
    sizes_S = np.array([num_rows for num_rows, _ in pairs], dtype=np.float64)
    answers = {answer: sum(count[answer] for _, count in pairs) for answer in pairs[0][1]}

    def estimate(counted: Sequence[str], right: Sequence[str]) -> Estimate:
        shares = [
            compute_finite_share(sum(count[name] for name in right), sum(count[name] for name in counted), num_rows)
            for num_rows, count in pairs
        ]
        return compute_weighted_mean(shares, sizes_S / sizes_S.sum())

    decided, judged = ("right", "wrong"), ("right", "wrong", "unsure")
    return {
        **estimate(decided, ["right"]).to_json(),
        "num_rows": int(sizes_S.sum()),
        "method": "exact (hypergeometric)" if len(pairs) == 1 else "stratified (exact in each stratum, MOVER)",
        "num_strata": len(pairs),
        "answers": answers,
        "if_wrong": estimate(judged, ["right"]).to_json(),
        "if_right": estimate(judged, ["right", "unsure"]).to_json(),
    }


def _compute_cut(review: Review, answer_M: Answers, alpha: float | None, delta: float | None) -> Json:
    """Return the certified cut before and after the review; ``after`` is None if the arm does not rank."""
    origin, floor = review.origin, review.drawn["floor"]
    before = origin.risk
    alpha = alpha if alpha is not None else before["alpha"] if before else ALPHA
    delta = delta if delta is not None else before["delta"] if before else DELTA
    cut: Json = {"alpha": alpha, "delta": delta, "before": None, "after": None}
    if before is not None:
        kept = ("threshold", "alpha", "delta", "rule", "kind", "num_calibration", "num_kept", "noise", "bound")
        cut["before"] = {**{name: before[name] for name in kept}, "n": origin.n}
    if not origin.ranked:
        return cut
    pool_N = find_review_rows(origin, floor=floor).raw_N
    uniform_M = review.rows["uniform"].to_numpy()
    found = calibrate(
        review.rows["raw"].to_numpy()[uniform_M],
        answer_M[uniform_M] == "right",
        pool_N,
        alpha=alpha,
        delta=delta,
        seed=derive(review.drawn["seed"], "audit risk"),
        floor=floor,
    )
    threshold = found.threshold
    cut["after"] = {
        **asdict(found),
        "guarantee": found.guarantee if threshold is None else f"{found.guarantee}, which the draw makes true",
        "n": 0 if threshold is None else int((pool_N >= threshold).sum()),
        "num_counted_wrong": int(np.isin(answer_M[uniform_M], ["unsure", "none"]).sum()),
        "at_floor": threshold is not None and threshold <= floor,
    }
    return cut
