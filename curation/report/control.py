"""Checks on labelled rows: a baseline without a teacher, the accuracy of a guess, and whether short options win.

The baseline is a logistic regression on the words of the text. It is measured if labels are a closed set, and takes
seconds. If its surest rows are right more often than those that trust puts first, the teacher and its trust add
nothing, and the verdict says so. Predictions are out-of-fold: no row is judged by a model that has seen its label.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools, Float64s, Int64s
from curation.domains import Domain, attempt
from curation.hashing import derive
from curation.metrics import Estimate, compute_share_right
from curation.refs import TableRef
from curation.report.evidence import QUANTILE, Control, OptionLengths
from curation.report.rows import GradedRows, draw_rows

FEW_ROWS, FEW_OPTIONS = 50, 30
"""Minimum numbers of rows for the baseline, and for the lengths of options."""
NUM_FOLDS = 5
MOST_WORDS = 50_000
"""Maximum number of words that are features. With pairs of words the classifier was slower, and worse on BANKING77
(300 and 1,000 rows: 38 and 59 % right instead of 52 and 66)."""
WORD = r"(?u)\b\w+\b"
"""Pattern of a word; scikit-learn's default leaves out words of one letter."""


def measure_control(
    examples: TableRef, domain: Domain, held: GradedRows, function: str, share: float, *, seed: int, confidence: float
) -> Control | None:
    """Return a trust function's baseline, or ``None`` with open labels or fewer than ``FEW_ROWS`` known gold labels.

    ``examples`` are the labelled rows, ``held`` the parsed ones with an out-of-sample score, one per question. The
    ``share`` of the pool that is selected is also the share of these rows that is compared.
    """
    classes = domain.closed_labels()
    if classes is None or function not in held.scores:
        return None
    needed = ["row_id", "gold", *domain.columns.names]
    rows = draw_rows(examples, held.row_ids_N, needed, derive(seed, "control"))
    asked = {row["row_id"]: (attempt(domain.prompt, row)[0], row["gold"]) for row in rows}
    known = {row_id: (text, gold) for row_id, (text, gold) in asked.items() if text is not None and gold in classes}
    held = held.subset(np.isin(held.row_ids_N, [*known]))
    texts, gold = zip(*(known[row_id] for row_id in held.row_ids_N.tolist()), strict=True) if known else ((), ())
    if len(texts) < FEW_ROWS or len({*gold}) < 2:
        return None
    seed = derive(seed, "control folds")
    right_N, sure_N = predict_out_of_fold(texts, np.array(gold), seed, cluster_N=held.cluster_N)
    num_top = max(1, round(share * len(held)))

    def best(score_N: Float64s, correct_N: Bools) -> Estimate:
        first_M = np.argsort(-score_N, kind="stable")[:num_top]
        cluster_M = None if held.cluster_N is None else held.cluster_N[first_M]
        return compute_share_right(correct_N[first_M], cluster_M, confidence=confidence)

    return Control(
        accuracy=compute_share_right(right_N, held.cluster_N, confidence=confidence),
        top=best(sure_N, right_N),
        trust_top=best(held.scores[function].raw_N, held.correct_N),
    )


def predict_out_of_fold(
    texts: Sequence[str], gold_N: npt.NDArray[np.str_], seed: int, *, cluster_N: Int64s | None = None
) -> tuple[Bools, Float64s]:
    """Return whether the classifier is right on each text, bool [N], and the probability of its own label, [N].

    No fold divides a cluster; with fewer clusters than folds, each cluster is a fold.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # heavy
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, KFold
    from sklearn.pipeline import make_pipeline
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    right_N, sure_N = np.zeros(len(texts), dtype=np.bool_), np.zeros(len(texts))
    drawn: dict[str, Any] = {"shuffle": True, "random_state": seed % (1 << 32)}
    if cluster_N is None:
        parts = KFold(NUM_FOLDS, **drawn).split(texts)
    elif (num := min(NUM_FOLDS, len(np.unique(cluster_N)))) < 2:
        return right_N, sure_N
    else:
        parts = GroupKFold(num, **drawn).split(texts, groups=cluster_N)
    for fitted_M, held_M in parts:
        if len({*gold_N[fitted_M]}) < 2:
            continue
        words = TfidfVectorizer(sublinear_tf=True, max_features=MOST_WORDS, token_pattern=WORD)
        model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
        with threadpool_limits(1):  # small products; on a busy machine threads that wait for each other take minutes
            model.fit([texts[place] for place in fitted_M], gold_N[fitted_M])
            given_MC = model.predict_proba([texts[place] for place in held_M])
        right_N[held_M] = model.classes_[given_MC.argmax(axis=1)] == gold_N[held_M]
        sure_N[held_M] = given_MC.max(axis=1)
    return right_N, sure_N


def measure_option_lengths(
    examples: TableRef, labels: TableRef, domain: Domain, row_ids_N: Int64s, seed: int
) -> OptionLengths | None:
    """Return statistics of rows that have options of several lengths; ``None`` if fewer than ``FEW_OPTIONS`` do.

    ``examples`` are labelled rows with gold labels, ``labels`` the teacher's labels with ``option_logprobs``.
    """
    needed, seed = ["row_id", "gold", *domain.columns.names], derive(seed, "option lengths")
    scored = draw_rows(labels, row_ids_N, ["row_id", "option_logprobs"], seed)
    scores = {row["row_id"]: row["option_logprobs"] for row in scored if row["option_logprobs"]}
    shorter: list[int] = []
    gains: list[int] = []
    pairs: list[tuple[int, float]] = []
    for row in draw_rows(examples, row_ids_N, needed, seed) if scores else ():
        options, _ = attempt(domain.options, row)
        found = scores.get(row["row_id"])
        if not options or found is None or len(found) != len(options) or len({*map(len, options)}) == 1:
            continue
        right = [attempt(domain.parse, option, row)[0] == row["gold"] for option in options]
        if sum(right) != 1:
            continue
        lengths, score = np.array([len(option) for option in options]), np.array(found, dtype=np.float64)
        chosen, by_length = int(score.argmax()), int((score / np.maximum(lengths, 1)).argmax())
        shorter.append(int(lengths[right.index(True)] - lengths[chosen]))
        gains.append(int(right[by_length]) - int(right[chosen]))
        pairs += zip(lengths.tolist(), score.tolist(), strict=True)
    if len(shorter) < FEW_OPTIONS:
        return None
    length_M, score_M = np.array(pairs).T
    short_M = length_M <= np.median(length_M)
    halves = [half_M for half_M in (short_M, ~short_M) if half_M.any()]
    scores_of = tuple((round(float(length_M[half_M].mean())), float(score_M[half_M].mean())) for half_M in halves)
    return OptionLengths(shorter=_compute_mean(shorter), gain=_compute_mean(gains), scores=scores_of)


def _compute_mean(values: list[int]) -> Estimate:
    value, n = float(np.mean(values)), len(values)
    margin = QUANTILE * math.sqrt(float(np.var(values)) / n)
    return Estimate(value=value, low=value - margin, high=value + margin, n=n)


def compute_chance(examples: TableRef, domain: Domain, row_ids_N: Int64s, seed: int) -> float | None:
    """Return the mean over rows of 1 / the number of possible answers, or ``None`` if no number is known."""
    rows = draw_rows(examples, row_ids_N, ["row_id", *domain.columns.names], derive(seed, "chance"))
    known = [1 / number for row in rows if (number := attempt(domain.num_answers, row)[0])]
    return sum(known) / len(known) if known else None
