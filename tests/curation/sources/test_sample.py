"""Random rows of splits, read from the files without reading all of them."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import SourceConfig
from curation.sources import Assignment, Permutation, discover, read_rows_at, readers


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1025])
def test_the_inverse_of_a_permutation(size: int):
    forth = Permutation(size=size, seed=5)
    positions_N = np.arange(size)
    assert np.array_equal(forth.inverse(forth(positions_N)), positions_N)
    assert np.array_equal(forth(forth.inverse(positions_N)), positions_N)


@pytest.mark.long
def test_a_draw_is_of_its_splits_without_repeats_and_uniform():
    counts = {"a": 30, "b": 50, "c": 20}
    dealt = Assignment(counts=counts, permutation=Permutation(size=120, seed=1))
    whole = dealt.draw(("a", "c"), 50, seed=9)
    in_split = [number for number, place in enumerate(dealt.split_of(np.arange(120)).tolist()) if place in (0, 2)]
    assert sorted(whole.tolist()) == in_split
    drawn = Counter(row for seed in range(2000) for row in dealt.draw(("a", "c"), 5, seed).tolist())
    assert set(drawn) == set(in_split)
    expected = 2000 * 5 / 50
    chi_square = sum((drawn[row] - expected) ** 2 / expected for row in in_split)
    assert chi_square < 49 + 4 * np.sqrt(2 * 49)  # 49 degrees of freedom


def test_rows_come_in_the_order_asked_for_from_all_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = [{"n": number, "text": f"row {number}"} for number in range(700)]
    second = [{"n": number, "text": f"row {number}"} for number in range(700, 1500)]
    pq.write_table(pa.Table.from_pylist(first), tmp_path / "a.parquet", row_group_size=100)
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, second)))
    files = discover(SourceConfig(path=str(tmp_path), mixed=True))
    positions = np.array([1499, 3, 700, 699, 4, 250, 701])
    read = read_rows_at(files, positions)
    assert [row.raw["n"] for row in read] == positions.tolist()
    assert [(row.file, row.row) for row in read][:2] == [(1, 799), (0, 3)]
    assert read_rows_at(files, np.array([5]), ["text"])[0].raw == {"text": "row 5"}
    assert read_rows_at(files, np.array([], dtype=np.int64)) == []


def test_only_the_row_groups_of_wanted_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pq.write_table(pa.table({"n": range(10_000)}), tmp_path / "a.parquet", row_group_size=500)
    groups: list[int] = []
    iter_batches = readers.pq.ParquetFile.iter_batches

    def counting(self, *arguments, row_groups, **others):
        groups.extend(row_groups)
        return iter_batches(self, *arguments, row_groups=row_groups, **others)

    monkeypatch.setattr(readers.pq.ParquetFile, "iter_batches", counting)
    drawn = read_rows_at(discover(SourceConfig(path=str(tmp_path))), np.array([9_700, 20, 9_900]))
    assert [row.raw["n"] for row in drawn] == [9_700, 20, 9_900]
    assert sorted(groups) == [0, 19]
