"""Tests whether the pool looks like the labelled rows: a classifier two-sample test on hidden states.

What a trust function learned on the source, and every guarantee from calibration rows, holds only if the pool's rows
come from the same distribution. The test fits a classifier on one half of the rows to tell the two sets apart, and
measures it on the other half (Lopez-Paz and Oquab, ICLR 2017). If both sets have one distribution, their held-out
scores are exchangeable, whatever was fitted. So the rank test (Mann-Whitney, one-sided) keeps its level at any
dimension and number of rows. Its statistic, the AUC, measures how far apart the two sets are. Ranks are more
informative than the accuracy of the original test, which ignores how sure the classifier is.

The classifier is ridge regression on standardised states. Its penalty grows with the number of dimensions, so that many
dimensions and few rows do no harm. A part of the fitted half decides whether squared states are features too, for a
shift in spread. The test detects shifts of mean and of spread, but not of correlations alone.

A minority of foreign rows hardly moves the AUC, so such rows are counted too (:mod:`curation.metrics.foreign`).

Texts are compared by a logistic regression of hashed words, and by the cosine distance (of TF-IDF) to the 5th nearest
text of the source's fitted half. The source may be hashed already: a trust package holds the hashes of its labelled
texts, not the texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from curation.arrays import Bools, Float32s, Int64s
from curation.hashing import derive, hash_unit
from curation.json_types import Json
from curation.metrics import ALPHA, Estimate, auc, compute_auc_value
from curation.metrics.foreign import NEIGHBOURS, Distances, Foreign, compute_distances, count_beyond

Strength = Literal["untested", "none shown", "slight", "minority", "clear", "severe"]

MAX_ROWS = 5000
MIN_ROWS = 20
CLEAR_AUC, SEVERE_AUC = 0.6, 0.8
_PENALTY = 0.1
_MAX_STEPS = 30
_INNER_SHARE = 0.25
_CLIP = 5.0
_CONVERGED = 1e-8


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The result of a test of how well a classifier distinguishes pool rows from source rows, on held-out rows.

    ``auc`` is 0.5 if it cannot tell and 1 if it always can; its n is the number of held-out rows. ``p_value`` is
    one-sided, for an AUC above 0.5. ``num_source`` and ``num_pool`` count all rows used, held-out and fitted ones.
    """

    auc: Estimate
    p_value: float
    num_source: int
    num_pool: int
    inputs: str = "hidden states"
    """Name of the values that were compared, in words."""
    foreign: Foreign | None = None
    """Test for pool rows that are unlike the source's, or None if there was no test."""

    @property
    def has_minority(self) -> bool:
        """Whether the test shows a minority of foreign rows."""
        return self.foreign is not None and self.foreign.is_shown

    @property
    def differs(self) -> bool:
        """Whether the test shows a difference at the 5 % level, or a minority of foreign rows."""
        return self.p_value < ALPHA or self.has_minority

    @property
    def alarm(self) -> bool:
        """Whether the pool differs clearly: the AUC's whole interval is above 0.6, or foreign rows are an alarm.

        A test at the 5 % level, repeated for each delivery of rows, would raise a false alarm in one of twenty.
        """
        by_auc = self.p_value < ALPHA and self.auc.low > CLEAR_AUC
        return by_auc or (self.foreign is not None and self.foreign.alarm)

    @property
    def strength(self) -> Strength:
        """The strength of a difference: ``slight`` for an AUC below .6, ``clear`` for one below .8, else ``severe``.

        ``minority`` is an AUC below .6 with foreign rows.
        """
        if min(self.num_source, self.num_pool) < MIN_ROWS:
            return "untested"
        if not self.differs:
            return "none shown"
        if self.auc.value < CLEAR_AUC:
            return "minority" if self.has_minority else "slight"
        return "clear" if self.auc.value < SEVERE_AUC else "severe"

    def in_words(self) -> str:
        """Return the AUC, and the share of foreign rows if the test shows any; empty if untested."""
        if self.strength == "untested":
            return ""
        auc = f"AUC {self.auc.value:.3f} [{self.auc.low:.3f}, {self.auc.high:.3f}]"
        if self.foreign is not None and self.foreign.is_shown:
            share = self.foreign.share
            return f"{auc}, and {format_share_interval(share)} of {share.n:,} rows are unlike any labelled one"
        return auc

    def warning(self) -> str | None:
        """Return a warning for the report, or ``None`` if the test shows no difference."""
        if self.strength == "none shown":
            return None
        if self.strength == "untested":
            return (
                f"Whether the {self.inputs} differ is untested: {self.num_source:,} labelled rows and "
                f"{self.num_pool:,} of the pool have finite ones, {MIN_ROWS} of each are needed. Trust measured on the "
                "labelled rows, and guarantees calibrated on them, hold on the pool only where they do not differ."
            )
        return (
            f"The {self.inputs} differ ({self.strength}: a classifier tells the pool's from those of the labelled "
            f"rows on {self.auc.n:,} held-out rows with {self.in_words()}): trust measured on the labelled rows need "
            "not hold on the pool, and no guarantee calibrated on them does. Measure and calibrate on labelled rows of "
            "the pool."
        )

    def to_json(self) -> Json:
        """Return the comparison as a JSON object."""
        return {
            **vars(self),
            "auc": self.auc.to_json(),
            "foreign": None if self.foreign is None else self.foreign.to_json(),
            **{name: getattr(self, name) for name in ("differs", "alarm", "strength")},
            "in_words": self.in_words(),
            "warning": self.warning(),
        }


def mark_sampled(row_ids_N: Int64s, num_rows: int, seed: int) -> Bools:
    """Return a mask [N] of the rows to compare: about ``MAX_ROWS`` of a split's ``num_rows``, by a hash of the row id.

    The choice depends on each row alone, so that a labelling actor knows which rows' states to keep.
    """
    return np.asarray(hash_unit(row_ids_N, derive(seed, "shift")) * num_rows < MAX_ROWS)


def compare_samples(source_ND: ArrayLike, pool_MD: ArrayLike, *, seed: int, max_rows: int = MAX_ROWS) -> Shift:
    """Compare the hidden states of source and pool rows; at most ``max_rows`` of each, drawn by ``seed``.

    Rows with a NaN or an infinity are skipped. If fewer than 20 rows remain on a side there is no test (AUC NaN, p 1).
    The rows of each side must be independent draws: repeated rows in both halves look like a difference.
    """
    rng = np.random.default_rng(seed)
    source, pool = np.asarray(source_ND), np.asarray(pool_MD)
    if source.ndim != 2 or pool.ndim != 2 or (len(source) and len(pool) and source.shape[1] != pool.shape[1]):
        raise ValueError(f"states have shapes {source.shape} and {pool.shape}, not [N, D] and [M, D]")
    sides = []
    for states in (source, pool):
        finite = np.flatnonzero(np.isfinite(states).all(axis=1))
        sides.append(np.asarray(states[rng.permutation(finite)[:max_rows]], dtype=np.float32))
    num_source, num_pool = map(len, sides)
    if min(num_source, num_pool) < MIN_ROWS:
        return Shift(auc=auc([], []), p_value=1.0, num_source=num_source, num_pool=num_pool)
    states_ND, is_pool_N = np.concatenate(sides), np.repeat([False, True], [num_source, num_pool])
    held_N = draw_stratified(is_pool_N, 0.5, rng)
    fit_FD, is_pool_F = states_ND[~held_N], is_pool_N[~held_N]
    inner_F, reached = draw_stratified(is_pool_F, _INNER_SHARE, rng), []
    for squares in (False, True):
        fit, inner = _make_features(fit_FD[~inner_F], fit_FD[inner_F], squares)
        reached.append(compute_auc_value(inner @ _fit_ridge(fit, is_pool_F[~inner_F]), is_pool_F[inner_F]))
    fit, held = _make_features(fit_FD, states_ND[held_N], squares=reached[1] > reached[0])
    scores_H = np.asarray(held @ _fit_ridge(fit, is_pool_F))  # how much a row looks like a pool row
    distances = compute_distances(sides[0], sides[1], rng)
    return _test_scores(scores_H, is_pool_N[held_N], distances, num_source=num_source, num_pool=num_pool)


def _test_scores(scores_H: Float32s, is_pool_H: Bools, distances: Distances, **further: Any) -> Shift:
    """Test held-out scores, which are higher for rows that look like pool rows, and count foreign rows."""
    foreign = [
        count_beyond(distances.source_K, distances.pool_M, "distance"),
        count_beyond(scores_H[~is_pool_H], scores_H[is_pool_H], "classifier"),
    ]
    scores = scores_H.astype(np.float64)  # SciPy would give a float32 p-value, and small ones as 0
    ranks = scipy.stats.mannwhitneyu(scores[is_pool_H], scores[~is_pool_H], alternative="greater")
    clearest = min(foreign, key=lambda test: (-test.share.low, test.p_value))
    found = replace(clearest, p_value=min(1.0, len(foreign) * clearest.p_value))  # Bonferroni
    return Shift(auc=auc(scores_H, is_pool_H), p_value=float(ranks.pvalue), foreign=found, **further)


def format_share_interval(share: Estimate) -> str:
    """Return a share with its interval, in per cent."""
    return f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def describe_passing(foreign: Foreign) -> str:
    """Return the share of foreign rows among the rows that pass a cut, in words."""
    share = foreign.share
    return (
        f"{format_share_interval(share)} of {share.n:,} rows looked at that pass the cut are unlike the labelled rows "
        "that pass it, and trust says nothing of them"
    )


def draw_stratified(is_pool_N: Bools, share: float, rng: np.random.Generator) -> Bools:
    """Return a mask of a random share of the rows of each side, source and pool, at least one row each."""
    marked_N = np.zeros(len(is_pool_N), dtype=np.bool_)
    for side in (False, True):
        rows = rng.permutation(np.flatnonzero(is_pool_N == side))
        marked_N[rows[: max(1, round(share * len(rows)))]] = True
    return marked_N


def _make_features(fit_FD: Float32s, held_HD: Float32s, squares: bool) -> tuple[Float32s, Float32s]:
    """Return both parts, standardised by the fitted part and clipped; append centred squares if ``squares``."""
    mean_D, sd_D = fit_FD.mean(axis=0), fit_FD.std(axis=0)
    scale_D = np.where(sd_D > 0, sd_D, 1)
    fit, held = (np.clip((part - mean_D) / scale_D, -_CLIP, _CLIP) for part in (fit_FD, held_HD))
    if squares:
        centre_D = (fit**2).mean(axis=0)
        fit, held = (np.concatenate([part, part**2 - centre_D], axis=1) for part in (fit, held))
    return fit, held


def _fit_ridge(features_FD: Float32s, is_pool_F: Bools) -> Float32s:
    """Return the weights [D] of ridge regression, by conjugate gradients, without a matrix of D x D or F x F."""
    penalty = _PENALTY * features_FD.shape[1]
    residual_F = is_pool_F - is_pool_F.mean(dtype=np.float32)
    gradient_D = features_FD.T @ residual_F
    weights_D, direction_D = np.zeros_like(gradient_D), gradient_D
    first = square = float(gradient_D @ gradient_D)
    for _ in range(_MAX_STEPS):
        if square <= _CONVERGED * first:  # immediately if all states are equal
            break
        image_F = features_FD @ direction_D
        length = square / float(image_F @ image_F + penalty * (direction_D @ direction_D))
        weights_D = weights_D + length * direction_D
        residual_F = residual_F - length * image_F
        gradient_D = features_FD.T @ residual_F - penalty * weights_D
        previous, square = square, float(gradient_D @ gradient_D)
        direction_D = gradient_D + square / previous * direction_D
    return np.asarray(weights_D)


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
    source_NW, pool_MW = (_hash_words(texts, rng) for texts in (source, pool))
    return _compare_words(source_NW, pool_MW, rng)


def compare_with_words(source_NW: Words, pool: Sequence[str], *, seed: int) -> Shift:
    """Compare the words of texts, each distinct text counted once, with the sample from :func:`sample_words`."""
    rng = np.random.default_rng(seed)
    return _compare_words(source_NW, _hash_words(pool, rng), rng)


def sample_words(texts: Sequence[str], *, seed: int) -> Words:
    """Hash the words of a random sample of the distinct texts, as large as ``MAX_HASHES`` allows.

    A sample of fewer than 20 texts is returned empty, since it is too small for a comparison.
    """
    words_NW = _hash_words(texts, np.random.default_rng(seed))
    num_kept = int(np.searchsorted(words_NW.indptr, MAX_HASHES, side="right")) - 1
    return words_NW[: num_kept if num_kept >= MIN_ROWS else 0]


def _hash_words(texts: Sequence[str], rng: np.random.Generator) -> Words:
    """Hash the words of at most ``MAX_ROWS`` of the distinct texts, in random order."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import HashingVectorizer  # heavy

    different = [*dict.fromkeys(texts)]
    drawn = [different[place] for place in rng.permutation(len(different))[:MAX_ROWS]]
    if not drawn:
        return csr_matrix((0, NUM_HASHES), dtype=np.int16)
    hashing = HashingVectorizer(n_features=NUM_HASHES, token_pattern=r"(?u)\b\w+\b", norm=None)
    words_NW = hashing.transform(drawn)
    limit = np.iinfo(np.int16).max
    words_NW.data = np.clip(words_NW.data, -limit, limit).astype(np.int16)
    return words_NW


def _compare_words(source_NW: Words, pool_MW: Words, rng: np.random.Generator) -> Shift:
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
    found = Distances(held_N[:num_source], source_K, pool_M)
    return _test_scores(scores_H, is_pool_H, found, num_source=num_source, num_pool=num_pool, inputs=INPUTS)
