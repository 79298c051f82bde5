"""Ranks of rows that do not fit into memory are those of one sort."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curation.selection import external_sort
from curation.selection.external_sort import iter_ranked
from curation.selection.top_n import sort_by_rank
from curation.stages.select import compute_median_length, iter_regrouped
from curation.tables import io


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("scores", ["distinct", "ties", "equal"])
def test_merged_runs_are_one_sort(scores: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "RUN_ROWS", 300)
    monkeypatch.setattr(external_sort, "LEAST_BLOCK", 7)
    rng = np.random.default_rng(0)
    for num_rows in (0, 1, 299, 300, 301, 5_000):
        ids_N = rng.permutation(10 * num_rows)[:num_rows] + (5 << 40)
        raw_N = {
            "distinct": rng.normal(size=num_rows),
            "ties": rng.integers(-2, 3, num_rows),
            "equal": np.ones(num_rows),
        }
        score_N = raw_N[scores].astype(kind)
        score_N[:1] = -0.0
        score_N[1:2] = np.inf
        cuts = np.sort(rng.integers(0, num_rows + 1, 9))
        parts = [*iter_ranked(zip(np.split(ids_N, cuts), np.split(score_N, cuts), strict=True), 7)]
        found = np.concatenate([np.zeros(0, np.int64), *parts])
        assert np.array_equal(found, sort_by_rank(ids_N, score_N, 7))
        assert all(len(part) <= 600 for part in parts)


def test_rows_are_regrouped() -> None:
    parts = np.split(np.arange(100), [0, 3, 3, 50, 51])
    groups = [*iter_regrouped(parts, 16)]
    assert [len(group) for group in groups] == [16] * 6 + [4] and np.array_equal(np.concatenate(groups), np.arange(100))
    assert [*iter_regrouped([], 16)] == [] and [len(group) for group in iter_regrouped(parts, 50)] == [50, 50]


def test_a_counted_median_is_numpys(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for num in (0, 1, 2, 7, 100):
        drawn = ["é" * int(size) for size in rng.integers(0, 9, num)]
        ref = io.write(pa.table({"completion": pa.array([*drawn, None], pa.string())}), str(tmp_path / f"{num}.lance"))
        assert compute_median_length(ref) == (np.median([len(text) for text in drawn]) if num else None)
