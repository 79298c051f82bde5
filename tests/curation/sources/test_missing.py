"""What is missing in a file is None to every domain, whatever the format: null, NaN, NaT and text without a word."""

import csv
import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config import DomainConfig, RunConfig, SourceConfig
from curation.domains import attempt, get_domain
from curation.errors import RowError
from curation.sources import discover, read_rows, to_raw_rows
from curation.sources.missing import replace_missing
from curation.stages.prepare import prepare
from curation.tables import io

NAN = float("nan")


@pytest.mark.parametrize("value", [None, NAN, np.float32("nan"), np.datetime64("NaT"), "", "  \n"])
def test_missing(value: Any) -> None:
    assert replace_missing(value) is None
    assert replace_missing({"a": [value, 1]}) == {"a": [None, 1]}


@pytest.mark.parametrize("value", [0, 0.0, False, "nan", "0", math.inf, datetime.date(2020, 1, 1), [], {}])
def test_not_missing(value: Any) -> None:
    assert replace_missing(value) == value


ROWS: dict[str, list[dict[str, Any]]] = {
    "math": [
        {"problem": "1 + 1?", "answer": 2.0, "level": 3.0},
        {"problem": "1 + 2?", "answer": NAN, "level": NAN},
        {"problem": "1 + 3?", "answer": 4.0, "level": NAN},
    ],
    "mcqa": [
        {"question": "Which?", "choices": ["a", "b"], "answer": 1.0},
        {"question": "What?", "choices": ["a", "b"], "answer": NAN},
    ],
    "chess": [
        {"fen": "7k/R7/6K1/8/8/8/8/8 b - - 0 1", "moves": "h8g8 a7a8", "rating": 700.0},
        {"fen": "7k/R7/6K1/8/8/8/8/8 b - - 1 1", "moves": "h8g8 a7a8", "rating": NAN},
    ],
}


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"rows.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))  # writes NaN, as many a tool does
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows([{key: cell(value) for key, value in row.items()} for row in rows])
    return path


def cell(value: Any) -> Any:
    return value if not isinstance(value, float) else "" if math.isnan(value) else int(value)


def given(path: Path) -> list[dict[str, Any]]:
    (file,) = discover(SourceConfig(path=str(path)))
    return [row for batch in read_rows(file) for row in to_raw_rows(batch)]


@pytest.mark.parametrize("domain", ROWS)
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_a_domain_is_given_none_for_what_is_missing(tmp_path: Path, domain: str, form: str) -> None:
    if (domain, form) == ("mcqa", "csv"):
        pytest.skip("CSV holds no lists")
    made, rows = get_domain(DomainConfig(name=domain)), given(write(tmp_path, form, ROWS[domain]))
    assert rows[1] == {**rows[1], **{key: None for key, value in ROWS[domain][1].items() if value != value}}
    example, gold = made.read(rows[1]), made.gold(rows[1])
    if domain == "chess":
        assert made.read(rows[0])["rating"] == 700 and example["rating"] is None and gold == "a7a8"
    else:
        assert gold is None and made.gold(rows[0]) in ("2", "2.0", "B")
        assert domain == "mcqa" or (example["difficulty"] is None and made.read(rows[0])["difficulty"] == 3)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_a_missing_problem_is_an_error_row(tmp_path: Path, form: str) -> None:
    rows = [{"problem": "1 + 1?", "answer": "2"}, {"problem": " ", "answer": "3"}]
    rows += [] if form == "parquet" else [{"problem": NAN, "answer": "3"}]
    made = get_domain(DomainConfig(name="math"))
    for row in given(write(tmp_path, form, rows))[1:]:
        with pytest.raises(RowError, match="null_field: the problem is empty"):
            made.read(row)


def test_a_jsonl_column_of_texts_and_nan_has_no_text_of_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "one", "answer": 4}\n{"problem": NaN, "answer": NaN}\n{"problem": 3, "answer": " "}')
    assert given(path) == [
        {"problem": "one", "answer": 4},
        {"problem": None, "answer": None},
        {"problem": 3, "answer": None},
    ]


def test_an_array_is_no_single_value() -> None:
    values = np.array([1.0, NAN])
    assert replace_missing({"state": values})["state"] is values and replace_missing(np.array(NAN)) is None


@pytest.mark.parametrize(
    ("domain", "raw", "problem"),
    [
        ("math", {"problem": ["1 + 1?"], "answer": "2"}, "bad_value: problem is list"),
        ("math", {"problem": b"1 + 1?", "answer": "2"}, "bad_value: problem is bytes"),
        ("math", {"problem": "1 + 1?", "answer": [None]}, "bad_value: answer is list"),
        ("math", {"problem": "1 + 1?", "answer": True}, "bad_value: answer is bool"),
        (
            "mcqa",
            {"question": "Which?", "choices": {"text": ["a", "b"], "label": [None, "B"]}, "answerKey": "None"},
            "null_field: an option has no label",
        ),
    ],
)
def test_what_is_no_text_does_not_become_one(domain: str, raw: dict[str, Any], problem: str) -> None:
    made = get_domain(DomainConfig(name=domain))
    assert problem in attempt(made.read, raw)[1] + attempt(made.gold, raw)[1]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_no_table_holds_nan(local_ray: Any, tmp_path: Path, form: str) -> None:
    """The prepare stage: a row without an answer has no gold label, one without a problem is an error row."""
    rows = [{"problem": f"{n} + 1?", "answer": float(n + 1)} for n in range(10)]
    rows[3]["answer"] = rows[4]["answer"] = NAN
    path = write(tmp_path, form, rows)
    config = RunConfig.model_validate(
        {
            "name": "missing",
            "domain": "math",
            "sources": {"sums": {"path": str(path)}},
            "splits": {"source": {"from": "sums", "rows": 9}, "pool": {"from": "sums"}, "audit": True},
            "teacher": {"backend": "scripted"},
            "selection": {"budget": {"n": 1}, "arms": ["naive"]},
        }
    )
    files = {name: discover(source) for name, source in config.sources.items()}
    prepared = prepare(config, tmp_path / "tables", files)
    found = io.read(prepared.tables["source"]).to_pylist() + io.read(prepared.tables["audit"]).to_pylist()
    assert len(found) == 10 and not any(row["gold"] == "nan" for row in found)
    assert sum(row["gold"] is None for row in found) == 2
    assert all((row["error"] or "").startswith("no_gold") for row in found if row["gold"] is None and "error" in row)
