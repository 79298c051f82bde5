import bz2
import csv
import datetime
import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.config import SourceConfig, SplitConfig
from curation.errors import ConfigError, SourceError
from curation.sources import (
    Permutation,
    SourceFile,
    assign,
    check_unchanged,
    check_unique,
    discover,
    get_row_ids,
    read_rows,
    read_rows_at,
    readers,
    records,
    require_columns,
    to_raw_rows,
)
from curation.sources.readers import MARK_ROWS
from curation.sources.records import MAX_RECORD
from curation.tables.schemas import FILE_SHIFT

ROWS = [
    {"number": str(index), "text": None if index % 7 == 0 else f'say "{index}",\nthen é', "note": f"n{index}"}
    for index in range(250)
]
FORMATS = ["parquet", "jsonl", "csv", "lance"]


def write(path: Path, rows: list[dict], *, group: int = 60) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    elif path.suffix == ".lance":
        lance.write_dataset(table, str(path), max_rows_per_file=group)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def found(path: object, known: tuple[SourceFile, ...] = (), **options: Any) -> list[SourceFile]:
    return discover(SourceConfig(path=str(path), **options), known)


def rows_of(file: SourceFile, start: int = 0, stop: int | None = None, columns: list[str] | None = None) -> list[dict]:
    """The rows with their values as the file has them; only those of JSON are read as a domain gets them."""
    batches = read_rows(file, start, stop, columns)
    return [row for batch in batches for row in (to_raw_rows(batch) if file.format == "jsonl" else batch.to_pylist())]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_rows_and_ids(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MARK_ROWS", 40)
    monkeypatch.setattr(readers, "BATCH_ROWS", 16)
    (file,) = found(write(tmp_path / f"rows.{form}", ROWS))
    assert (file.format, file.num_rows, file.index) == (form, len(ROWS), 0)
    assert rows_of(file) == ROWS
    for start, stop in [(0, 1), (39, 41), (55, 130), (120, 180), (249, 250), (100, 100)]:
        assert rows_of(file, start, stop) == ROWS[start:stop]
        assert get_row_ids(file, start, stop, None).tolist() == list(range(start, stop))
    assert rows_of(file, 3, 5, ["note"]) == [{"note": "n3"}, {"note": "n4"}]
    assert SourceFile.from_json(json.loads(json.dumps(file.recorded()))) == file


def test_folders_globs_and_urls(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.jsonl", "deep/c.parquet", "deep/d.lance", "_hidden.csv", "readme.md"):
        if name.endswith(".md"):
            (tmp_path / name).write_text("hello")
        else:
            write(tmp_path / name, ROWS[:5])

    def names(files: list[SourceFile]) -> list[str]:
        return [file.path.removeprefix("file://").removeprefix(f"{tmp_path}/") for file in files]

    everything = ["a.jsonl", "b.parquet", "deep/c.parquet", "deep/d.lance"]
    assert names(found(tmp_path, mixed=True)) == everything
    assert names(found(f"file://{tmp_path}", mixed=True)) == everything
    assert names(found(tmp_path, format="parquet")) == ["b.parquet", "deep/c.parquet"]
    assert names(found(tmp_path / "*.parquet")) == ["b.parquet"]
    assert names(found(tmp_path / "**" / "*.parquet")) == ["b.parquet", "deep/c.parquet"]
    assert names(found(f"file://{tmp_path}/deep/[cd].*", mixed=True)) == ["deep/c.parquet", "deep/d.lance"]
    for file in found(f"file://{tmp_path}", mixed=True):
        assert rows_of(file) == ROWS[:5]


@pytest.mark.parametrize(
    "name", ["a b", "ü北京", "50%", "a%20b", "#1", "why?", "x[1]*", "q'\"`$HOME", "a\\b", "~", "date=1+1"]
)
def test_names_of_any_letters(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for form in FORMATS:
        write(folder / f"{name}.{form}", ROWS[:3])
    url = f"file://{quote(str(folder))}"
    for path in (str(folder), url):
        assert [rows_of(file) for file in found(path, mixed=True)] == [ROWS[:3]] * len(FORMATS)
    for form in FORMATS:
        for path in (str(folder / f"{name}.{form}"), f"{url}/{quote(name)}.{form}", f"{url}/{quote(name[:1])}*.{form}"):
            (file,) = found(path)
            assert rows_of(file) == ROWS[:3]
            (again,) = found(file.path, (file,))
            assert again == file


def test_fsspec_urls() -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/curation-test/x.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in ROWS))
    for path in ("memory://curation-test/x.jsonl", "memory://curation-test", "memory://curation-test/*.jsonl"):
        (file,) = found(path)
        assert rows_of(file, 100, 103) == ROWS[100:103]
        check_unchanged([file], found(path))
    files.pipe("/curation-test/x.jsonl", b'{"a": 1}\n')
    with pytest.raises(SourceError, match="modified was"):
        check_unchanged([file], found(path))


def test_numbers_stay_when_files_are_added(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", ROWS[:3])
    write(tmp_path / "d.parquet", ROWS[:3])
    before = found(tmp_path)
    write(tmp_path / "c.parquet", ROWS[:3])
    write(tmp_path / "a.parquet", ROWS[:3])
    now = found(tmp_path, tuple(before))
    assert [(Path(file.path).name[0], file.index) for file in now] == [("b", 0), ("d", 1), ("a", 2), ("c", 3)]
    assert get_row_ids(now[2], 1, 3, None).tolist() == [(2 << FILE_SHIFT) + 1, (2 << FILE_SHIFT) + 2]
    check_unchanged(before, now)


@pytest.mark.parametrize("form", FORMATS)
def test_changed_and_vanished_files_are_refused(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{form}"
    write(path, ROWS[:5])
    before = found(path)
    if form == "lance":
        lance.write_dataset(pa.Table.from_pylist(ROWS[5:6]), str(path), mode="append")
    else:
        write(path, ROWS[:6])
    with pytest.raises(SourceError, match=rf"x\.{form}: changed .*num_rows was 5, is 6"):
        check_unchanged(before, found(path))
    with pytest.raises(SourceError, match=rf"x\.{form}: .* is gone"):
        check_unchanged(before, [])
    if form == "jsonl":
        path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:3]))
        with pytest.raises(SourceError, match="changed while it was read"):
            rows_of(before[0])


def test_a_file_that_was_copied_anew_is_told_how_to_get_its_time_back(tmp_path: Path) -> None:
    path = tmp_path / "x y.parquet"
    write(path, ROWS[:5])
    before = found(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"its bytes have not changed.* \((touch .*)\), or start") as refused:
        check_unchanged(before, found(path))
    command = re.search(r"\((touch [^)]*)\)", str(refused.value))
    assert command is not None
    subprocess.run(command[1], shell=True, check=True)
    check_unchanged(before, found(path))
    write(path, list(reversed(ROWS[:5])))
    with pytest.raises(SourceError) as refused:
        check_unchanged(before, found(path))
    assert "touch" not in str(refused.value)


def test_jsonl_takes_nulls_other_orders_and_mixed_types(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '\ufeff{"a": null, "b": 1}\n\n{"b": "two", "a": [1, 2]}\r\n{"a": {"k": 3}}\n{"b": "\\ud83d\\ude00"}'
    )
    (file,) = found(path)
    assert list(file.schema) == ["a", "b"]
    assert rows_of(file) == [
        {"a": None, "b": 1},
        {"a": [1, 2], "b": "two"},
        {"a": {"k": 3}, "b": None},
        {"a": None, "b": "😀"},
    ]


def test_a_csv_row_of_spaces_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a\n1\n  \n\n""\n2\n')
    assert [row["a"] for row in rows_of(found(tmp_path / "x.csv")[0])] == ["1", "  ", None, "2"]


def test_quotes_are_csvs_or_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('text\tlabel\nfine "day"\tpos\n"A long\tneg\nends"\tpos\n')
    with pytest.raises(SourceError, match=r"record 2 .*set quoting: none .* or quoting: quotes"):
        found(path, delimiter="\t")
    assert [list(row.values()) for row in rows_of(found(path, delimiter="\t", quoting="none")[0])] == [
        ['fine "day"', "pos"],
        ['"A long', "neg"],
        ['ends"', "pos"],
    ]
    path.write_text('text\tlabel\n"A long\tneg\nends"\tpos\n')
    (file,) = found(path, delimiter="\t", quoting="quotes")
    assert rows_of(file) == [{"text": "A long\tneg\nends", "label": "pos"}]
    assert SourceFile.from_json(file.to_json()) == replace(file, content="")
    path.write_text('text\tlabel\n"A long\tneg\nodd\tone\tneg\nends"\tpos\n')  # the second line has three fields
    with pytest.raises(SourceError, match=r"record 1 is one row of 3 lines .*set quoting: none"):
        found(path, delimiter="\t")
    path.write_text('text,label\n"Yes, but\nno, never",pos\n')  # a sentence's commas separate nothing
    assert rows_of(found(path)[0]) == [{"text": "Yes, but\nno, never", "label": "pos"}]


def test_empty_last_columns_are_none_and_spaces_after_delimiters_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('text,label,\r\n"a, b",pos,\r\n')
    (file,) = found(path)
    assert list(file.schema) == ["text", "label"] and rows_of(file) == [{"text": "a, b", "label": "pos"}]
    path.write_text('text, label\n"a, b", "pos"\n')
    with pytest.raises(SourceError, match=r"record 1 has a space before the quote that opens a field"):
        found(path)
    path.write_text("text, label\na, pos\n")
    assert list(found(path)[0].schema) == ["text", " label"]  # refused where a column label is asked for


def test_a_jsonl_row_is_what_its_line_says_whatever_stands_beside_it(tmp_path: Path) -> None:
    rows = [
        {"a": 2.5, "b": [1.0, False], "c": {"d": 1}},
        {"a": True, "b": [], "c": {"e": False}},
        {"a": 7, "b": ["7", 7], "c": 10**30},
    ]
    for some in (rows, rows[::-1], rows * 5_000, *([row] for row in rows)):
        (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, some)))
        # as JSON, for which 7, 7.0 and True differ
        assert list(map(json.dumps, rows_of(found(tmp_path / "x.jsonl")[0]))) == list(map(json.dumps, some))


def test_a_key_that_first_stands_in_a_late_row_is_a_column(tmp_path: Path) -> None:
    lines = [json.dumps({"a": n}) for n in range(1_000)] + ['{"a": 1, "b": {"c": "late"}}', "{"]
    (tmp_path / "x.jsonl").write_text("\n".join(lines[:-1]))
    file = found(tmp_path / "x.jsonl")[0]
    assert list(file.schema) == ["a", "b"]
    assert [row["b"] for row in rows_of(file, 999)] == [None, {"c": "late"}]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(SourceError, match="record 1002 is not JSON"):
        rows_of(found(tmp_path / "x.jsonl")[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"a": 1}\n{"a": \n', "record 2 is not JSON"),
        ("x.jsonl", b"[1]\n", "record 1 is an array"),
        ("x.jsonl", b"\n\n", "holds no rows"),
        ("x.csv", b"a,b\n", "holds no rows"),
        ("x.csv", b"", r"x\.csv: is empty, without even a header; write the columns. names in line 1"),
        ("x.csv", b"\xef\xbb\xbf\r\n\r\n", "is empty, without even a header"),
        ("x.csv", b"a,a\n1,2\n", "names a column twice"),
        ("x.csv", b'a,b\n1,2\n1,"2\n', """record 2 has a quoted field that never ends, near '1,"2'"""),
        ("x.csv", b'a,b\n1,5" pipe\n2,3\n', """record 1 has a quoted field that never ends, near '1,5" pipe'"""),
        ("x.csv", b'a,b\n0,0\n1,5" pipe\n2,6" pipe\n', """record 2 cannot be read as CSV near '1,5" pipe"""),
        ("x.csv", b'a,b\n1,"2"3\n', """record 1 cannot be read as CSV near '1,"2"3'"""),
        ("x.csv", b"a,b\r1,2\r3,4\r", "its line ends are carriage returns; convert them: tr"),
        ("x.csv", "a,b\n1,2\n".encode("utf-16"), "the file is UTF-16; convert it to UTF-8: iconv"),
        (
            "x.csv",
            b"\xef\xbb\xbfsep=;\r\na;b\r\n1;2\r\n",
            'sep=;. is Excel.s hint, .* delete line 1, and set delimiter: ";"',
        ),
        ("x.csv", b"a,b,,\n1,2,,3\n", "record 1 has 4 fields, the header 2"),
        ("x.csv", b'a,b\n"1,x\n2",y\n', "record 1 is one row of 2 lines .* have 2 fields .*set quoting: none"),
        ("x.csv", b'"a";"b"\r"1";"2"\r', "its line ends are carriage returns; convert them: tr"),
        ("x.csv", b"SEP=,\r\na,b\r\n1,2\r\n", "is Excel.s hint"),
        (
            "x.csv",
            b'a,b\n1, "2"\n',
            """record 1 has a space before the quote that opens a field, near '1, "2"'; take""",
        ),
        ("x.csv", b"a,b\n1,2\n3,caf\xe9\n", r"record 2 is not UTF-8 near '3,caf.xe9"),
        ("x.csv", b"a,\xff\n1,2\n", r"record 0 is not UTF-8 near 'a,.xff"),
        ("x.csv", b"a,b\n1,\x1b[2J,3\n", r"record 1 has 3 fields, the header 2, near '1,.u001b.2J,3'"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"""record 2 is not UTF-8 near '.*xff"""),
        ("x.jsonl", b'{"a": 1, "b": tru}\n', "record 1 is not JSON .Expecting value. near '.*tru}'"),
        ("x.jsonl", b'{"a": 1, "b": 2, "a": 3}\n', "record 1 has the key 'a' twice, near"),
        ("x.jsonl", b'{"a": {"b": 2, "b": 3}}\n', "record 1 has the key 'b' twice, near"),
        ("x.jsonl", b'{"a": "\\ud800"}\n', r"record 1 has half of a surrogate pair near '.\"a\": \"\\ud800"),
        ("x.jsonl", b'{"a": ' + b"[" * 100_000, "record 1 nests deeper than 50 levels"),
        ("x.jsonl", b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "record 1 nests deeper than 50 levels"),
        ("x.jsonl", b'{"a": ' + b"1" * 5_000 + b"}", "record 1 has an integer of thousands of digits"),
        ("x.parquet", b"nonsense", "cannot be read as parquet"),
        ("x.lance", b"nonsense", "cannot be read as lance"),
        ("x.txt", b"a", "unknown format"),
    ],
)
def test_broken_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as error:
        found(tmp_path / name)
    assert len(str(error.value)) < 600 and "\n" not in str(error.value)


def test_broken_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 1_500 + "1,2,3\n")
    with pytest.raises(SourceError, match=r"x\.csv: record 1501 has 3 fields, the header 2, near '1,2,3'"):
        rows_of(found(path)[0], 1_400)
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' * 1_500 + '{"a"\n')
    with pytest.raises(SourceError, match=r"x\.jsonl: record 1501 is not JSON"):
        rows_of(found(path)[0], 1_400)


def test_a_quote_that_is_not_closed_does_not_take_in_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_RECORD", 1 << 20)
    path = tmp_path / "x.csv"
    path.write_text('a,b\n1,"2\n' + "1,2\n" * 10**6)
    with pytest.raises(SourceError, match="record 1 has a quoted field that never ends"):
        found(path)
    path.write_bytes(b"a,b\n1," + b"2" * (3 << 20))
    with pytest.raises(SourceError, match="a line has more than 1 MiB"):
        found(path)


@pytest.mark.parametrize("form", FORMATS)
def test_a_value_of_a_million_characters_and_nul(form: str, tmp_path: Path) -> None:
    rows = [{"a": "x" * 10**6, "b": "\x00"}, {"a": '"=1+1' * 10**5, "b": "<script>{{ 7 * 7 }}"}]
    assert rows_of(found(write(tmp_path / f"x.{form}", rows))[0]) == rows


@pytest.mark.parametrize("form", ["parquet", "lance"])
def test_text_that_is_not_utf8_is_refused(form: str, tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xffb")])
    table = pa.table({"n": [1, 2], "a\x1b": texts})
    path = tmp_path / f"x.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        lance.write_dataset(table, str(path))
    told = {"parquet": r"row 2, column 'a\\u001b': Invalid UTF8", "lance": "cannot be read as lance: .*invalid utf-8"}
    with pytest.raises(SourceError, match=rf"x\.{form}: {told[form]}") as error:
        rows_of(found(path)[0])
    assert ".rs:" not in str(error.value)


def test_parquet_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=r"names a column twice \('x'\)"):
        found(tmp_path / "x.parquet")


def test_values_that_python_has_no_type_for_are_texts(tmp_path: Path) -> None:
    far, odd = pa.array([2**50, 0], pa.timestamp("ms")), pa.array([1, 2], pa.timestamp("ns", "No/Where"))
    pq.write_table(pa.table({"far": far}), tmp_path / "x.parquet")
    (batch,) = read_rows(found(tmp_path / "x.parquet")[0])
    first, second = (row["far"] for row in to_raw_rows(batch))
    assert str(2**50) in first and second == datetime.datetime(1970, 1, 1)
    with pytest.raises(SourceError, match=r"column 'odd' cannot be read: .*No/Where"):
        to_raw_rows(pa.RecordBatch.from_arrays([odd], ["odd"]))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such file or folder"):
        found(tmp_path / "none.csv")
    with pytest.raises(SourceError, match="no file matches"):
        found(tmp_path / "*.csv")
    with pytest.raises(SourceError, match="no file matches"):
        found(tmp_path / "none" / "*.csv")
    with pytest.raises(SourceError, match="holds no files"):
        found(tmp_path)
    with pytest.raises(SourceError, match="neither pyarrow nor fsspec"):
        found("nonsense://x")
    write(tmp_path / "x.csv", ROWS[:2])
    with pytest.raises(SourceError, match=r"x\.csv: has no column 'fen' \(it has: number, text, note\)"):
        require_columns(found(tmp_path), [["text", "fen"]])
    with pytest.raises(
        SourceError, match=r"no column 'b' \(it has: .*; forms that are read: x, y, z or note, b or a, b\)"
    ):
        require_columns(found(tmp_path), [["x", "y", "z"], ["note", "b"], ["a", "b"]])
    require_columns(found(tmp_path), [["fen"], ["text", "note"]])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2], [3, 1]], "b.parquet: id: the id 1 occurs in more than one row"),
        ([[1, 1], [3]], "a.parquet: id: the id 1 occurs in more than one row"),
        ([[1, None], [3]], "1 rows have no id"),
        ([[1.5], [2.5]], "ids are double, not integers"),
        ([[-1], [2]], "the id -1 is negative"),
    ],
)
def test_bad_ids(ids: list[list], message: str, tmp_path: Path) -> None:
    for name, values in zip("ab", ids, strict=True):
        write(tmp_path / f"{name}.parquet", [{"id": value} for value in values])
    with pytest.raises(SourceError, match=message):
        check_unique(found(tmp_path), "id")


def test_own_ids(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", [{"id": 7}, {"id": 2}])
    write(tmp_path / "b.jsonl", [{"id": 3}, {"id": 2**62}])
    write(tmp_path / "c.jsonl", [{"id": 2**63 - 1}, {"id": 2**53 + 1}])
    pq.write_table(pa.table({"id": pa.array([2**63 - 2, 2**53], pa.uint64())}), tmp_path / "d.parquet")
    files = found(tmp_path, mixed=True)
    check_unique(files, "id")
    expected = [[7, 2], [3, 2**62], [2**63 - 1, 2**53 + 1], [2**63 - 2, 2**53]]
    assert [get_row_ids(file, 0, 2, "id").tolist() for file in files] == expected
    pq.write_table(pa.table({"id": pa.array([2**63, 1], pa.uint64())}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"b\.parquet: id: .*below 2\*\*63"):
        check_unique(found(tmp_path / "b.parquet"), "id")
    for name, text, message in [
        ("c.csv", f"id,x\n{2**63},1\n", "below 2\\*\\*63"),
        ("d.csv", "id,x\n  ,1\n", "1 rows have no id"),
        ("e.jsonl", f'{{"id": {2**63}}}\n{{"id": 1}}\n', "not all integers"),
        ("f.jsonl", '{"id": NaN}\n{"id": 1}\n', "1 rows have no id"),
        ("g.csv", "id,x\n7.0,1\n", "give integers"),
        ("h.csv", "id,x\n-3,1\n", "the id -3 is negative"),
        ("i.jsonl", '{"id": 7.0}\n{"id": 1}\n', "ids are double, not integers"),
        ("j.jsonl", '{"id": -9223372036854775808}\n', "the id -9223372036854775808 is negative"),
        ("k.jsonl", '{"id": true}\n{"id": 1}\n', "not all integers"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(SourceError, match=f"{name[:1]}.{name[2:]}: id: .*{message}"):
            check_unique(found(tmp_path / name), "id")


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3_000), seed=st.integers(0, 2**32 - 1))
def test_permutation_is_a_bijection(size: int, seed: int) -> None:
    moved = Permutation(size=size, seed=seed)(np.arange(size))
    assert np.array_equal(np.sort(moved), np.arange(size))


def test_permutation_depends_on_the_seed_and_looks_uniform() -> None:
    size = 200_000
    one, other = (Permutation(size=size, seed=seed)(np.arange(size)) for seed in (0, 1))
    assert (one == other).sum() < 10
    assert abs(np.corrcoef(one, np.arange(size))[0, 1]) < 0.01
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.01
    # The first tenth of the source falls into each tenth of the permuted range as a uniform draw would.
    counts = np.bincount(one[: size // 10] * 10 // size, minlength=10)
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 33  # chi-squared, 9 degrees of freedom: p = 1e-4
    huge = np.array([0, 1, 10**9, 10**12 - 1])
    assert len(set(Permutation(size=10**12, seed=3)(huge).tolist())) == 4


def test_permutation_does_not_depend_on_the_chunk() -> None:
    permutation = Permutation(size=1_000, seed=5)
    assert np.array_equal(permutation(np.arange(1_000))[300:400], permutation(np.arange(300, 400)))


def split(**size: float) -> SplitConfig:
    return SplitConfig.model_validate({"from": "x", **size})


@given(size=st.integers(20, 2_000), rows=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_splits_are_disjoint_and_exact(size: int, rows: int, seed: int) -> None:
    dealt = assign(size, {"a": split(rows=rows), "b": split(fraction=0.29), "c": split()}, seed)
    counts = np.bincount(dealt.split_of(np.arange(size)), minlength=4)
    assert counts.tolist() == [rows, size * 29 // 100, size - rows - size * 29 // 100, 0]


def test_rows_of_no_split() -> None:
    dealt = assign(100, {"a": split(rows=10), "b": split(rows=20)}, 0)
    assert np.bincount(dealt.split_of(np.arange(100))).tolist() == [10, 20, 70]


def test_impossible_splits() -> None:
    with pytest.raises(ConfigError, match=r"splits\.a and splits\.b both take the rest of source 'x'"):
        assign(10, {"a": split(), "b": split()}, 0)
    with pytest.raises(SourceError, match=r"splits ask for 12 rows of source 'x' \(a 7, b 5\), which has 10"):
        assign(10, {"a": split(rows=7), "b": split(fraction=0.5)}, 0)
    with pytest.raises(SourceError, match=r"splits\.b: gets none of the 10 rows of source 'x' \(a 10\)"):
        assign(10, {"a": split(rows=10), "b": split()}, 0)
    with pytest.raises(SourceError, match=r"splits\.a: gets none of the 10 rows"):
        assign(10, {"a": split(fraction=0.01)}, 0)


@pytest.mark.parametrize("path", ["http://[", "https://[x/*.csv"])
def test_a_url_that_cannot_be_looked_at_is_refused_in_a_line(path: str) -> None:
    with pytest.raises(SourceError, match=r"cannot be looked at \(.*\); correct the path or URL"):
        discover(SourceConfig(path=path))


@pytest.mark.parametrize("ending, open_it", [(".gz", gzip.open), (".bz2", bz2.open)])
def test_compressed_text_is_read_as_the_text_is(tmp_path: Path, ending: str, open_it: Callable[..., Any]):
    lines = [json.dumps({"problem": f"What is {n}?", "answer": str(n)}) for n in range(MARK_ROWS + 50)]
    with open_it(tmp_path / f"rows.jsonl{ending}", "wt") as file:
        file.write("\n".join(lines))
    with open_it(tmp_path / f"rows.csv{ending}", "wt") as file:
        file.write("problem,answer\n" + "\n".join(f'"What is, {n}?",{n}' for n in range(50)))
    by_name = {Path(file.path).name: file for file in found(tmp_path, mixed=True)}
    jsonl, table = by_name[f"rows.jsonl{ending}"], by_name[f"rows.csv{ending}"]
    assert (jsonl.format, jsonl.num_rows, table.format, table.num_rows) == ("jsonl", MARK_ROWS + 50, "csv", 50)
    (batch,) = read_rows(jsonl, MARK_ROWS + 3, MARK_ROWS + 5)
    assert [row["answer"] for row in to_raw_rows(batch)] == [str(MARK_ROWS + 3), str(MARK_ROWS + 4)]
    (batch,) = read_rows(table, 48, 50)
    assert batch["problem"].to_pylist() == ["What is, 48?", "What is, 49?"]
    whole = Path(jsonl.path).read_bytes()
    Path(jsonl.path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"rows\.jsonl.* cannot be read as jsonl"):
        found(tmp_path, mixed=True)


def test_an_error_of_a_store_while_a_digest_is_taken_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(path: str, size: int) -> str:
        raise OSError("connection lost")

    write(tmp_path / "rows.jsonl", ROWS)
    monkeypatch.setattr("curation.sources.files.compute_content_digest", fail)
    with pytest.raises(SourceError, match=r"rows\.jsonl: cannot be read as jsonl: .*connection lost"):
        found(tmp_path / "rows.jsonl")


def test_views_of_text_are_read_as_text(tmp_path: Path):
    table = pa.table({"problem": pa.array(["a" * 30, None, "b"], pa.string_view()), "answer": ["1", "2", "3"]})
    pq.write_table(table, tmp_path / "views.parquet")
    rows = read_rows_at(found(tmp_path), np.array([2, 0, 1]))
    assert [row.raw["problem"] for row in rows] == ["b", "a" * 30, None]


def test_a_small_file_with_a_huge_value_is_refused_unread(tmp_path: Path):
    table = pa.table({"problem": ["a" * (MAX_RECORD + (1 << 20))], "answer": ["1"]})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", use_dictionary=False)
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 20
    with pytest.raises(SourceError, match=r"row group 0, column 'problem': a value takes .* are read at most"):
        found(tmp_path)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_a_file_that_was_replaced_after_it_was_found_is_refused(tmp_path: Path, form: str):
    path = tmp_path / f"rows.{form}"
    write(path, ROWS)
    (file,) = found(path)
    write(path, [{**row, "note": f"N{place}"} for place, row in enumerate(ROWS)])  # as many rows and bytes
    os.utime(path, ns=(0, int(file.modified) + 1))
    with pytest.raises(SourceError, match=r"was replaced after it was found: it had .* none of its rows is"):
        list(read_rows(file, 0, 10))


@pytest.mark.long
@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("repeats", [1, 2_000])
def test_a_file_of_the_same_size_and_time_with_other_bytes_is_refused(tmp_path: Path, form: str, repeats: int):
    path = tmp_path / f"rows.{form}"
    write(path, ROWS * repeats)
    (file,) = found(path)
    assert sum(batch.num_rows for batch in read_rows(file, 0, 10)) == 10
    write(path, [{**row, "note": row["note"].upper()} for row in ROWS * repeats])
    assert path.stat().st_size == file.size
    os.utime(path, ns=(0, int(file.modified)))
    with pytest.raises(SourceError, match="its size and time are the same, but its bytes differ"):
        list(read_rows(file, 0, 10))


def test_a_file_that_an_earlier_version_found_is_told_by_size_and_time_alone(tmp_path: Path):
    write(path := tmp_path / "rows.jsonl", ROWS)
    (file,) = found(path)
    old = SourceFile.from_json(file.to_json())
    assert SourceFile.from_json(file.recorded()) == file and old.recorded() == file.to_json()
    assert sum(batch.num_rows for batch in read_rows(old, 0, 10)) == 10


@pytest.mark.parametrize("sign, named", [(";", "';'"), ("\t", "tabs"), ("|", "'|'")])
def test_another_delimiter_is_named_with_its_key_and_read_where_it_is_given(tmp_path: Path, sign: str, named: str):
    long = ("\r\n" + "long ") * 3
    (tmp_path / "rows.csv").write_bytes(
        f'question{sign}answer\r\n"Who, and{sign} ""when""?{long}"{sign}A\r\n{sign}B, or C\r\n'.encode()
    )
    source = SourceConfig(path=str(tmp_path / "rows.csv"))
    with pytest.raises(SourceError, match=re.escape(f"separated by {named}; set delimiter: {json.dumps(sign)}")):
        discover(source)
    (file,) = discover(source.model_copy(update={"delimiter": sign}))
    rows = [row for batch in read_rows(file) for row in batch.to_pylist()]
    assert rows == [
        {"question": f'Who, and{sign} "when"?{long}', "answer": "A"},
        {"question": None, "answer": "B, or C"},
    ]
    assert SourceFile.from_json(file.to_json()) == replace(file, content="")  # as workers are sent it


def test_a_delimiter_is_part_of_what_rows_are_only_where_it_is_given(tmp_path: Path) -> None:
    write(path := tmp_path / "rows.csv", ROWS)
    (file,) = found(path)
    assert "delimiter" not in file.to_json() and "delimiter" not in SourceConfig(path="rows.csv").to_key()
    with pytest.raises(
        SourceError, match=r"read with ';' between fields, .* by ','; set delimiter: \",\" in its source"
    ):
        found(path, delimiter=";")
    for sign in ("", ";;", '"', "\n"):
        with pytest.raises(ValueError, match="one character that can separate fields"):
            SourceConfig(path="rows.csv", delimiter=sign)
    write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(SourceError, match="delimiter: ';' is read of csv alone, and the source is jsonl"):
        found(tmp_path / "rows.jsonl", delimiter=";")


def test_a_file_that_is_read_with_another_delimiter_is_looked_into_again(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b;c\n1,2;3\n")
    before = found(tmp_path / "rows.csv")
    now = found(tmp_path / "rows.csv", tuple(before), delimiter=";")
    assert (list(before[0].schema), list(now[0].schema)) == (["a", "b;c"], ["a,b", "c"])
    with pytest.raises(SourceError, match="delimiter was ,, is ;"):
        check_unchanged(before, now)


@pytest.mark.parametrize("has, near", [("Text", "Text"), (" text", " text"), ("texts", "texts"), ("body", None)])
def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path, has: str, near: str | None) -> None:
    (tmp_path / "rows.csv").write_text(f"{has},other\n1,2\n")
    with pytest.raises(SourceError) as refused:
        require_columns(found(tmp_path / "rows.csv"), [["text"]])
    hint = "; rename or add it" if near is None else f"; did you mean {near!r}? Rename it"
    assert "has no column 'text'" in str(refused.value) and str(refused.value).endswith(hint)
