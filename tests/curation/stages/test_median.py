"""The median length of completions, counted in streams."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from curation.stages.select import compute_median_length
from curation.tables import io


def test_a_counted_median_is_numpys(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for num in (0, 1, 2, 7, 100):
        drawn = ["é" * int(size) for size in rng.integers(0, 9, num)]
        ref = io.write(pa.table({"completion": pa.array([*drawn, None], pa.string())}), str(tmp_path / f"{num}.lance"))
        assert compute_median_length(ref) == (np.median([len(text) for text in drawn]) if num else None)
