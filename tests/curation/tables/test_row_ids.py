"""Row ids as bitmaps: the same as Python's sets say, whatever the ids look like."""

import shutil
import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from curation.errors import CommitError
from curation.tables import commits, io, row_ids, schemas
from curation.tables.row_ids import UNION_ROWS, find_missing_ids, include, include_all, make_bitmap

starts = st.sampled_from((0, 5, (1 << 40) - 3, (7 << 40), (1 << 62), (1 << 63) - 178, -20))
runs = st.lists(st.tuples(starts, st.integers(1, 60), st.integers(1, 3)), min_size=0, max_size=5)


def ids_of(parts: list[tuple[int, int, int]], seed: int) -> np.ndarray:
    """Different ids in runs, some of them with gaps; in order for an even seed, shuffled for an odd one."""
    ids = sorted({start + step * place for start, length, step in parts for place in range(length)})
    ids_N = np.array(ids, dtype=np.int64)
    return np.random.default_rng(seed).permutation(ids_N) if seed % 2 else ids_N


@given(runs, runs, st.integers(0, 7), st.booleans())
@settings(max_examples=200, deadline=None)
def test_missing_is_what_sets_say(asked, done, seed, all_done):
    ids_N = ids_of(asked, seed)
    done_M = ids_N if all_done else ids_of(done, seed + 1)
    known_ids = make_bitmap(done_M)
    assert known_ids == BitMap64(done_M.astype(np.uint64))
    known = set(done_M.tolist())
    assert find_missing_ids(ids_N, known_ids).tolist() == [row_id not in known for row_id in ids_N.tolist()]


@given(runs, runs, st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_included_ids_are_a_union(first, second, seed):
    one_N, other_M = ids_of(first, seed), ids_of(second, seed + 1)
    known, joined = BitMap64(), BitMap64()
    include(known, one_N)
    include(known, other_M)
    include_all(joined, known)
    include_all(joined, make_bitmap(other_M))
    expected = {row_id % 2**64 for row_id in (*one_N.tolist(), *other_M.tolist())}
    assert set(known) == set(joined) == expected


def test_what_is_included_is_paid_for_whatever_is_known():
    """100 scattered ids beside 2,000 and 64,000 others; a union took 40 times as long beside these."""
    rng = np.random.default_rng(0)
    seconds = []
    for num_known in (2_000, 64_000):
        known = BitMap64(rng.integers(0, 2**62, num_known).astype(np.uint64))
        ids_N = rng.integers(0, 2**62, (9, 100))
        times = []
        for part_M in ids_N:
            begun = time.process_time()
            include(known, part_M)
            include_all(known, make_bitmap(part_M))
            times.append(time.process_time() - begun)
        seconds.append(min(times))
    assert seconds[1] < 10 * seconds[0], seconds
    dense = BitMap64()
    include(dense, np.arange(UNION_ROWS))
    assert len(dense) == UNION_ROWS


def test_committed_ids_are_those_of_the_newest_version_and_doubles_are_found(tmp_path):
    rng = np.random.default_rng(0)
    ids_N = np.concatenate([rng.permutation(5000), (9 << 40) + 2 * np.arange(3000), rng.integers(1 << 50, 1 << 60, 50)])
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"row_id": ids_N}), uri, max_rows_per_file=700)
    assert set(commits.read_committed_ids(uri)) == set(ids_N.tolist())
    lance.write_dataset(pa.table({"row_id": ids_N[17:19]}), uri, mode="append")
    with pytest.raises(CommitError, match="8052 rows hold 8050 different row ids"):
        commits.read_committed_ids(uri)


class Table:
    """A table of ids to which committers add, with the cache written at every commit."""

    def __init__(self, directory: Path) -> None:
        self.uri = str(directory / "t.lance")
        self.schema = pa.schema([schemas.ROW_ID])
        io.create(self.uri, self.schema)

    def add(self, *parts: range) -> None:
        committer = commits.Committer(self.uri)
        for part in parts:
            table = pa.table({"row_id": np.array(part)})
            (row,) = commits.write_fragment(table, self.uri, self.schema).to_pylist()
            committer.add(row["fragments"], row["row_ids"])
            committer.flush()

    def plain(self) -> set[int]:
        return set(lance.dataset(self.uri).to_table()["row_id"].to_pylist())


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(row_ids, "SAVE_SECONDS", 0.0)
    return Table(tmp_path)


def test_fragments_that_the_cache_knows_are_not_read_again(table):
    table.add(range(10), range(20, 30), range(50, 55))
    for path in (Path(table.uri) / "data").iterdir():
        path.rename(path.with_suffix(".away"))
    table.add(range(60, 70))
    assert set(commits.read_committed_ids(table.uri)) == {*range(10), *range(20, 30), *range(50, 55), *range(60, 70)}
    Path(f"{table.uri}.ids").unlink()
    with pytest.raises(Exception, match=r"[Nn]ot found"):
        commits.read_committed_ids(table.uri)


def delete(table):
    lance.dataset(table.uri).delete("row_id = 3")


def overwrite(table):
    lance.write_dataset(pa.table({"row_id": np.arange(15)}), table.uri, mode="overwrite")


def make_anew(table):
    shutil.rmtree(table.uri)
    io.create(table.uri, table.schema)
    (row,) = commits.write_fragment(pa.table({"row_id": np.arange(100, 110)}), table.uri, table.schema).to_pylist()
    committer = commits.Committer(table.uri)
    committer.add(row["fragments"], row["row_ids"])
    table.kept = Path(f"{table.uri}.ids").read_bytes()
    committer.flush()
    Path(f"{table.uri}.ids").write_bytes(table.kept)


def restore(table):
    lance.dataset(table.uri, version=3).restore()


def compact(table):
    lance.dataset(table.uri).optimize.compact_files()


def damage(table):
    path = Path(f"{table.uri}.ids")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def cut_off(table):
    path = Path(f"{table.uri}.ids")
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("change", [delete, overwrite, make_anew, restore, compact, damage, cut_off])
def test_a_cache_that_does_not_fit_is_left_out(table, change):
    table.add(range(10), range(20, 30), range(50, 55))
    change(table)
    assert set(commits.read_committed_ids(table.uri)) == table.plain()
    table.add(range(200, 203))
    assert set(commits.read_committed_ids(table.uri)) == table.plain()
    assert table.plain() >= {200, 201, 202}


def test_the_largest_ids_are_told_apart(tmp_path):
    """Above 2^53 doubles are coarser than ids, and 2^63 - 1 has no successor."""
    ids_N = np.array([2**63 - 1, 2**53, 5, 2**63 - 2, 2**53 + 1, 0, 2**62 + 1, 2**62], dtype=np.int64)
    uri, schema = str(tmp_path / "t.lance"), pa.schema([schemas.ROW_ID, ("value", pa.int64())])
    io.create(uri, schema)
    committer = commits.Committer(uri)
    for part_M in (ids_N[:3], ids_N[3:]):
        table = pa.table({"row_id": part_M, "value": part_M // 2}, schema)
        (row,) = commits.write_fragment(table, uri, schema).to_pylist()
        committer.add(row["fragments"], row["row_ids"])
        committer.flush()
    assert set(commits.read_committed_ids(uri)) == set(ids_N.tolist())
    ref = io.find_latest(uri)
    assert io.count(ref) == 8
    asked_M = np.sort(ids_N)[::-1]
    for found in (io.take(ref, asked_M), io.Lookup(ref).take(asked_M)):
        assert found["row_id"].to_pylist() == asked_M.tolist()
        assert found["value"].to_pylist() == (asked_M // 2).tolist()
    absent_M = np.array([2**63 - 3, 2**53 + 2, 2**62 - 1])
    assert (io.find_offsets(ref, absent_M) == -1).all() and (io.Lookup(ref).offsets(absent_M) == -1).all()
    assert find_missing_ids(np.concatenate([ids_N, absent_M]), committer.done).tolist() == [False] * 8 + [True] * 3


def test_ids_in_order_come_in_whole_blocks(tmp_path):
    ids_N = np.random.default_rng(0).permutation(1000)
    dataset = lance.write_dataset(pa.table({"row_id": ids_N}), str(tmp_path / "t.lance"), max_rows_per_file=130)
    for num_rows in (1, 7, 130, 333, 1000, 5000):
        blocks = list(row_ids.iter_ordered_ids(dataset, num_rows))
        assert np.concatenate(blocks).tolist() == ids_N.tolist()
        assert {len(block) for block in blocks[:-1]} <= {num_rows} and 0 < len(blocks[-1]) <= num_rows
