"""Exports of Prodigy and Label Studio, and files of JSON, as plain columns."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from curation.config import SourceConfig
from curation.errors import SourceError
from curation.sources import SourceFile, describe_left_out, discover, get_row_ids, read_rows, readers, to_raw_rows

OPTIONS = [{"id": "pos"}, {"id": "neg"}]
Row = dict[str, Any]


def found(path: Path, **options: str) -> SourceFile:
    (file,) = discover(SourceConfig(path=str(path), **options))
    return file


def rows_of(file: SourceFile, start: int = 0, stop: int | None = None) -> list[Row]:
    return [row for batch in read_rows(file, start, stop) for row in to_raw_rows(batch)]


def put(path: Path, rows: list[Row]) -> Path:
    array = path.suffix == ".json"
    path.write_text(json.dumps(rows) if array else "".join(json.dumps(row) + "\n" for row in rows))
    return path


def task(number: int, accept: list[str], answer: str = "accept") -> Row:
    return {"text": f"t{number}", "options": OPTIONS, "accept": accept, "answer": answer}


def studio(number: int, *choices: list[str], **annotation: object) -> Row:
    results = [[{"type": "choices", "from_name": "mood", "value": {"choices": chosen}}] for chosen in choices]
    annotations = [{"result": result, **annotation} for result in results]
    return {"id": number, "annotations": annotations, "data": {"text": f"t{number}"}}


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_prodigy_choices(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MARK_ROWS", 7)
    answers = ["accept", "reject", "accept", "ignore"]
    tasks = [task(number, [("pos", "neg")[number % 3 == 0]], answers[number % 4]) for number in range(60)]
    file = found(put(tmp_path / f"x.{ending}", tasks))
    wanted = [(f"t{number}", ("pos", "neg")[number % 3 == 0]) for number in range(0, 60, 2)]
    assert [(row["text"], row["accept"]) for row in rows_of(file)] == wanted and "answer" not in file.schema
    assert describe_left_out([file]) == ["30 records left out: answer is reject 15, answer is ignore 15"]
    for start, stop in [(0, 1), (6, 8), (13, 22), (29, 30)]:
        assert [row["text"] for row in rows_of(file, start, stop)] == [text for text, _ in wanted[start:stop]]
    assert get_row_ids(file, 5, 8, None).tolist() == [5, 6, 7]
    assert SourceFile.from_json(json.loads(json.dumps(file.recorded()))) == file


def test_prodigy_with_several_choices_one_label_and_none(tmp_path: Path) -> None:
    several = found(put(tmp_path / "a.jsonl", [task(0, ["pos"]), task(1, ["pos", "neg"]), task(2, [])]))
    assert [row["accept"] for row in rows_of(several)] == ["pos", ["pos", "neg"], []]
    one = [
        {"text": f"t{n}", "label": "SPAM", "_task_hash": n, "answer": answer}
        for n, answer in enumerate(["accept", "reject", "ignore"])
    ]
    assert [row["label"] for row in rows_of(found(put(tmp_path / "b.jsonl", one)))] == ["SPAM", "not SPAM"]
    with pytest.raises(SourceError, match=r"holds no rows \(1 records left out: answer is reject 1\)"):
        found(put(tmp_path / "c.jsonl", [task(0, ["pos"], "reject")]))


def test_answers_that_are_no_prodigys_are_rows(tmp_path: Path) -> None:
    plain = [{"text": f"t{n}", "answer": ("accept", "reject")[n % 2]} for n in range(6)]
    assert rows_of(found(put(tmp_path / "x.jsonl", plain))) == plain
    bare = [{"text": "a", "accept": ["pos"], "answer": "accept"}, {"text": "b", "accept": ["neg"], "answer": "reject"}]
    assert rows_of(found(put(tmp_path / "bare.jsonl", bare))) == [{"text": "a", "accept": "pos"}]
    tasks = [task(0, ["pos"], "reject"), task(1, ["neg"])]
    path = put(tmp_path / "y.jsonl", tasks)
    assert rows_of(found(path, form="rows")) == tasks
    assert discover(SourceConfig(path=str(path)), [found(path, form="rows")])[0].num_rows == 1  # looked into again


def test_label_studio_tasks(tmp_path: Path) -> None:
    tasks = [
        studio(0, ["pos"]),
        studio(1, ["neg", "pos"]),
        studio(2, ["pos"], ["neg"]),  # two people disagree
        studio(3, ["pos"], ["pos"]),
        studio(4, ["pos"], was_cancelled=True),
        studio(5),
    ]
    for ending in ("json", "jsonl"):
        file = found(put(tmp_path / f"x.{ending}", tasks))
        assert rows_of(file) == [
            {"id": 0, "text": "t0", "mood": "pos"},
            {"id": 1, "text": "t1", "mood": ["neg", "pos"]},
            {"id": 3, "text": "t3", "mood": "pos"},
            {"id": 5, "text": "t5", "mood": None},
        ]
        assert file.schema == {"id": "json", "text": "json", "mood": "choice"}
        assert file.left_out == {"its annotators disagree": 1, "its annotators skipped it": 1}


def test_label_studio_min_and_csv_where_several_choices_come_late(tmp_path: Path) -> None:
    rows: list[Row] = [{"text": f"t{n}", "mood": "pos"} for n in range(1_500)]
    rows.append({"text": "late", "mood": {"choices": ["pos", "neg"]}})
    wanted = [row | {"mood": ["pos", "neg"]} if row["text"] == "late" else row for row in rows]
    for ending in ("json", "jsonl"):
        assert rows_of(found(put(tmp_path / f"x.{ending}", rows))) == wanted
    with (tmp_path / "x.csv").open("w", newline="") as text:
        writer = csv.DictWriter(text, ["text", "mood"])
        writer.writeheader()
        writer.writerows(row | ({"mood": json.dumps(row["mood"])} if row["text"] == "late" else {}) for row in rows)
    pandas = (tmp_path / "x.csv").read_text().replace('""', "'")
    (tmp_path / "pandas.csv").write_text(pandas)
    assert rows_of(found(tmp_path / "pandas.csv")) == wanted
    file = found(tmp_path / "x.csv")
    assert rows_of(file) == wanted and file.schema == {"text": "json", "mood": "choice"}
    assert rows_of(file, 1_499) == wanted[1_499:]


@pytest.mark.parametrize(
    "content, message",
    [
        ('[{"a": 1}, {"a": 2}', "its array has no end"),
        ('[{"a": 1}] {"a": 2}', "text follows the end of its array"),
        ('[{"a": 1}, [2]]', r"record 2 is not a JSON object but list"),
        ('[{"a": 1}, {"a" 2}]', r"record 2 is not JSON .*near"),
        ('[{"a": 1}, {"a": 2, "a": 3}]', "record 2 has the key 'a' twice"),
        ('{"version": 1, "data": [{"a": 1}]}', "is one object with the keys version, data"),
        ("[]", "holds no rows"),
        ("", "holds no rows"),
    ],
)
def test_json_that_is_no_array_of_rows(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(SourceError, match=message):
        found(path)


def test_json_lines_in_a_json_file_and_an_array_in_a_jsonl_file(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": [1, "ä"]}, {"a": 2, "b": None}]
    for content in ("\n".join(map(json.dumps, rows)), "\ufeff" + json.dumps(rows, indent=2, ensure_ascii=False)):
        (tmp_path / "x.json").write_text(content)
        assert rows_of(found(tmp_path / "x.json")) == rows
    for indent in (None, 2):
        (tmp_path / "x.jsonl").write_text(json.dumps(rows, indent=indent))
        with pytest.raises(SourceError, match="one array of objects is read as format: json"):
            found(tmp_path / "x.jsonl")
        assert rows_of(found(tmp_path / "x.jsonl", format="json")) == rows


def test_long_values_stand_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curation.sources.records.BLOCK_BYTES", 5)
    monkeypatch.setattr(readers, "MARK_ROWS", 2)
    rows = [{"text": "äö😀]}," * number, "n": number} for number in range(1, 9)]
    (tmp_path / "x.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1))
    file = found(tmp_path / "x.json")
    assert rows_of(file) == rows
    assert rows_of(file, 5, 7) == rows[5:7]
