"""Rows that pass a threshold, written with their scores, over fragments in any order and with ties."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import DomainConfig, SourceConfig
from curation.filter.stages.cut import ThresholdCut
from curation.filter.stages.pool import PoolRows, Write, read_pool
from curation.refs import TableRef
from curation.selection.bound import Bound
from curation.selection.top_n import sort_by_rank
from curation.sources import discover
from curation.stages.prepare import SplitWriting
from curation.tables import io, schemas

NUM_ROWS, SEED = 300, 5
LANGUAGES = ("en", "d e/ü", None)
RAW, TRUST = schemas.get_raw_column("trust"), schemas.trust_column("trust")


@dataclass(frozen=True)
class Labelled:
    """A pool, its labels in a random order of fragments, and the ranks that rows must have."""

    rows: PoolRows
    pool: TableRef
    labels: TableRef
    threshold: ThresholdCut
    label_of: dict[int, str | None]
    ranks: dict[int, int]


@pytest.fixture(scope="module")
def labelled(local_ray, tmp_path_factory):
    folder = tmp_path_factory.mktemp("write")
    lines = [json.dumps({"problem": f"q{row}", "lang": LANGUAGES[row % 3]}) + "\n" for row in range(NUM_ROWS)]
    (folder / "pool.jsonl").write_text("".join(lines))
    files = tuple(discover(SourceConfig(path=str(folder / "pool.jsonl"))))
    rows = PoolRows(files=files, domain=DomainConfig(name="math"), columns=("lang",))
    pool = read_pool(rows, str(folder / "pool.lance"), SplitWriting(chunk_rows=100)).pool
    rng = np.random.default_rng(0)
    ids_N = rng.permutation(NUM_ROWS)
    raw_N = np.round(rng.normal(size=NUM_ROWS), 1).astype(np.float32)
    labels = [None if row % 7 == 0 else str(row % 5) for row in ids_N]
    table = pa.table(
        {
            "row_id": ids_N,
            "label": pa.array(labels),
            "completion": [f"c{row}" for row in ids_N],
            "error": pa.nulls(NUM_ROWS, pa.string()),
            RAW: raw_N,
            TRUST: (1 / (1 + np.exp(-raw_N))).astype(np.float32),
        }
    )
    lance.write_dataset(table, str(folder / "labels.lance"), max_rows_per_file=64)
    threshold = ThresholdCut(column=RAW, bound=Bound(score=0.3, tie=1 << 63, seed=SEED, num_selected=0))
    passes_N = threshold.passes(table.combine_chunks().to_batches()[0])
    ordered_n = sort_by_rank(ids_N[passes_N], raw_N[passes_N], SEED)
    return Labelled(
        rows=rows,
        pool=pool,
        labels=io.find_latest(str(folder / "labels.lance")),
        threshold=threshold,
        label_of=dict(zip(ids_N.tolist(), labels, strict=True)),
        ranks={row_id: rank for rank, row_id in enumerate(ordered_n.tolist())},
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read().to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]  # pyarrow's reader never ends with one thread


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_every_row_is_written_once_with_its_score(labelled, tmp_path, form):
    stage = Write(
        name="write-0000",
        labels=labelled.labels,
        examples=labelled.pool,
        rows=labelled.rows,
        threshold=labelled.threshold.to_json(),
        function="trust",
        output=str(tmp_path / "data"),
        form=form,
    )
    files = stage.write("part")
    assert sum(file.rows for file in files) == len(labelled.ranks) and len(files) > 1
    assert {path.name for path in (tmp_path / "data").rglob("part-*")} == {file.path for file in files}
    assert stage.write("part") == files  # the same bytes under the same names
    rows = [row for file in files for row in read(tmp_path / "data" / file.path)]
    ids_n, raw_n = (np.array([row[name] for row in rows]) for name in ("row_id", "trust_raw"))
    ordered_n = sort_by_rank(ids_n, raw_n.astype(np.float32), SEED)
    assert {row_id: rank for rank, row_id in enumerate(ordered_n.tolist())} == labelled.ranks
    assert len(rows) == len(labelled.ranks)
    for row in rows:
        number = row["row_id"]
        assert row["lang"] == LANGUAGES[number % 3] and row["label"] == labelled.label_of[number]
        assert row["completion"] == f"c{number}" and f"q{number}" in row["prompt"]


def test_a_pool_of_tiny_files_is_read_in_their_order_and_a_part_that_is_there_stays(local_ray, tmp_path):
    for number in range(14):
        rows = [{"problem": f"q{number}-{row}", "lang": LANGUAGES[row]} for row in range(3)]
        (tmp_path / f"{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = tuple(discover(SourceConfig(path=str(tmp_path / "*.jsonl"))))
    rows = PoolRows(files=files, domain=DomainConfig(name="math"), columns=("lang",))
    uri = str(tmp_path / "pool.lance")
    ref = read_pool(rows, uri, SplitWriting(chunk_rows=10)).pool  # three files a chunk, the last one of two
    found = io.read(ref)
    ids = [(number << schemas.FILE_SHIFT) + row for number in range(14) for row in range(3)]
    assert found["row_id"].to_pylist() == ids
    assert found["problem"].to_pylist() == [f"q{number}-{row}" for number in range(14) for row in range(3)]
    assert found["lang"].to_pylist() == [*LANGUAGES] * 14
    assert rows.offsets(np.array(ids)).tolist() == list(range(len(ids)))
    assert read_pool(rows, uri, SplitWriting(chunk_rows=10)).pool == ref
    first = io.open_table(ref).to_table(limit=18)  # two chunks, as a kill may leave them
    lance.write_dataset(first, str(tmp_path / "killed.lance"), max_rows_per_file=9)
    before = {fragment.metadata.files[0].path for fragment in lance.dataset(tmp_path / "killed.lance").get_fragments()}
    again = read_pool(rows, str(tmp_path / "killed.lance"), SplitWriting(chunk_rows=10, fragment_mb=1)).pool
    assert io.read(again).equals(found)
    assert len(before) == 2
