"""A trust package in a user's own pipeline of Ray Data: the operator, and the example of the documentation."""

import datetime
import re
import runpy
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_package import sums, tiny_package

from curation.errors import SourceError
from curation.filter import Filter
from curation.package import TrustPackage

EXAMPLE = Path(__file__).parents[1] / "examples" / "filter_dataset.py"
NUM_ROWS = 90


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return tiny_package(tmp_path_factory.mktemp("packages") / "tiny")


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Rows with columns of a user's own, of types that Python values alone would lose; one cannot be read."""
    found = sums(NUM_ROWS)
    found[7]["problem"] = None
    table = pa.Table.from_pylist(found)
    small = pa.array([n % 100 for n in range(NUM_ROWS)], pa.int8())
    when = pa.array([datetime.date(2026, 1, 1)] * NUM_ROWS, pa.date32())
    return table.append_column("small", small).append_column("when", when)


def test_the_operator_gives_each_row_what_a_stream_gives_it(local_ray, package: TrustPackage, rows: pa.Table):
    import ray.data

    filtered = Filter.load(package)
    dataset = ray.data.from_arrow([rows.slice(0, 31), rows.slice(31)])
    scored = filtered.map(dataset, batch_rows=16)
    found = pa.concat_tables(scored.to_arrow_refs() and [ray.get(ref) for ref in scored.to_arrow_refs()])
    assert found.schema.names == [*rows.schema.names, "label", "completion", "trust", "trust_raw", "error"]
    assert found.select(rows.schema.names).sort_by("problem").equals(rows.sort_by("problem"))
    expected = {row["problem"]: row for row in filtered.score(rows.to_pylist())}
    for row in found.to_pylist():
        assert row == expected[row["problem"]]
    assert [row["error"] is None for row in found.to_pylist()].count(False) == 1
    with pytest.raises(SourceError, match="rows have a column label already"):
        filtered.map(ray.data.from_arrow(rows.append_column("label", rows["answer"])))
    with pytest.raises(SourceError, match="rows lack the column problem of the domain math"):
        filtered.map(ray.data.from_arrow(rows.rename_columns(["text", *rows.schema.names[1:]])))


def test_the_example_keeps_rows_above_a_threshold(local_ray, package, rows, tmp_path: Path, monkeypatch, capsys):
    pq.write_table(rows, tmp_path / "rows.parquet")
    trusts = [row["trust"] for row in Filter.load(package).score(rows.to_pylist()) if row["trust"] is not None]
    threshold = sorted(trusts)[len(trusts) // 2]
    arguments = [package.uri, str(tmp_path / "rows.parquet"), "-o", str(tmp_path / "kept"), "--trust", str(threshold)]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    kept = pq.read_table(tmp_path / "kept")
    assert sorted(kept["trust"].to_pylist()) == sorted(trust for trust in trusts if trust >= threshold)
    assert set(rows.schema.names) <= set(kept.schema.names)
    told = re.search(r"(\d+) rows, (\d+) kept, (\d+) errors", capsys.readouterr().out)
    assert told is not None and [int(number) for number in told.groups()] == [NUM_ROWS, kept.num_rows, 1]
