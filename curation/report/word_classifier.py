"""A logistic regression on the words of texts; each text is judged by a model that has not seen its label."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from curation.arrays import Bools, Float64s, Int64s

NUM_FOLDS = 5
MOST_WORDS = 50_000
"""Maximum number of words that are features. With pairs of words the classifier was slower, and worse on BANKING77
(300 and 1,000 rows: 38 and 59 % right instead of 52 and 66)."""
WORD = r"(?u)\b\w+\b"
"""Pattern of a word; scikit-learn's default leaves out words of one letter."""


def predict_out_of_fold(
    texts: Sequence[str], gold_N: npt.NDArray[np.str_], seed: int, *, cluster_N: Int64s | None = None
) -> tuple[Bools, Float64s]:
    """Return whether the classifier is right on each text, bool [N], and the probability of its own label, [N].

    No fold divides a cluster; with fewer clusters than folds, each cluster is a fold.
    """
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
