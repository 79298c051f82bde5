"""Tests whether the pool's texts look like those of the labelled rows: the test of ``curation.metrics.shift`` on words.

A logistic regression of hashed words, fitted on one half of the texts, tells the two sets apart on the other half.
"""

from collections.abc import Sequence

import numpy as np

from curation.metrics import auc
from curation.metrics.shift import MAX_ROWS, MIN_ROWS, Shift, rank_test, stratified

INPUTS = "questions (their words)"
_NUM_WORDS = 1 << 16


def compare_texts(source: Sequence[str], pool: Sequence[str], *, seed: int) -> Shift:
    """Compare the words of two sets of texts, of which each text counts once; at most ``MAX_ROWS`` of each.

    With fewer than 20 different texts on a side there is no test (AUC NaN, p 1).
    """
    rng = np.random.default_rng(seed)
    sides = [_drawn(texts, rng) for texts in (source, pool)]
    num_source, num_pool = map(len, sides)
    if min(num_source, num_pool) < MIN_ROWS:
        return Shift(auc=auc([], []), p_value=1.0, num_source=num_source, num_pool=num_pool, inputs=INPUTS)
    from sklearn.feature_extraction.text import HashingVectorizer  # heavy
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    is_pool_N = np.repeat([False, True], [num_source, num_pool])
    words_NW = HashingVectorizer(n_features=_NUM_WORDS, token_pattern=r"(?u)\b\w+\b").transform([*sides[0], *sides[1]])
    held_N = stratified(is_pool_N, 0.5, rng)
    with threadpool_limits(1):
        model = LogisticRegression(C=10.0, class_weight="balanced", max_iter=300)
        model.fit(words_NW[~held_N], is_pool_N[~held_N])
        scores_H = model.decision_function(words_NW[held_N]).astype(np.float32)
    return Shift(
        auc=auc(scores_H, is_pool_N[held_N]),
        p_value=rank_test(scores_H, is_pool_N[held_N]),
        num_source=num_source,
        num_pool=num_pool,
        inputs=INPUTS,
    )


def _drawn(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return at most ``MAX_ROWS`` of the different texts, in random order."""
    different = [*dict.fromkeys(texts)]
    return [different[place] for place in rng.permutation(len(different))[:MAX_ROWS]]
