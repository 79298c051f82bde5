"""The chunks of a pass: every row that is taken and not done in exactly one, whatever the batches they are read in."""

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.passes import run
from curation.passes.run import Chunk, _chunks
from curation.refs import TableRef
from curation.tables.row_ids import bitmap

IDS_N = np.concatenate([np.arange(100), (3 << 40) + np.arange(57), np.array([900, 700, 1 << 50])])


@pytest.mark.parametrize("chunk_rows", [1, 7, 32, 1000])
@pytest.mark.parametrize("scan_rows", [4, 50, 1 << 20])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_chunks_cover_what_is_left_once(tmp_path, monkeypatch, chunk_rows, scan_rows, share):
    monkeypatch.setattr(run, "SCAN_ROWS", scan_rows)
    uri = str(tmp_path / "t.lance")
    ref = TableRef(uri=uri, version=lance.write_dataset(pa.table({"row_id": IDS_N}), uri, max_rows_per_file=33).version)
    rng = np.random.default_rng(0)
    done = {int(row_id) for row_id in IDS_N if rng.random() < share}
    known = bitmap(np.array(sorted(done), dtype=np.int64))
    found: list[tuple[Chunk | None, int]] = list(_chunks(ref, chunk_rows, lambda ids_N: ids_N % 3 != 0, known))
    taken = [row_id for row_id in IDS_N.tolist() if row_id % 3]
    assert len(found) == -(-len(IDS_N) // chunk_rows) and sum(wanted for _, wanted in found) == len(taken)
    chunks = [chunk for chunk, _ in found if chunk is not None]
    assert all(len(chunk.offsets) for chunk in chunks)
    offsets = np.concatenate([np.empty(0, dtype=np.int64), *(chunk.offsets for chunk in chunks)])
    assert IDS_N[offsets].tolist() == [row_id for row_id in taken if row_id not in done]
    assert all(chunk.stop - chunk.start <= chunk_rows and chunk.start % chunk_rows == 0 for chunk in chunks)
