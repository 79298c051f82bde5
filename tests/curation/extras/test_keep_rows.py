"""The look for selected rows in the pool's files: its result, and its memory beside the ids of the selected."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import SourceConfig
from curation.extras.hub.exports import iter_found
from curation.sources import discover, make_kept_fields
from curation.tables.schemas import FILE_SHIFT

NUM_ROWS, NUM_WANTED = 100_000, 4_000_000


def test_the_look_for_selected_rows_takes_no_memory_that_grows_with_their_number(tmp_path: Path) -> None:
    for name in ("a", "b"):
        keys = [f"{name}-{number}" for number in range(NUM_ROWS)]
        pq.write_table(pa.table({"key": keys}), tmp_path / f"{name}.parquet", row_group_size=10_000)
    files = discover(SourceConfig(path=str(tmp_path / "*.parquet")))
    chosen = [number for number in range(NUM_ROWS) if number % 7 == 3]
    elsewhere_M = (9 << FILE_SHIFT) + np.arange(NUM_WANTED, dtype=np.int64)  # selected rows of other files
    of_b_M = (1 << FILE_SHIFT) + np.array(chosen, dtype=np.int64)
    wanted_M = np.concatenate([of_b_M, elsewhere_M])
    tracemalloc.start()
    parts = iter_found(files, make_kept_fields(files, ["key"]), wanted_M, None)
    kept = [row for part in parts for row in part.to_pylist()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row["key"] for row in kept] == [f"b-{number}" for number in chosen]
    assert [row["row_id"] for row in kept] == of_b_M.tolist()
    assert peak < wanted_M.nbytes, f"{peak:,} bytes beside {wanted_M.nbytes:,} of the ids"


@pytest.mark.parametrize("wanted", [[], [5]])
def test_nothing_is_wanted_of_a_file(tmp_path: Path, wanted: list[int]) -> None:
    pq.write_table(pa.table({"key": ["x", "y"]}), tmp_path / "a.parquet")
    files = discover(SourceConfig(path=str(tmp_path / "a.parquet")))
    parts = iter_found(files, make_kept_fields(files, ["key"]), np.array(wanted, dtype=np.int64), None)
    assert [part.num_rows for part in parts] == [0]
