"""Types of NumPy arrays by their elements; the end of an array's name gives its axes (CONTRIBUTING, "Shapes")."""

from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
"""Floating-point numbers of any precision."""
