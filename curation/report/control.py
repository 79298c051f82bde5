"""A baseline without a teacher: a logistic regression on the words of the text, fitted on the labelled rows.

It is measured if labels are a closed set, and takes seconds. If its surest rows are right more often than those that
trust puts first, the teacher and its trust add nothing, and the verdict says so. Predictions are out-of-fold: no row is
judged by a model that has seen its label.
"""

import numpy as np

from curation.arrays import Bools, Float64s
from curation.domains import Domain, attempt
from curation.hashing import derive, hash_unit
from curation.metrics import Estimate, compute_share_right
from curation.refs import TableRef
from curation.report.evidence import Control, Evidence, compute_difference
from curation.report.headline import format_percent
from curation.report.levels import CARE, Finding
from curation.report.rows import Judged
from curation.tables import io

MOST_ROWS = 2_000
"""Maximum number of labelled rows to read, drawn by a hash of the row id."""
FEW_ROWS = 50


def measure_control(
    examples: TableRef, domain: Domain, held: Judged, function: str, share: float, *, seed: int, confidence: float
) -> Control | None:
    """Return a trust function's baseline, or ``None`` with open labels or fewer than ``FEW_ROWS`` known gold labels.

    Args:
        examples: the labelled rows with their gold labels.
        domain: the domain of the rows.
        held: parsed rows with an out-of-sample score, one per question.
        function: the trust function.
        share: the share of the pool that is selected; the same share of these rows is compared.
        seed: the seed of the folds and the draw.
        confidence: the confidence of the intervals.
    """
    classes = domain.closed_labels()
    if classes is None or function not in held.scores:
        return None
    needed = ["row_id", "gold", *domain.columns.names]
    if not {*needed} <= {*io.open_table(examples).schema.names}:
        return None
    near_N = hash_unit(held.row_ids_N, derive(seed, "control"))
    ids_N = np.sort(held.row_ids_N[np.argsort(near_N)[:MOST_ROWS]])
    rows = io.take(examples, ids_N, needed).to_pylist()
    asked = {row["row_id"]: (attempt(domain.prompt, row)[0], row["gold"]) for row in rows}
    known = {row_id: (text, gold) for row_id, (text, gold) in asked.items() if text is not None and gold in classes}
    held = held.subset(np.isin(held.row_ids_N, [*known]))
    texts, gold = zip(*(known[row_id] for row_id in held.row_ids_N.tolist()), strict=True) if known else ((), ())
    if len(texts) < FEW_ROWS or len({*gold}) < 2:
        return None
    from curation.report.word_classifier import predict_out_of_fold  # heavy

    right_N, sure_N = predict_out_of_fold(
        texts, np.array(gold), derive(seed, "control folds"), cluster_N=held.cluster_N
    )
    num_top = max(1, round(share * len(held)))

    def best(score_N: Float64s, correct_N: Bools) -> Estimate:
        first_M = np.argsort(-score_N, kind="stable")[:num_top]
        return compute_share_right(
            correct_N[first_M], None if held.cluster_N is None else held.cluster_N[first_M], confidence=confidence
        )

    return Control(
        accuracy=compute_share_right(right_N, held.cluster_N, confidence=confidence),
        top=best(sure_N, right_N),
        trust_top=best(held.scores[function].raw_N, held.correct_N),
    )


def find_plain_words(evidence: Evidence) -> Finding | None:
    """Return a finding if the baseline without a teacher is right more often on its surest rows than trust's labels."""
    found = evidence.control
    if found is None or compute_difference(found.top, found.trust_top).low <= 0:
        return None
    return CARE, (
        f"a plain classifier of words, fitted on the same labelled rows, is right on "
        f"{format_percent(found.top.value)} of the {found.top.n:,} that it is surest of; of those that trust puts "
        f"first {format_percent(found.trust_top.value)} are right (held-out rows, {found.accuracy.n:,} in all)"
    )
