"""The chunks of a pass: every row that is taken and not done in exactly one, each about as long as it should be."""

import math

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.config import AskConfig
from curation.passes import cutting
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.refs import TableRef
from curation.tables.row_ids import make_bitmap

IDS_N = np.concatenate([np.arange(100), (3 << 40) + np.arange(57), np.array([900, 700, 1 << 50])])


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> TableRef:
    uri = str(tmp_path_factory.mktemp("examples") / "t.lance")
    table = pa.table({"row_id": IDS_N})
    return TableRef(uri=uri, version=lance.write_dataset(table, uri, max_rows_per_file=33).version)


@pytest.mark.parametrize("chunk_rows", [1, 7, 32, 1000])
@pytest.mark.parametrize("scan_rows", [4, 50, 1 << 20])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_chunks_cover_what_is_left_once(examples, monkeypatch, chunk_rows, scan_rows, share):
    monkeypatch.setattr(cutting, "SCAN_ROWS", scan_rows)
    rng = np.random.default_rng(0)
    done = {int(row_id) for row_id in IDS_N if rng.random() < share}
    rows = OpenRows(examples, lambda ids_N: ids_N % 3 != 0, make_bitmap(np.array(sorted(done), dtype=np.int64)))
    taken = [row_id for row_id in IDS_N.tolist() if row_id % 3]
    left = [row_id for row_id in taken if row_id not in done]
    assert (rows.requested, rows.left) == (len(taken), len(left))
    chunks = list(rows.chunks(chunk_rows))
    assert all(0 < len(chunk.offsets) <= chunk_rows for chunk in chunks) and rows.left == 0
    offsets = np.concatenate([np.empty(0, dtype=np.int64), *(chunk.offsets for chunk in chunks)])
    assert IDS_N[offsets].tolist() == left


def test_what_is_left_of_an_earlier_drivers_chunk_is_set_apart(examples):
    def rows(done: list[int]) -> OpenRows:
        return OpenRows(examples, lambda ids_N: ids_N >= 0, make_bitmap(np.array(done, dtype=np.int64)))

    suspect = Chunk.of(np.array([5, 6, 8]))
    fresh = rows([])
    assert fresh.set_apart(suspect).tolist() == [0, 1, 2] and fresh.left == len(IDS_N) - 3
    offsets = np.concatenate([chunk.offsets for chunk in fresh.chunks(7)])
    assert offsets.tolist() == [place for place in range(len(IDS_N)) if place not in (5, 6, 8)]
    partly = rows(IDS_N[[6]].tolist())
    assert partly.set_apart(suspect).tolist() == [0, 2] and partly.left == len(IDS_N) - 3
    assert not len(partly.set_apart(Chunk.of(np.array([6])))) and partly.left == len(IDS_N) - 3


@pytest.mark.long
@pytest.mark.parametrize("seconds_per_row", [0.001, 0.2, 3.0, 100.0])
def test_a_chunk_takes_the_time_that_it_should(seconds_per_row):
    """From small ones to the time that is asked for, then short ones near the end; a slow row is a chunk of its own."""
    ask = AskConfig(backend="scripted", chunk_rows=4096, chunk_seconds=30)
    cutter, left, sizes = Cutter(ask), 20_000, []
    while left:
        size = min(left, cutter.rows(left, actors=2, calls=1))
        cutter.learn(size, size * seconds_per_row)
        sizes.append(size)
        left -= size
    assert sizes[0] == 32 and max(sizes) <= 4096
    assert all(after <= 4 * max(sizes[: place + 1]) for place, after in enumerate(sizes[1:]))
    wanted = min(4096, max(1, 30 / seconds_per_row))
    assert max(sizes[1:]) == pytest.approx(wanted, abs=1)
    assert sizes[len(sizes) // 2] >= 0.5 * wanted
    assert sizes[-2] * seconds_per_row <= max(2.0, seconds_per_row) + seconds_per_row


def test_the_chunks_of_a_probe_are_alike():
    ask = AskConfig(backend="scripted", chunk_rows=64).model_copy(update={"chunk_seconds": math.inf})
    cutter = Cutter(ask)
    assert cutter.rows(1000, actors=1, calls=1) == 64
    cutter.learn(64, 1000.0)
    assert cutter.rows(64, actors=1, calls=1) == 64
