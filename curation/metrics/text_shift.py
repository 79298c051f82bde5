"""Tests whether the pool's texts look like those of the labelled rows: the test of ``curation.metrics.shift`` on words.

A logistic regression of hashed words is fitted on one half of the texts to tell the two sets apart, and measured on the
other half. Foreign texts are counted as in ``curation.metrics.foreign``, by the classifier's score and by the cosine
distance (of TF-IDF) to the 5th nearest text of the source's fitted half. The source may be hashed already: a trust
package holds the hashes of its labelled texts, not the texts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from curation.metrics import auc
from curation.metrics.foreign import NEIGHBOURS, count_beyond, find_clearest
from curation.metrics.shift import MAX_ROWS, MIN_ROWS, Shift, draw_stratified, rank_test

INPUTS = "questions (their words)"
NUM_HASHES = 1 << 16
MAX_HASHES = 100_000
"""Maximum number of pairs of a text and a hash in a stored sample; a pair takes 4 bytes."""
Words = Any
"""Counts of each hash in each text, with a sign by the word: a sparse matrix of int16, [N, NUM_HASHES]."""


def compare_texts(source: Sequence[str], pool: Sequence[str], *, seed: int) -> Shift:
    """Compare the words of two sets of texts, each distinct text counted once; at most ``MAX_ROWS`` of each set.

    With fewer than 20 distinct texts on a side there is no test (AUC NaN, p 1).
    """
    rng = np.random.default_rng(seed)
    source_NW, pool_MW = (_hash_words(_draw_texts(texts, rng)) for texts in (source, pool))
    return _compare(source_NW, pool_MW, rng)


def compare_with_words(source_NW: Words, pool: Sequence[str], *, seed: int) -> Shift:
    """Compare the words of texts, each distinct text counted once, with the sample from :func:`sample_words`."""
    rng = np.random.default_rng(seed)
    return _compare(source_NW, _hash_words(_draw_texts(pool, rng)), rng)


def sample_words(texts: Sequence[str], *, seed: int) -> Words:
    """Hash the words of a random sample of the distinct texts, as large as ``MAX_HASHES`` allows.

    A sample of fewer than 20 texts is returned empty, since it is too small for a comparison.
    """
    words_NW = _hash_words(_draw_texts(texts, np.random.default_rng(seed)))
    num_kept = int(np.searchsorted(words_NW.indptr, MAX_HASHES, side="right")) - 1
    return words_NW[: num_kept if num_kept >= MIN_ROWS else 0]


def _hash_words(texts: Sequence[str]) -> Words:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import HashingVectorizer  # heavy

    if not texts:
        return csr_matrix((0, NUM_HASHES), dtype=np.int16)
    hashing = HashingVectorizer(n_features=NUM_HASHES, token_pattern=r"(?u)\b\w+\b", norm=None)
    words_NW = hashing.transform(texts)
    limit = np.iinfo(np.int16).max
    words_NW.data = np.clip(words_NW.data, -limit, limit).astype(np.int16)
    return words_NW


def _compare(source_NW: Words, pool_MW: Words, rng: np.random.Generator) -> Shift:
    num_source, num_pool = source_NW.shape[0], pool_MW.shape[0]
    if min(num_source, num_pool) < MIN_ROWS:
        return Shift(auc=auc([], []), p_value=1.0, num_source=num_source, num_pool=num_pool, inputs=INPUTS)
    from scipy.sparse import vstack
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression  # heavy
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import normalize
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    is_pool_N = np.repeat([False, True], [num_source, num_pool])
    words_NW = normalize(vstack([source_NW, pool_MW], format="csr").astype(np.float64))
    held_N = draw_stratified(is_pool_N, 0.5, rng)
    is_pool_H = is_pool_N[held_N]
    fit_F, held_K = np.flatnonzero(~held_N & ~is_pool_N), np.flatnonzero(held_N & ~is_pool_N)
    with threadpool_limits(1):
        model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=300)
        model.fit(words_NW[~held_N], is_pool_N[~held_N])
        scores_H = model.decision_function(words_NW[held_N]).astype(np.float32)
        rarity = TfidfTransformer().fit(source_NW[fit_F])
        near = NearestNeighbors(n_neighbors=NEIGHBOURS, metric="cosine").fit(rarity.transform(source_NW[fit_F]))
        source_K, pool_M = (near.kneighbors(rarity.transform(part))[0][:, -1] for part in (source_NW[held_K], pool_MW))
    foreign = [
        count_beyond(source_K, pool_M, "distance"),
        count_beyond(scores_H[~is_pool_H], scores_H[is_pool_H], "classifier"),
    ]
    return Shift(
        auc=auc(scores_H, is_pool_H),
        p_value=rank_test(scores_H, is_pool_H),
        num_source=num_source,
        num_pool=num_pool,
        inputs=INPUTS,
        foreign=find_clearest(foreign),
    )


def _draw_texts(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return at most ``MAX_ROWS`` of the distinct texts, in random order."""
    different = [*dict.fromkeys(texts)]
    return [different[place] for place in rng.permutation(len(different))[:MAX_ROWS]]
