"""What a fit reads: its keys of the section ``trust``; labelled source rows, in parts (fit, stopping, calibration)."""

import numpy as np
import numpy.typing as npt

from curation.arms import Fitted
from curation.config import TrustConfig
from curation.hashing import Int64s, derive, hash_unit

FIT, VALIDATION, CALIBRATION, UNUSED = 0, 1, 2, -1
NAMES = ("fit", "validation", "calibration")
"""Names of the parts, by number; an unused row is in none."""
ROW_KEYS = {"fit_on", "source_share", "validation_fraction", "calibration_fraction"}
"""The keys of ``TrustConfig`` that decide which part a row is in."""
READ_BY_ALL = {"states", "columns", "pca", "calibration", "calibrate_on"}
"""Further keys that every fit reads."""


def read_by(function: str, fitted: Fitted, trust: TrustConfig) -> TrustConfig:
    """The section with what the fit of a trust function does not read at its defaults."""
    own = {key: value for key, value in trust.options.items() if key == function}
    unread = {*trust.RESOURCES, "kind", "search"}
    if fitted.reads is not None:
        unread = type(trust).model_fields.keys() - {*READ_BY_ALL, *ROW_KEYS, *fitted.reads}
    return trust.without(unread).model_copy(update={"options": own})


def candidates(config: TrustConfig) -> str:
    """A filter for the rows of a labels table that a trust function may use."""
    return "error IS NULL" if config.fit_on == "all" else "error IS NULL AND label IS NOT NULL"


def used(row_ids_N: Int64s, config: TrustConfig, seed: int) -> npt.NDArray[np.bool_]:
    """Whether ``source_share`` takes each row, bool [N], by a seeded hash of its id that is not that of its part."""
    unit_N = hash_unit(row_ids_N, derive(seed, "source share"))
    return unit_N < config.source_share


def part_of(row_ids_N: Int64s, config: TrustConfig, seed: int) -> npt.NDArray[np.int8]:
    """The part of each row, int8 [N], by a seeded hash of its id; ``UNUSED`` for those that ``source_share`` omits."""
    edges = np.cumsum([config.validation_fraction, config.calibration_fraction])
    numbers = np.array([VALIDATION, CALIBRATION, FIT], dtype=np.int8)
    part_N: npt.NDArray[np.int8] = numbers[np.searchsorted(edges, hash_unit(row_ids_N, seed), side="right")]
    part_N[~used(row_ids_N, config, seed)] = UNUSED
    return part_N
