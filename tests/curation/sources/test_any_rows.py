"""Rows of any texts, written in each format, are read as the same rows, or the file is refused."""

import bz2
import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation.config import SourceConfig
from curation.errors import SourceError
from curation.sources import discover, read_rows, to_raw_rows
from curation.sources.missing import replace_missing

NAMES = ["text", "label"]
SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIGNS = st.sampled_from([*"ab7 ,;\t|\"'\\\n", "\r\n", "ä", "😀", "\u2028", "a,b\n", '"', '""', "NaN", "{", "["])
TEXT = st.lists(SIGNS, max_size=8).map("".join)
ROWS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6).map(
    lambda rows: [dict(zip(NAMES, row, strict=True)) for row in rows]
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def read(path: Path, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a file as a domain gets them."""
    files = discover(SourceConfig(path=str(path), **options))
    return [row for file in files for batch in read_rows(file) for row in to_raw_rows(batch)]


def has_rows(rows: list[dict[str, Any]]) -> bool:
    """Return whether no row is a blank line, which is none."""
    return all(any(row.values()) for row in rows)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@SOME
@given(rows=ROWS.filter(has_rows))
def test_csv(delimiter: str, quoting: Any, tmp_path: Path, rows: list[dict[str, str]]) -> None:
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, NAMES, delimiter=delimiter, quoting=quoting)
        writer.writeheader()
        writer.writerows(rows)
    assert read(path, delimiter=delimiter, quoting="quotes") == replace_missing(rows)
    try:
        assert read(path, delimiter=delimiter) == replace_missing(rows)
    except SourceError as error:
        assert "set quoting: none" in str(error)


@SOME
@given(rows=ROWS)
def test_tabs_without_quoting(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    rows = [{name: " ".join(text.split()) or "x" for name, text in row.items()} for row in rows]
    path = tmp_path / "x.csv"
    path.write_text("".join("\t".join(row) + "\n" for row in (NAMES, *(list(row.values()) for row in rows))))
    assert read(path, delimiter="\t", quoting="none") == replace_missing(rows)


@pytest.mark.parametrize(("ending", "open_it"), [("", open), (".gz", gzip.open), (".bz2", bz2.open)])
@SOME
@given(rows=st.lists(st.dictionaries(st.sampled_from(NAMES), VALUE, min_size=1), min_size=1, max_size=6))
def test_json_lines(ending: str, open_it: Callable[..., Any], tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / f"x.jsonl{ending}"
    with open_it(path, "wt", encoding="utf-8", newline="") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    names = {name for row in rows for name in row}
    wanted = [{name: replace_missing(row.get(name)) for name in names} for row in rows]
    # as JSON, for which 1, 1.0 and true differ
    assert [json.dumps(row, sort_keys=True) for row in read(path)] == [
        json.dumps(row, sort_keys=True) for row in wanted
    ]


MANY = [
    {"text": value, "label": value, "more": {"number": number, f"key{number % 7}": value}}
    for number, value in enumerate([1, 1.5, "1", True, None, [1, "a"], {"a": 1}, {"b": [None]}, "NaN", 10**18] * 1_000)
]


@pytest.mark.long
@settings(SOME, max_examples=15)
@given(row=st.dictionaries(st.sampled_from(NAMES), VALUE, min_size=1), place=st.integers(0, len(MANY)))
def test_a_row_of_json_lines_alone_and_among_many_is_the_same(tmp_path: Path, row: dict[str, Any], place: int) -> None:
    lines = [json.dumps(other) for other in MANY]
    (tmp_path / "many.jsonl").write_text("\n".join([*lines[:place], json.dumps(row), *lines[place:]]))
    (tmp_path / "one.jsonl").write_text(json.dumps(row))
    among, (alone,) = read(tmp_path / "many.jsonl")[place], read(tmp_path / "one.jsonl")
    assert {name: json.dumps(value) for name, value in among.items() if value is not None} == {
        name: json.dumps(value) for name, value in alone.items() if value is not None
    }


@SOME
@given(rows=ROWS)
def test_parquet_and_lance(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("tables")
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "x.parquet")
    lance.write_dataset(table, str(folder / "x.lance"))
    bytes_of = pa.table({name: table[name].cast(pa.binary()) for name in NAMES})
    pq.write_table(bytes_of, folder / "bytes.parquet")
    for name in ("x.parquet", "x.lance", "bytes.parquet"):
        assert read(folder / name) == replace_missing(rows)
