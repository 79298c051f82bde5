"""Seeded hashes of row ids, for ties, draws and shares that depend on the row alone, not on order or machine."""

import hashlib

import numpy as np

from curation.arrays import Float64s, Int64s, Uint64s


def hash64(row_ids_N: Int64s, seed: int) -> Uint64s:
    """Return a 64-bit hash of each id, uint64 [N]: the finaliser of SplitMix64 over id and seed.

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        mixed = np.asarray(row_ids_N).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(seed + 1)
        for _ in range(2):  # twice: sequential ids and small seeds differ in few bits
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_unit(row_ids_N: Int64s, seed: int) -> Float64s:
    """Return a hash of each id, uniform in [0, 1), float64 [N]."""
    unit: Float64s = (hash64(row_ids_N, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return unit


def derive(seed: int, purpose: str) -> int:
    """Return a separate seed for each purpose, so that draws of one run are independent of each other."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{purpose}".encode()).digest()[:4], "little")


def draw_by_hash(row_ids_N: Int64s, num: int, seed: int) -> Int64s:
    """Return the at most ``num`` ids with the smallest hashes, int64 [M]: overlapping sets share many of them."""
    ids_N = np.asarray(row_ids_N, dtype=np.int64)
    drawn_M: Int64s = ids_N[np.argsort(hash64(ids_N, seed), kind="stable")[:num]]
    return drawn_M
