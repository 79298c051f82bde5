"""Columns that are kept as they are: in their type, or as texts that read as their values."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from curation.errors import SourceError
from curation.sources import SourceFile, as_kept, make_kept_fields


def file(name: str, **schema: str) -> SourceFile:
    return SourceFile(path=name, format="parquet", index=0, num_rows=1, size=1, modified="0", schema=schema)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array(["a", None]), ["a", None]),
        (pa.array([5, None]), ["5", None]),
        (pa.array([Decimal("12.50")]), ["12.50"]),
        (pa.array([datetime.date(2026, 1, 2)]), ["2026-01-02"]),
        (pa.array([True]), ["true"]),
        (pa.array([["é", 1][:1]]), ['["é"]']),
        (pa.array([{"a": 1}]), ['{"a": 1}']),
    ],
)
def test_what_has_no_type_in_the_files_is_a_text(values: pa.Array, texts: list[str | None]) -> None:
    assert as_kept(values, pa.string()).to_pylist() == texts


def test_columns_keep_their_types_where_files_agree() -> None:
    fields = make_kept_fields([file("a", id="int64", when="timestamp[us, tz=UTC]")], ["id", "when"])
    assert [field.type for field in fields] == [pa.int64(), pa.string()]
    with pytest.raises(SourceError, match="b: column 'id' is string, and int64 in a"):
        make_kept_fields([file("a", id="int64"), file("b", id="text")], ["id"])
