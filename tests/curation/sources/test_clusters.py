"""``splits.group``: whole groups in one split, of values in all formats, and numbers that need no list of values."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import RowsConfig, SourceConfig
from curation.errors import SourceError
from curation.sources import Assignment, GroupedPermutation, assign, compute_cluster, discover, make_assignment
from curation.sources.splits import read_clusters
from curation.stages.prepare import check_columns
from tests.curation.sources.test_sources import split


def test_a_value_has_one_cluster_however_it_is_written_and_a_missing_one_none() -> None:
    same = [compute_cluster(value) for value in (7, 7.0, "7", np.float64(7))]
    assert len(set(same)) == 1 and same[0] is not None
    assert [compute_cluster(value) for value in (None, "", "  ", float("nan"))] == [None] * 4
    others = {compute_cluster(value) for value in ("07", 7.5, True, "u7", [7], "\ud800")}
    assert len(others) == 6 and same[0] not in others


def test_clusters_are_read_in_the_order_of_positions_over_files_of_several_formats(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,x\n7,1\n,2\nu,3\n")
    pq.write_table(pa.table({"user": [7.0, None, float("nan")]}), tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"user": 7}\n{"user": "u"}\n{"x": 1}\n')
    source = SourceConfig(path=str(tmp_path / "*"), mixed=True)
    found = read_clusters(discover(source), "user")
    seven, u = compute_cluster(7), compute_cluster("u")
    assert found[[0, 3, 6]].tolist() == [seven] * 3 and found[[2, 7]].tolist() == [u] * 2
    alone = set(found[[1, 4, 5, 8]].tolist())
    assert len(alone - {seven, u}) == 4, "each row without a value is a group of its own"


def splits_of(dealt: Assignment, num_rows: int) -> np.ndarray:
    return dealt.split_of(np.arange(num_rows))


@pytest.mark.parametrize("seed", range(8))
def test_no_group_stands_in_two_splits_and_sizes_are_as_near_as_whole_groups_allow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster_N = rng.choice(rng.integers(-(2**62), 2**62, 200), 5_000, p=rng.dirichlet(np.full(200, 2.0)))
    largest = max(Counter(cluster_N.tolist()).values())
    wanted = {"source": split(rows=600), "test": split(fraction=0.2), "pool": split()}
    dealt = assign(5_000, wanted, seed, cluster_N=cluster_N)
    place_N = splits_of(dealt, 5_000)
    for cluster in np.unique(cluster_N):
        assert len(np.unique(place_N[cluster_N == cluster])) == 1
    sizes = np.bincount(place_N)
    assert dict(zip(dealt.counts, sizes.tolist(), strict=True)) == dealt.counts and sizes.sum() == 5_000
    assert abs(sizes[0] - 600) <= largest / 2 and abs(sizes[1] - 1_000) <= largest
    drawn_M = dealt.draw(("test",), 100, seed)
    assert len(set(drawn_M.tolist())) == 100 and set(place_N[drawn_M]) == {1}


def test_a_split_that_is_added_leaves_the_groups_of_the_others_where_they_are() -> None:
    cluster_N = np.random.default_rng(3).integers(0, 40, 1_000)
    first = assign(1_000, {"source": split(rows=300), "pool": split(rows=400)}, 5, cluster_N=cluster_N)
    later = assign(1_000, {"test": split()}, 5, first.counts, cluster_N=cluster_N)
    before_N, after_N = splits_of(first, 1_000), splits_of(later, 1_000)
    np.testing.assert_array_equal(before_N, after_N)
    assert {name: later.counts[name] for name in first.counts} == first.counts


def test_a_permutation_of_groups_is_a_bijection_that_another_seed_changes() -> None:
    cluster_N = np.random.default_rng(0).integers(0, 30, 500)
    moved = [GroupedPermutation.of(cluster_N, seed) for seed in (0, 1)]
    for one in moved:
        place_N = one(np.arange(500))
        assert sorted(place_N.tolist()) == list(range(500))
        np.testing.assert_array_equal(one.inverse(place_N), np.arange(500))
    assert (moved[0](np.arange(500)) != moved[1](np.arange(500))).mean() > 0.9


def test_a_split_too_small_for_a_group_is_refused_with_what_to_do() -> None:
    cluster_N = np.arange(1_000) // 100
    message = r"splits\.source: gets none .* it asks for 20, and splits\.group keeps the rows of each of 10 groups"
    with pytest.raises(SourceError, match=message):
        assign(1_000, {"source": split(rows=20), "pool": split()}, 0, cluster_N=cluster_N)


def config_of(path: Path, **splits: Any) -> RowsConfig:
    of = {"source": {"from": "a", "rows": 40}, "pool": {"from": "a"}, **splits}
    return RowsConfig.model_validate({"domain": "math", "sources": {"a": {"path": str(path)}}, "splits": of})


def test_groups_of_a_source_are_read_from_its_files_and_a_missing_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"problem": "{i}", "answer": "1", "user": "u{i % 9}"}}\n' for i in range(90)))
    config = config_of(path, group="user")
    files = discover(config.sources["a"])
    dealt = make_assignment(config, "a", files)
    place_N = splits_of(dealt, 90)
    assert all(len(set(place_N[user::9])) == 1 for user in range(9)) and dealt.counts == {"source": 40, "pool": 50}
    with pytest.raises(SourceError, match=r"splits\.group: .*has no column 'usr' .*; did you mean 'user'\?"):
        check_columns(config_of(path, group="usr"), "a", files)


def test_a_split_that_takes_a_whole_source_needs_no_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "1", "answer": "1", "user": "u"}\n' * 9)
    of = {"source": {"from": "a", "rows": 4}, "pool": {"from": "b"}, "group": "user"}
    sources = {name: {"path": str(path)} for name in "ab"}
    config = RowsConfig.model_validate({"domain": "math", "sources": sources, "splits": of})
    assert make_assignment(config, "b", discover(config.sources["b"])).counts == {"pool": 9}
