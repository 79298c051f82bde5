"""The labelled source rows that a trust function may use, and their parts: fit, early stopping, calibration."""

import numpy as np
import numpy.typing as npt

from curation.config import TrustConfig
from curation.hashing import Int64s, hash_unit

FIT, VALIDATION, CALIBRATION = 0, 1, 2
NAMES = ("fit", "validation", "calibration")
"""Names of the parts, by number."""
ROW_KEYS = {"fit_on", "validation_fraction", "calibration_fraction"}
"""The keys of ``TrustConfig`` that decide which part a row is in."""


def candidates(config: TrustConfig) -> str:
    """A filter for the rows of a labels table that a trust function may use."""
    return "error IS NULL" if config.fit_on == "all" else "error IS NULL AND label IS NOT NULL"


def part_of(row_ids_N: Int64s, config: TrustConfig, seed: int) -> npt.NDArray[np.int8]:
    """The part of each row, int8 [N], by a seeded hash of its id."""
    edges = np.cumsum([config.validation_fraction, config.calibration_fraction])
    numbers = np.array([VALIDATION, CALIBRATION, FIT], dtype=np.int8)
    part_N: npt.NDArray[np.int8] = numbers[np.searchsorted(edges, hash_unit(row_ids_N, seed), side="right")]
    return part_N
