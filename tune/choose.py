"""The choice of a winner: finalists of a search against the default, on folds and seeds that the search did not use.

The best of many trials looks better than it is. So the best few are fitted again, on every fold and several seeds, each
beside the default on the same rows and with the same seed, and the default stays unless a finalist is proven
better. Folds share rows, so their differences are dependent: the interval is that of the corrected resampled t-test
(Nadeau and Bengio, "Inference for the Generalization Error", 2003), at a level divided by the number of finalists.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from curation.arrays import Float64s
from curation.json_types import Json

LEVEL = 0.05
"""The probability that the default is replaced by a finalist that is not better, over all finalists."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The advantage of a finalist over the default; positive is better, whatever the metric."""

    value: float
    low: float
    high: float
    """The upper end of the interval, which holds for all finalists at once at confidence 1 - ``LEVEL``."""
    num_pairs: int
    """The number of paired fits."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The result of a search."""

    winner: str | None
    """The finalist that replaces the default, or ``None`` if the default stays."""
    differences: Mapping[str, Difference]
    """The difference of each finalist to the default, by finalist."""
    optimism: float
    """The best trial's value in the search minus the mean of its new fits: the gain that comes only from choosing the
    best of many."""

    def to_json(self) -> Json:
        """Return the choice as a JSON object."""
        return asdict(self)


def choose(
    default_R: npt.ArrayLike,
    finalists: Mapping[str, npt.ArrayLike],
    in_search: Mapping[str, float],
    *,
    share_held_out: float,
    larger_is_better: bool,
) -> Choice:
    """Return the choice between the default and the finalists by their metrics in R fits, one a fold and seed.

    ``in_search``: each finalist's metric in the search. ``share_held_out``: the share of the rows that a fit holds out.
    """
    sign = 1.0 if larger_is_better else -1.0
    values = {name: np.asarray(given, dtype=np.float64) for name, given in finalists.items()}
    differences, level = {}, LEVEL / len(finalists)
    for name, value_R in values.items():
        ahead_R = sign * (value_R - np.asarray(default_R))
        differences[name] = compute_corrected_difference(ahead_R, share_held_out=share_held_out, level=level)
    best = max(differences, key=lambda name: differences[name].value)
    first = max(finalists, key=lambda name: sign * in_search[name])
    return Choice(
        winner=best if differences[best].low > 0 else None,
        differences=differences,
        optimism=float(sign * (in_search[first] - values[first].mean())),
    )


def compute_corrected_difference(difference_R: Float64s, *, share_held_out: float, level: float) -> Difference:
    """Return the mean of paired differences over folds and seeds, with the interval of the corrected resampled t-test.

    The mean's variance is (1 / R + n_test / n_train) times the sample's, since R fits on overlapping rows tell less
    than R independent ones. ``level`` is the probability that the interval misses.
    """
    num = len(difference_R)
    mean = float(difference_R.mean())
    spread = float(difference_R.std(ddof=1)) * math.sqrt(1 / num + share_held_out / (1 - share_held_out))
    half = float(stats.t.ppf(1 - level / 2, num - 1)) * spread
    return Difference(value=mean, low=mean - half, high=mean + half, num_pairs=num)
