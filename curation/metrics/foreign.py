"""The share of pool rows that are unlike the labelled rows, where a two-sample AUC sees too little of a minority.

If a share s of the pool is foreign and the rest is drawn as the source was, a classifier's AUC is at most .5 + s / 2:
10 % of foreign rows give .55 at best. But few source rows have the highest held-out scores, and most foreign ones have.
So the rows beyond a high quantile of the source's are counted. The same is done with the distance to the 5th nearest
of other source rows, in the whitened principal components of the states: it finds rows that are far from all, in
whatever direction.

Neither the classifier nor the components have seen the source rows that serve as a yardstick. So their values and the
pool's are exchangeable if nothing differs, and the number of pool rows beyond the yardstick's k-th largest value is
beta-binomial, whatever the distribution. The estimate is a lower bound in nature: foreign rows that look like the
source's are not counted (mixture proportions: Blanchard, Lee and Scott, JMLR 2010).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from curation.arrays import Bools, Float32s
from curation.json_types import Json
from curation.metrics.estimates import Estimate, compute_proportion, make_undefined

TAIL = 0.01
"""The share of the source beyond the yardstick's quantile."""
SHOWN_P, ALARM_P = 0.01, 1e-3
"""A report, which is made once, tells of foreign rows at a smaller p-value than the first. An alarm takes one smaller
than the second, since each delivery is tested again."""
SHOWN_SHARE, ALARM_SHARE = 0.01, 0.02
"""The least share that is told of, and that is an alarm."""
MIN_PASSING = 50
"""The fewest labelled rows that serve as a yardstick; the cut is lowered on both sides until so many pass."""
NEIGHBOURS, COMPONENTS = 5, 16
_CLIP = 10.0
_FLAT = 0.01
"""Directions with less than this share of the largest standard deviation are not stretched: that is rounding noise."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """The share of pool rows beyond those that the source explains; its n is the number of pool rows counted."""

    share: Estimate
    """Conservative 95 % bounds: those of both shares beyond the quantile, each at 97.5 %."""
    p_value: float
    """One-sided, exact if the rows are independent draws."""
    by: str
    """Measure of what lies beyond: ``distance`` to the source, or the ``classifier``'s score."""

    @property
    def is_shown(self) -> bool:
        """Whether foreign rows are shown, for a report."""
        return self.p_value < SHOWN_P and self.share.value >= SHOWN_SHARE

    @property
    def alarm(self) -> bool:
        """Whether foreign rows are shown, and enough of them to matter."""
        return self.p_value < ALARM_P and self.share.value >= ALARM_SHARE

    def to_json(self) -> Json:
        """Return the test as a JSON object."""
        return {"share": self.share.to_json(), "p_value": self.p_value, "by": self.by, "alarm": self.alarm}


def count_beyond(source_K: npt.ArrayLike, pool_M: npt.ArrayLike, by: str) -> Foreign:
    """Count the pool's values beyond a high quantile of the source's; the larger a value, the less like the source.

    Without a value on one side the share is NaN and the p-value 1.
    """
    source, pool = np.sort(np.asarray(source_K)), np.asarray(pool_M)
    n, m = len(source), len(pool)
    if not n or not m:
        return Foreign(share=make_undefined(m), p_value=1.0, by=by)
    k = max(1, round(TAIL * (n + 1)))
    num_beyond = int((pool > source[-k]).sum())
    beyond, usual = compute_proportion(num_beyond, m, confidence=0.975), scipy.stats.beta(k, n + 1 - k)
    share = Estimate(
        value=_compute_excess(beyond.value, float(usual.mean())),
        low=_compute_excess(beyond.low, float(usual.ppf(0.9875))),
        high=_compute_excess(beyond.high, float(usual.ppf(0.0125))),
        n=m,
    )
    return Foreign(share=share, p_value=float(scipy.stats.betabinom.sf(num_beyond - 1, m, k, n + 1 - k)), by=by)


def _compute_excess(beyond: float, usual: float) -> float:
    """Return the share of a mixture that has so many rows beyond, of which the source alone has ``usual``."""
    return max(0.0, (beyond - usual) / (1 - usual))


class Distances(NamedTuple):
    """How far rows are from the source's."""

    held_N: Bools
    """The source rows that serve as a yardstick."""
    source_K: Float32s
    """Their distances, ascending by place."""
    pool_M: Float32s


def compute_distances(source_ND: npt.NDArray[Any], pool_MD: npt.NDArray[Any], rng: np.random.Generator) -> Distances:
    """Return the distances of half of the source rows, and of all pool rows, to the other half of the source.

    A source row that equals an earlier one is left out: a yardstick with copies would be too short. All must be finite.
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

    def standardised(part: npt.NDArray[Any]) -> Float32s:
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
    """Count the foreign rows among pool rows that pass a cut, by the labelled rows that pass it.

    ``None`` where no pool row passes, or too few labelled rows of the yardstick have a score.

    Args:
        found: the distances of all these rows.
        score_N: held-out scores of the labelled rows, NaN where there is none.
        score_M: scores of the pool rows, NaN likewise.
        least: the cut, a score that passes; lowered until ``MIN_PASSING`` rows of the yardstick pass.
    """
    score_K = score_N[found.held_N]
    known = np.sort(score_K[~np.isnan(score_K)])
    if len(known) < MIN_PASSING or not (score_M >= least).any():
        return None
    least = min(least, known[-MIN_PASSING])
    return count_beyond(found.source_K[score_K >= least], found.pool_M[score_M >= least], "distance")


def find_clearest(found: list[Foreign]) -> Foreign:
    """Return the test with the largest lower bound; its p-value is multiplied by their number (Bonferroni)."""
    best = min(found, key=lambda test: (-test.share.low, test.p_value))
    return replace(best, p_value=min(1.0, len(found) * best.p_value))


def compute_separable_share(auc: float) -> float:
    """Return the share of foreign rows of this AUC, if a classifier tells all of them: 2 AUC - 1, at least 0."""
    return max(0.0, 2 * auc - 1)
