"""The share of pool rows that are unlike the labelled rows, where a two-sample AUC sees too little of a minority.

If a share s of the pool is foreign and the rest has the distribution of the source, a classifier's AUC is at most
.5 + s / 2: 10 % of foreign rows give .55 at best. But the highest held-out scores belong to few source rows and to most
foreign rows. So pool rows with a score above a high quantile of the source's scores are counted. A second count uses
the distance to the 5th nearest source row, in the whitened principal components of the states: it finds rows that are
far from all source rows, in whatever direction.

The source rows that serve as a yardstick are used to fit neither the classifier nor the components. So their values and
the pool's are exchangeable if nothing differs, and the number of pool rows beyond the yardstick's k-th largest value is
beta-binomial, whatever the distribution. The estimate is by nature a lower bound: foreign rows that look like source
rows are not counted (mixture proportions: Blanchard, Lee and Scott, JMLR 2010).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from curation.arrays import Bools, Float32s
from curation.json_types import Json
from curation.metrics.estimates import Estimate, compute_proportion, make_undefined

TAIL = 0.01
"""Share of the source rows beyond the yardstick's quantile."""
SHOWN_P, ALARM_P = 0.01, 1e-3
"""Upper limits of the p-value for a report of foreign rows and for an alarm. The alarm's limit is lower, since the test
is repeated for each delivery, while a report is made once."""
SHOWN_SHARE, ALARM_SHARE = 0.01, 0.02
"""Minimum share of foreign rows for a report and for an alarm."""
MIN_PASSING = 50
"""Minimum number of labelled rows in a yardstick; the cut is lowered on both sides until this many pass it."""
NEIGHBOURS, COMPONENTS = 5, 16
_CLIP = 10.0
_FLAT = 0.01
"""Components with less than this share of the largest standard deviation are rounding noise and not whitened."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A test for pool rows that are unlike the source's."""

    share: Estimate
    """Share of foreign rows among n pool rows; its conservative 95 % bounds combine two 97.5 % intervals."""
    p_value: float
    """One-sided p-value, exact if the rows are independent draws."""
    by: str
    """Measure of how unlike the source a row is: ``distance`` to the source, or the ``classifier``'s score."""

    @property
    def is_shown(self) -> bool:
        """Whether the test shows foreign rows clearly enough for a report."""
        return self.p_value < SHOWN_P and self.share.value >= SHOWN_SHARE

    @property
    def alarm(self) -> bool:
        """Whether the test shows foreign rows clearly enough for an alarm, and enough of them to matter."""
        return self.p_value < ALARM_P and self.share.value >= ALARM_SHARE

    def to_json(self) -> Json:
        """Return the test as a JSON object."""
        return {"share": self.share.to_json(), "p_value": self.p_value, "by": self.by, "alarm": self.alarm}


def count_beyond(source_K: ArrayLike, pool_M: ArrayLike, by: str) -> Foreign:
    """Count the pool's values beyond a high quantile of the source's values; larger values are less like the source.

    If either side has no values, the share is NaN and the p-value 1.
    """
    source, pool = np.sort(np.asarray(source_K)), np.asarray(pool_M)
    n, m = len(source), len(pool)
    if not n or not m:
        return Foreign(share=make_undefined(m), p_value=1.0, by=by)
    k = max(1, round(TAIL * (n + 1)))
    num_beyond = int((pool > source[-k]).sum())
    beyond, usual = compute_proportion(num_beyond, m, confidence=0.975), scipy.stats.beta(k, n + 1 - k)
    pairs = (beyond.value, usual.mean()), (beyond.low, usual.ppf(0.9875)), (beyond.high, usual.ppf(0.0125))
    # The foreign share of a pool of which a share lies beyond the quantile, if the source's share is the usual one.
    value, low, high = (max(0.0, (share - float(usual)) / (1 - float(usual))) for share, usual in pairs)
    share = Estimate(value=value, low=low, high=high, n=m)
    return Foreign(share=share, p_value=float(scipy.stats.betabinom.sf(num_beyond - 1, m, k, n + 1 - k)), by=by)


class Distances(NamedTuple):
    """Distances of rows to the source rows."""

    held_N: Bools
    """Mask of the source rows that serve as a yardstick."""
    source_K: Float32s
    """Distances of the yardstick's rows, in the order of the source rows."""
    pool_M: Float32s


def compute_distances(source_ND: NDArray[Any], pool_MD: NDArray[Any], rng: np.random.Generator) -> Distances:
    """Return the distances of half of the source rows, and of all pool rows, to the other half of the source.

    Copies of a source row are left out: they would make the yardstick's distances too short. All rows must be finite.
    """
    from sklearn.decomposition import PCA  # slow to import
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import StandardScaler

    first = {row.tobytes(): place for place, row in reversed(list(enumerate(source_ND)))}
    rows = rng.permutation(sorted(first.values()))
    held_N = np.zeros(len(source_ND), dtype=np.bool_)
    if len(rows) < 2 * NEIGHBOURS or not len(pool_MD):  # too few that differ: there is no yardstick
        return Distances(held_N, np.zeros(0, np.float32), np.zeros(len(pool_MD), np.float32))
    held_N[rows[: len(rows) // 2]] = True
    fit_FD = source_ND[rows[len(rows) // 2 :]].astype(np.float32)
    scaler = StandardScaler().fit(fit_FD)

    def standardised(part: NDArray[Any]) -> Float32s:
        return np.asarray(np.clip(scaler.transform(part.astype(np.float32)), -_CLIP, _CLIP))

    fit_FD = standardised(fit_FD)
    num = max(1, min(COMPONENTS, len(fit_FD) // NEIGHBOURS, fit_FD.shape[1]))
    pca = PCA(num, svd_solver="randomized", random_state=int(rng.integers(1 << 31))).fit(fit_FD)
    spread_C = np.sqrt(pca.explained_variance_)
    spread_C = np.where(spread_C > _FLAT * spread_C[0], spread_C, 1)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS, algorithm="brute")
    near.fit(pca.transform(fit_FD) / spread_C)
    source_K, pool_M = (
        near.kneighbors(pca.transform(standardised(part)) / spread_C)[0][:, -1].astype(np.float32)
        for part in (source_ND[held_N], pool_MD)
    )
    return Distances(held_N, source_K, pool_M)


def count_passing(found: Distances, score_N: Float32s, score_M: Float32s, least: np.float32) -> Foreign | None:
    """Count the foreign rows among pool rows that pass a cut, compared with the labelled rows that pass it.

    ``score_N`` and ``score_M`` are scores of labelled (held-out ones) and of pool rows, NaN for rows without one.
    ``least``, the lowest score that passes, is lowered until ``MIN_PASSING`` rows of the yardstick pass. Return
    ``None`` if no pool row passes, or if too few labelled rows of the yardstick have a score.
    """
    score_K = score_N[found.held_N]
    known = np.sort(score_K[~np.isnan(score_K)])
    if len(known) < MIN_PASSING or not (score_M >= least).any():
        return None
    least = min(least, known[-MIN_PASSING])
    return count_beyond(found.source_K[score_K >= least], found.pool_M[score_M >= least], "distance")
