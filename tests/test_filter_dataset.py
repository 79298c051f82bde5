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
from curation.filter.package.folder import TrustPackage

pytestmark = pytest.mark.long

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


def test_columns_that_clash_or_lack_are_refused_before_anything_runs(local_ray, package: TrustPackage, rows: pa.Table):
    import ray.data

    filtered = Filter.load(package)
    with pytest.raises(SourceError, match="rows have a column label already"):
        filtered.map(ray.data.from_arrow(rows.append_column("label", rows["answer"])))
    with pytest.raises(SourceError, match="rows lack the column problem of the domain math"):
        filtered.map(ray.data.from_arrow(rows.rename_columns(["text", *rows.schema.names[1:]])))


def test_the_example_gives_each_row_what_a_stream_gives_it(
    local_ray, package, rows, tmp_path: Path, monkeypatch, capsys
):
    pq.write_table(rows, tmp_path / "rows.parquet")
    scored = [row for row in Filter.load(package).score(rows.to_pylist()) if row["trust"] is not None]
    threshold = sorted(row["trust"] for row in scored)[len(scored) // 4]
    expected = {row["problem"]: row for row in scored if row["trust"] >= threshold}
    arguments = [package.uri, str(tmp_path / "rows.parquet"), "-o", str(tmp_path / "kept"), "--trust", str(threshold)]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    kept = pq.read_table(tmp_path / "kept")
    added = ["label", "completion", "trust", "trust_raw", "error"]
    assert kept.schema.names == [*rows.schema.names, *added]
    assert [kept.schema.field(name).type for name in rows.schema.names] == list(rows.schema.types)
    assert {row["problem"]: row for row in kept.to_pylist()} == expected and kept.num_rows == len(expected)
    told = re.search(r"(\d+) rows, (\d+) kept, (\d+) errors", capsys.readouterr().out)
    assert told is not None and [int(number) for number in told.groups()] == [NUM_ROWS, kept.num_rows, 1]


@pytest.mark.slow
def test_a_process_that_keeps_dying_ends_the_pipeline(local_ray, tmp_path: Path):
    """Ray Data repeats a batch for ever unless it is told otherwise."""
    import ray.data

    from curation.config.filter import FilterTeacherConfig

    package, rows = tiny_package(tmp_path / "poison"), sums(20)
    (row_id,), _ = Filter.load(package)._read_examples([rows[11]])
    script = {**package.description.ask.scripted.model_dump(), "poison_rows": [row_id]}
    filtered = Filter.load(package, runs=FilterTeacherConfig(scripted=script))
    table = pa.Table.from_pylist(rows)
    with pytest.raises(Exception, match=r"(?i)actor.*died|ActorDiedError|ActorUnavailable"):
        filtered.map(ray.data.from_arrow(table)).materialize()
    healthy = table.filter(pa.array([n != 11 for n in range(20)]))
    assert filtered.map(ray.data.from_arrow(healthy)).count() == 19
