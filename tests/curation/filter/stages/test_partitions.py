"""Folders of partitions, read back by pyarrow, which knows Hive's names."""

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from curation.errors import ConfigError
from curation.filter.stages.parts import MAX_FOLDERS, check_columns, check_number, format_folders

TEXTS = ["en", None, "a b/c", "ü=1%2F", "", "..", "en"]
NUMBERS = [1, 2, None, -4, 5, 6, 1]
FLAGS = [True, False, None, True, True, False, True]


def test_pyarrow_reads_the_values_back(tmp_path):
    columns = {"language": pa.array(TEXTS), "year": pa.array(NUMBERS), "ok": pa.array(FLAGS)}
    folders = format_folders(columns).to_pylist()
    assert folders[0] == folders[6] == "language=en/year=1/ok=true"
    for number, folder in enumerate(folders):
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"row": [number]}), path / f"{number}.parquet")
        assert path.resolve().is_relative_to(tmp_path) and len(path.relative_to(tmp_path).parts) == 3
    schema = pa.schema([("language", pa.string()), ("year", pa.int64()), ("ok", pa.bool_())])
    found = ds.dataset(tmp_path, partitioning=ds.partitioning(schema, flavor="hive")).to_table().sort_by("row")
    assert found["language"].to_pylist() == TEXTS
    assert found["year"].to_pylist() == NUMBERS and found["ok"].to_pylist() == FLAGS


def test_columns_that_make_no_folders_are_refused():
    schema = pa.schema([("url", pa.string()), ("score", pa.float32())])
    check_columns(("url",), schema)
    with pytest.raises(ConfigError, match=r"no column 'lang' \(it has: url, score\); a column of the pool's"):
        check_columns(("url", "lang"), schema)
    with pytest.raises(ConfigError, match="column 'score' is float; take one of text"):
        check_columns(("score",), schema)
    with pytest.raises(ConfigError, match=r"a folder's name of 304 bytes \(url=xxx.*more than 255"):
        format_folders({"url": pa.array(["x" * 300])})
    check_number(["a"] * MAX_FOLDERS)
    with pytest.raises(ConfigError, match="have 1,025 values, and each is a folder"):
        check_number(["a"] * (MAX_FOLDERS + 1))
