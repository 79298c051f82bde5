"""Coherence of gradients against numpy's SVD; the jackknife against its definition and by simulation."""

from collections.abc import Iterator

import numpy as np
import pytest

from curation.extras.analyze import coherence as module
from curation.extras.analyze.coherence import GROUPS, Batches, compare_coherence, compute_coherence, find_directions
from curation.hashing import hash64


def rows(num: int, size: int, seed: int, rank: int = 3) -> np.ndarray:
    """Gradients with a few strong directions, of very different norms."""
    rng = np.random.default_rng(seed)
    strong = rng.normal(size=(num, rank)) @ rng.normal(size=(rank, size)) + rng.normal(size=(num, size))
    return (strong * rng.lognormal(size=(num, 1))).astype(np.float32)


def batches(gradients: np.ndarray, ids: np.ndarray | None = None, step: int = 37) -> Batches:
    ids = np.arange(len(gradients)) if ids is None else ids

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(gradients), step):
            yield ids[start : start + step], gradients[start : start + step]

    return read


def by_svd(gradients: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, and each row's top-k energies, by numpy's decomposition of the matrix itself."""
    _, singular, right = np.linalg.svd(gradients.astype(np.float64), full_matrices=False)
    projected = gradients.astype(np.float64) @ right[:most].T
    return singular[:most], np.cumsum(projected**2, axis=1) / (gradients.astype(np.float64) ** 2).sum(1, keepdims=True)


@pytest.mark.parametrize(("num", "size", "dense"), [(300, 48, 768), (40, 100, 768), (300, 7, 768), (500, 90, 1)])
def test_singular_values_and_energies_are_those_of_an_svd(num, size, dense, monkeypatch) -> None:
    monkeypatch.setattr(module, "DENSE", dense)  # 1: by Lanczos iterations
    gradients, most = rows(num, size, seed=num), min(32, num, size)
    found = compute_coherence(batches(gradients), size)
    singular, energies = by_svd(gradients, most)
    np.testing.assert_allclose(found.singular_values, singular, rtol=1e-9)
    np.testing.assert_allclose(found.energy_k, energies.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.rows_energy_N, np.sort(energies[:, min(8, most) - 1]), rtol=1e-7)
    whole = np.linalg.svd(gradients.astype(np.float64), compute_uv=False) ** 2
    assert found.dimension == pytest.approx(whole.sum() ** 2 / (whole**2).sum())
    told = found.to_json()
    assert told["mean_energy"]["value"] == pytest.approx(energies.mean(axis=0).mean())
    assert len(told["quantiles"]) == 101 and told["n"] == num


def test_neither_batches_nor_the_order_of_rows_change_anything() -> None:
    gradients, order = rows(200, 24, seed=1), np.random.default_rng(0).permutation(200)
    one, other = (
        compute_coherence(batches(gradients), 24),
        compute_coherence(batches(gradients[order], order, step=9), 24),
    )
    np.testing.assert_allclose(one.energy_k, other.energy_k, rtol=1e-12)
    np.testing.assert_allclose(one.without_Gk, other.without_Gk, rtol=1e-10)


def test_the_interval_is_a_jackknife_that_leaves_whole_groups_out() -> None:
    gradients, ids = rows(120, 10, seed=2), np.arange(120) * 97
    found = compute_coherence(batches(gradients, ids), 10)
    group = hash64(ids, 0) % np.uint64(GROUPS)
    without = np.array([by_svd(gradients[group != g], 10)[1][:, 2].mean() for g in range(GROUPS)])
    np.testing.assert_allclose(found.without_Gk[:, 2], without, rtol=1e-9)
    from scipy.stats import t

    num, estimate = len(without), found.to_json()["energy"][2]
    error = np.sqrt((num - 1) / num * ((without - without.mean()) ** 2).sum())
    assert estimate["high"] - estimate["value"] == pytest.approx(t.ppf(0.975, num - 1) * error)
    assert compare_coherence(found, found)["energy"] == {"value": 0.0, "low": 0.0, "high": 0.0, "n": 120}


def test_rows_without_a_gradient_are_left_out_and_too_few_are_refused() -> None:
    gradients = rows(60, 8, seed=3)
    gradients[5], gradients[6] = 0.0, np.nan
    found = compute_coherence(batches(gradients), 8)
    assert found.num_rows == 58
    np.testing.assert_allclose(found.singular_values, by_svd(np.delete(gradients, [5, 6], axis=0), 8)[0], rtol=1e-9)
    with pytest.raises(ValueError, match="1 rows"):
        compute_coherence(batches(gradients[:1]), 8)


def test_directions_of_a_matrix_of_low_rank() -> None:
    values, vectors = find_directions(np.diag([0.0, 4.0, 0.0, 9.0]), 3)
    assert values.tolist() == [9.0, 4.0, 0.0] and np.abs(vectors[[3, 1], [0, 1]]).tolist() == [1.0, 1.0]


def disagreeing(num: int, strong: float) -> int:
    """In how many of ``num`` simulated pairs of arms the interval of their difference leaves out the true one, 0.

    Half of the arms' rows are the same, and all are drawn alike: with two directions that are ``1 + strong`` times as
    strong as the others.
    """
    missed, rng, scale = 0, np.random.default_rng(7), np.where(np.arange(6) < 2, 1 + strong, 1.0)
    for _ in range(num):
        shared, *own = (rng.normal(size=(80, 6)) for _ in range(3))
        measured = []
        for start, others in zip((1_000, 2_000), own, strict=True):
            gradients = (np.concatenate([shared, others]) * scale + np.eye(6)[0]).astype(np.float32)
            measured.append(
                compute_coherence(batches(gradients, np.concatenate([np.arange(80), start + np.arange(80)])), 6)
            )
        found = compare_coherence(*measured)["mean_energy"]
        missed += not found["low"] <= 0 <= found["high"]
    return missed


@pytest.mark.long
def test_intervals_of_differences_cover() -> None:
    assert disagreeing(30, 3.0) <= 6  # 5 % are 1.5; more than 6 has a probability of .0006


@pytest.mark.slow
@pytest.mark.parametrize("strong", [0.0, 3.0])
def test_intervals_of_differences_cover_in_many_simulations(strong: float) -> None:
    missed = disagreeing(600, strong)
    print(f"missed {missed} of 600")
    assert missed <= 60  # 5 % are 30; without clear directions the jackknife is too wide, and misses fewer
