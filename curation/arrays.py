"""The types of NumPy arrays, by what they hold; a name's ending says the axes (CONTRIBUTING, "Shapes")."""

from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
"""Numbers of any precision."""
