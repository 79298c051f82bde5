"""Exports of Prodigy and Label Studio, and arrays of JSON, are refused with the command that makes rows of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curation.config import SourceConfig
from curation.errors import SourceError
from curation.sources import SourceFile, check_unchanged, discover, read_rows, to_raw_rows

Row = dict[str, Any]


def put(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[Row]:
    files = discover(SourceConfig(path=str(path)))
    return [row for file in files for batch in read_rows(file) for row in to_raw_rows(batch)]


@pytest.mark.parametrize("task", [{"accept": ["pos"]}, {"label": "SPAM", "_task_hash": 1}])
@pytest.mark.parametrize("answer", ["accept", "reject", "ignore"])
def test_tasks_of_prodigy(tmp_path: Path, task: Row, answer: str) -> None:
    plain: list[Row] = [{"text": f"t{number}"} for number in range(1_500)]
    path = put(tmp_path / "x.jsonl", [*plain, {"text": "late", **task, "answer": answer}])
    with pytest.raises(SourceError, match=rf"record 1501 is a task of Prodigy, answered by {answer}; .*jq -c"):
        read(path)


def test_answers_that_are_no_prodigys_are_rows(tmp_path: Path) -> None:
    plain = [{"text": f"t{n}", "answer": ("accept", "reject")[n % 2]} for n in range(6)]
    assert read(put(tmp_path / "x.jsonl", plain)) == plain


def test_tasks_of_label_studio(tmp_path: Path) -> None:
    task = {"id": 1, "data": {"text": "t"}, "annotations": [{"result": [{"value": {"choices": ["pos"]}}]}]}
    with pytest.raises(SourceError, match=r"record 1 is a task of Label Studio; .*jq -c"):
        read(put(tmp_path / "x.jsonl", [task]))


def test_a_file_that_an_earlier_version_read_otherwise_has_changed(tmp_path: Path) -> None:
    source = SourceConfig(path=str(put(tmp_path / "x.jsonl", [{"text": "t", "answer": "accept"}])))
    (file,) = discover(source)
    before = SourceFile.from_json({**file.recorded(), "found_form": "prodigy", "left_out": {"answer is reject": 1}})
    with pytest.raises(SourceError, match="an earlier version read it as jsonl found_form left_out"):
        list(read_rows(before))
    with pytest.raises(SourceError, match="format was jsonl found_form left_out, is jsonl"):
        check_unchanged([before], discover(source, [before]))


def test_several_choices_of_label_studio(tmp_path: Path) -> None:
    rows: list[Row] = [{"text": f"t{n}", "mood": "pos"} for n in range(1_500)]
    assert read(put(tmp_path / "x.jsonl", rows)) == rows
    choices = {"choices": ["pos", "neg"]}
    for mood in (choices, json.dumps(choices), str(choices)):
        path = put(tmp_path / "x.jsonl", [*rows, {"text": "late", "mood": mood}])
        with pytest.raises(SourceError, match=r"record 1501, column 'mood' has choices.*domain\.multi"):
            read(path)
    quoted = json.dumps(choices).replace('"', '""')
    lines = ["text,mood", *(f"{row['text']},{row['mood']}" for row in rows), f'late,"{quoted}"']
    (tmp_path / "x.csv").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=r"record 1501, column 'mood' has choices"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_an_array_is_refused_and_lines_of_a_json_file_are_read(tmp_path: Path, name: str, indent: int | None) -> None:
    rows = [{"a": 1, "b": [1, "ä"]}, {"a": 2, "b": None}]
    (tmp_path / name).write_text("\ufeff" + json.dumps(rows, indent=indent))
    with pytest.raises(SourceError, match=r"record 1 is an array, .* > NEW") as refused:
        read(tmp_path / name)
    command = str(refused.value).partition("each line: ")[2].replace("OLD", name).replace("NEW", "lines.jsonl")
    subprocess.run(f"PATH={Path(sys.executable).parent}:$PATH; {command}", shell=True, cwd=tmp_path, check=True)
    assert read(tmp_path / "lines.jsonl") == rows == read(put(tmp_path / name, rows))
    (tmp_path / name).write_text(json.dumps(rows[0], indent=1))
    with pytest.raises(SourceError, match=r"record 1 is not JSON .*jq -c \. OLD > NEW"):
        read(tmp_path / name)
