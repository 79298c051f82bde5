import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import DomainConfig, SourceConfig
from curation.config.filter import keep_of
from curation.errors import ConfigError, SourceError
from curation.filter.stages.pool import PoolRows
from curation.sources import discover
from curation.tables.files import write_file
from curation.tables.schemas import FILE_SHIFT


@pytest.fixture
def pool(tmp_path):
    """Two Parquet files and a JSONL file, whose numbers are not their places."""
    for name, urls in (("b.parquet", ["x", "y", "z"]), ("c.parquet", ["u", "v"])):
        table = pa.table({"problem": urls, "url": urls, "tags": [[1, 2]] * len(urls), "size": [1.5] * len(urls)})
        pq.write_table(table, tmp_path / name)
    (tmp_path / "a.jsonl").write_text('{"problem": "p", "url": 7, "size": 2}\n')
    return tmp_path


def rows_of(pool, columns, name="*.parquet"):
    files = discover(SourceConfig(path=str(pool / name), mixed=True))
    return PoolRows(files=tuple(files), domain=DomainConfig(name="math"), columns=columns)


def test_offsets_and_paths_follow_from_ids(pool):
    rows = rows_of(pool, ())
    ids_N = np.array([(1 << FILE_SHIFT) + 1, 2, 1 << FILE_SHIFT, 0])
    assert rows.offsets(ids_N).tolist() == [4, 2, 3, 0] and rows.num_rows == 5
    assert [path.rpartition("/")[2] for path in rows.paths(ids_N).to_pylist()] == [f"{name}.parquet" for name in "cbcb"]


def test_kept_columns_have_the_files_type_or_are_json(pool):
    kinds = {field.name: str(field.type) for field in rows_of(pool, ("url", "tags", "size")).schema()}
    assert kinds["url"] == "string" and kinds["tags"] == "string" and kinds["size"] == "double"
    with pytest.raises(
        SourceError, match=r"column 'size' is (double|string), and (double|string) in .*; give the files"
    ):
        rows_of(pool, ("size",), "*").schema()
    assert str(rows_of(pool, ("url",), "*").schema().field("url").type) == "string"


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_file_that_fails_is_not_there_at_all(tmp_path, form):
    schema = pa.schema([("a", pa.int64())])
    batch = pa.record_batch([pa.array([1, 2])], schema=schema)

    def failing():
        yield batch
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_file(failing(), schema, tmp_path / "data" / f"x.{form}", form)
    assert list((tmp_path / "data").iterdir()) == []
    written = write_file([batch, batch], schema, tmp_path / "data" / f"x.{form}", form)
    path = tmp_path / "data" / f"x.{form}"
    assert (written.rows, written.bytes) == (4, path.stat().st_size)
    rows = (
        pq.read_table(path)["a"].to_pylist() if form == "parquet" else [json.loads(line)["a"] for line in path.open()]
    )
    assert rows == [1, 2, 1, 2]


def test_keep_is_a_share_or_a_number():
    assert keep_of("0.1") == {"share": 0.1} and keep_of("1") == {"n": 1} and keep_of("1e6") == {"n": 1_000_000}
    for text in ("0", "-3", "1.5", "nan", "all"):
        with pytest.raises(ConfigError, match="is neither a share"):
            keep_of(text)


def test_a_known_file_is_not_looked_into_again(pool):
    source = SourceConfig(path=str(pool / "*.jsonl"))
    (known,) = discover(source)
    marked = type(known)(**{**vars(known), "num_rows": 99})
    assert discover(source, [marked]) == [marked]
    (pool / "a.jsonl").write_text('{"problem": "p"}\n{"problem": "q"}\n')
    assert discover(source, [marked])[0].num_rows == 2
