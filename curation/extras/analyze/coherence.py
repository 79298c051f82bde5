"""Coherence: how far rows' gradients lie in a few common directions (paper, section "Mechanisms", finding 3).

The gradient matrix has a row for each training row, neither centred nor scaled (the paper does not say). Its singular
values and right singular vectors are the roots of the eigenvalues and the eigenvectors of its Gram matrix, which is
summed over batches of rows in float64. So memory is a few matrices [D, D] for any number of rows, and nothing is
approximated. Squaring halves the digits of small singular values: those below about 1e-7 of the largest are noise.

A row's top-k energy is the share of its squared norm that lies in the span of the first k right singular vectors; it
does not depend on the row's norm. With few rows the span follows the rows themselves and energies are high, so only
arms with the same number of rows can be compared.

Intervals are by the delete-a-group jackknife (Kott 2001; Busing, Meijer, van der Leeden 1999): rows are grouped by a
hash of their ids, and everything, including the directions, is recomputed without each group. A row is in the same
group in every arm, so the interval of a difference of two arms accounts for rows that they share.

Shapes: N rows, D numbers of a gradient, k directions, G groups.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import scipy

from curation.arrays import Float32s, Floats, Int64s
from curation.hashing import hash64
from curation.json_types import Json
from curation.metrics.estimates import TAIL, Estimate

Batches = Callable[[], Iterable[tuple[Int64s, Float32s]]]
"""Function that returns an iterator over all rows in batches of row ids [B] and gradients [B, D]."""

MOST = 32
"""Maximum number of directions (paper, figure of the gradients)."""
SHOWN = 8
"""The k of the top-k energy whose distribution over rows is reported (paper)."""
GROUPS = 20
"""Number of groups of the jackknife."""
DENSE = 768
"""Maximum size of a Gram matrix for the dense eigensolver. For larger ones, Lanczos iterations (ARPACK) compute the
first eigenvectors to machine precision in a fraction of the time."""


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """The coherence of an arm's gradients."""

    num_rows: int
    singular_values: Floats
    """The largest singular values, descending, [k]."""
    energy_k: Floats
    """The mean top-k energy of a row, for k = 1, 2, ..."""
    without_Gk: Floats
    """``energy_k`` without each group of rows, [G, k]."""
    rows_energy_N: Floats
    """The top-``SHOWN`` energy of every row, ascending."""
    dimension: float
    """The participation ratio of the squared singular values, (sum)^2 / sum of squares: the number of equally strong
    directions with the same ratio."""

    def to_json(self) -> Json:
        """Return the findings as JSON: estimates with their intervals, and the distribution over rows at 101 points."""
        n = self.num_rows
        return {
            "n": n,
            "energy": [
                _compute_jackknife(value, without_G, n)
                for value, without_G in zip(self.energy_k.tolist(), self.without_Gk.T, strict=True)
            ],
            "mean_energy": _compute_jackknife(float(self.energy_k.mean()), self.without_Gk.mean(axis=1), n),
            "quantiles": np.quantile(self.rows_energy_N, np.linspace(0, 1, 101)).tolist(),
            "singular_values": self.singular_values.tolist(),
            "dimension": self.dimension,
        }


def compute_coherence(batches: Batches, size: int) -> Coherence:
    """Return the coherence of gradients of ``size`` numbers; a ``ValueError`` if they are in fewer than two groups."""
    total_DD, num_rows, filled = np.zeros((size, size)), 0, set[int]()
    for ids_N, gradient_ND in _iter_kept(batches):
        total_DD += gradient_ND.T @ gradient_ND
        num_rows += len(ids_N)
        filled |= set(_assign_groups(ids_N).tolist())
    if len(filled) < 2:
        raise ValueError(f"{num_rows} rows with a gradient are too few to compare directions")
    most = min(MOST, size, num_rows)
    value_k, vector_Dk = find_directions(total_DD, most)
    rows_Nk = np.concatenate([compute_energies(gradient_ND, vector_Dk) for _, gradient_ND in _iter_kept(batches)])
    energy_k = rows_Nk.mean(axis=0)
    without = []
    for group in range(GROUPS):
        if group not in filled:  # leaving it out changes nothing
            without.append(energy_k)
            continue
        left_DD, sum_k, num_left = total_DD.copy(), np.zeros(most), 0
        for ids_N, gradient_ND in _iter_kept(batches):
            out_MD = gradient_ND[_assign_groups(ids_N) == group]
            left_DD -= out_MD.T @ out_MD
        _, left_Dk = find_directions(left_DD, most)
        for ids_N, gradient_ND in _iter_kept(batches):
            in_MD = gradient_ND[_assign_groups(ids_N) != group]
            sum_k += compute_energies(in_MD, left_Dk).sum(axis=0)
            num_left += len(in_MD)
        without.append(sum_k / num_left)
    return Coherence(
        num_rows=num_rows,
        singular_values=np.sqrt(value_k),
        energy_k=energy_k,
        without_Gk=np.stack(without),
        rows_energy_N=np.sort(rows_Nk[:, min(SHOWN, most) - 1]),
        dimension=float(np.trace(total_DD)) ** 2 / float((total_DD**2).sum()),
    )


def compare_coherence(arm: Coherence, other: Coherence) -> Json:
    """Return one arm's mean top-k energy minus another's, as JSON: for k = ``SHOWN``, and averaged over all k."""
    most, n = min(len(arm.energy_k), len(other.energy_k)), min(arm.num_rows, other.num_rows)
    at = min(SHOWN, most) - 1
    value, value_G = arm.energy_k[at] - other.energy_k[at], arm.without_Gk[:, at] - other.without_Gk[:, at]
    means = [energies_k[..., :most].mean(axis=-1) for energies_k in (arm.energy_k, other.energy_k)]
    means_G = [energies_Gk[..., :most].mean(axis=-1) for energies_Gk in (arm.without_Gk, other.without_Gk)]
    return {
        "energy": _compute_jackknife(float(value), value_G, n),
        "mean_energy": _compute_jackknife(float(means[0] - means[1]), means_G[0] - means_G[1], n),
    }


def find_directions(gram_DD: Floats, most: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues of a Gram matrix, descending and at least 0 [k], and their eigenvectors [D, k]."""
    if len(gram_DD) <= max(DENSE, 2 * most):
        value_k, vector_Dk = scipy.linalg.eigh(gram_DD, subset_by_index=(len(gram_DD) - most, len(gram_DD) - 1))
    else:
        start_D = np.ones(len(gram_DD))  # the same result each time
        value_k, vector_Dk = scipy.sparse.linalg.eigsh(gram_DD, k=most, which="LA", v0=start_D)
    order_k = np.argsort(-value_k, kind="stable")
    return np.maximum(value_k[order_k], 0.0), vector_Dk[:, order_k]


def compute_energies(gradient_ND: Floats, vector_Dk: Floats) -> Floats:
    """Return the top-1, top-2, ... energies of rows, [N, k]: shares of their squared norms."""
    norm_N1 = (gradient_ND**2).sum(axis=1, keepdims=True)
    energy_Nk: Floats = np.minimum(np.cumsum((gradient_ND @ vector_Dk) ** 2, axis=1) / norm_N1, 1.0)
    return energy_Nk


def _iter_kept(batches: Batches) -> Iterable[tuple[Int64s, Floats]]:
    """Yield the batches in float64 without rows whose gradient is zero or not finite."""
    for ids_N, gradient_ND in batches():
        wide_ND = gradient_ND.astype(np.float64)
        kept_N = np.isfinite(wide_ND).all(axis=1) & (wide_ND != 0).any(axis=1)
        yield ids_N[kept_N], wide_ND[kept_N]


def _assign_groups(ids_N: Int64s) -> Int64s:
    """Return each row's group of the jackknife."""
    return (hash64(ids_N, 0) % np.uint64(GROUPS)).astype(np.int64)


def _compute_jackknife(value: float, without_G: Floats, n: int) -> Json:
    """Return a value with the t interval of the delete-a-group jackknife, as JSON."""
    num = len(without_G)
    error = math.sqrt((num - 1) / num * float(((without_G - without_G.mean()) ** 2).sum()))
    margin = float(scipy.special.stdtrit(num - 1, 1 - TAIL)) * error
    return Estimate(value=value, low=value - margin, high=value + margin, n=n).to_json()
