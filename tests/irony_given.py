"""Labels made elsewhere for real tweets: a quarter of the gold labels flipped, and a confidence that half knows it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data" / "classification"
PLACES = (SHARED, Path(__file__).parents[3] / "shared" / "data" / "classification")
"""Where the rows are, of a checkout beside ``shared`` and of one a folder deeper."""
FLIPPED = 0.25
OTHER = {"irony": "non_irony", "non_irony": "irony"}
CLASSES = {"irony": "ironic", "non_irony": "not ironic"}


def write_irony(folder: Path, *, num_labelled: int = 600, num_pool: int = 1400) -> None:
    """Write ``labelled.csv`` and ``pool.csv``, with text, gold label, given label, its confidence, and its grade.

    The log-odds of the confidence are normal, with deviation 1 and mean 1, of flipped labels -0.2: AUC about 0.80.
    """
    files = next((place for place in PLACES if place.exists()), None)
    if files is None:
        pytest.skip(f"the irony rows of TweetEval are not at {SHARED}")
    rows = [
        row for part in ("train", "val") for row in pq.read_table(files / f"tweeteval_irony_{part}.parquet").to_pylist()
    ]
    rows, rng = rows[: num_labelled + num_pool], np.random.default_rng(0)
    flipped_N = rng.random(len(rows)) < FLIPPED
    confidence_N = 1 / (1 + np.exp(-(1 - 1.2 * flipped_N + rng.normal(size=len(rows)))))
    table = pa.table(
        {
            "text": [row["text"] for row in rows],
            "label": [row["label"] for row in rows],
            "answer": [
                OTHER[row["label"]] if flip else row["label"] for row, flip in zip(rows, flipped_N, strict=True)
            ],
            "confidence": confidence_N.round(4),
            "ok": (~flipped_N).astype(int),
        }
    )
    pyarrow.csv.write_csv(table.slice(0, num_labelled), folder / "labelled.csv")
    pyarrow.csv.write_csv(table.slice(num_labelled), folder / "pool.csv")


def config_of_irony(folder: Path, **teacher: Any) -> dict[str, Any]:
    """A run's configuration on these files; ``teacher`` adds keys of that section."""
    return {
        "name": "irony",
        "run_dir": str(folder / "run"),
        "domain": {"name": "classification", "classes": CLASSES},
        "sources": {"labelled": {"path": str(folder / "labelled.csv")}, "pool": {"path": str(folder / "pool.csv")}},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "pool"}, "audit": True},
        "teacher": {"backend": "given", "completion": "answer", "confidence": "confidence", **teacher},
        "selection": {"budget": {"n": 300}},
    }
