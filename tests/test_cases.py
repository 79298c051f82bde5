"""Small inputs after public reports, each with its right value (``shared/cases``; skipped where that is absent)."""

import json
from pathlib import Path

import pytest

from curation.config import DomainConfig, SourceConfig
from curation.domains import attempt, get_domain
from curation.errors import SourceError
from curation.sources import discover, raw_rows, read_rows

CASES = Path(__file__).parents[2] / "shared" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="shared/cases is not here")


def rows(name: str, **options: str) -> list[dict]:
    """Return the rows of a case's file."""
    files = discover(SourceConfig(path=str(CASES / name), **options))
    return [row for file in files for batch in read_rows(file) for row in raw_rows(batch)]


def test_late_key():
    domain = get_domain(DomainConfig(name="classification", classes=["pos", "neg"]))
    found = rows("late_key/labelled.jsonl")
    assert [row.get("ok") for row in found[:1_000]] == [None] * 1_000
    assert [row["ok"] for row in found[1_000:]] == [0, 0, 0] and attempt(domain.read, found[-1])[1] == ""


def test_json_neighbours():
    choices = get_domain(DomainConfig(name="mcqa"))
    assert [not attempt(choices.read, row)[1] for row in rows("json_neighbours/a_choices.jsonl")] == [True, True, False]
    keys = get_domain(DomainConfig(name="text", prompt="{{ q }}", reference="args", check="json"))
    gold = keys.gold(rows("json_neighbours/b_keys.jsonl")[0])
    assert json.loads(gold) == {"city": "Rome"} and keys.is_correct('{"city": "Rome"}', gold)
    sums = get_domain(DomainConfig(name="text", prompt="{{ a }} + {{ b }} = ?", reference="sum"))
    first, second = map(sums.read, rows("json_neighbours/c_numbers.jsonl"))
    assert (first["question"], second["question"]) == ("7 + 4 = ?", "2.5 + 4 = ?")
    assert {str(row["label"]) for row in rows("json_neighbours/d_bools.jsonl")} == {"True", "False", "unknown"}


def test_bytes_text():
    domain = get_domain(DomainConfig(name="classification", classes=["pos", "neg"]))
    found = rows("bytes_text/labelled.parquet")
    texts, labels = [domain.read(row)["text"] for row in found], [domain.gold(row) for row in found]
    assert set(texts) == {"hello", "café"} and set(labels) == {"pos", "neg"}


def test_messages_as_text():
    (name,) = {name for row in rows("messages_as_text/labelled.parquet") for name in row} - {"label"}
    for text in (name, f"{{{{ {name} }}}}"):
        domain = get_domain(DomainConfig(name="classification", classes=["pos", "neg"], text=text))
        for row in rows("messages_as_text/labelled.parquet"):
            assert attempt(domain.read, row)[1].startswith("not_a_text: ")


def test_tsv_quotes():
    with pytest.raises(SourceError, match=r"record 2 .*quoting: none"):
        rows("tsv_quotes/labelled.csv", delimiter="\t")
    found = rows("tsv_quotes/labelled.csv", delimiter="\t", quoting="none")
    assert [row["label"] for row in found] == ["pos", "neg", "pos", "neg"]


def test_excel():
    for name, delimiter, message in (
        ("sep.csv", ";", "sep=; is Excel's hint and no header; delete line 1"),
        ("mac.csv", ";", "line ends are carriage returns"),
        ("utf16.csv", "\t", "the file is UTF-16"),
    ):
        with pytest.raises(SourceError, match=message):
            rows(f"excel/{name}", delimiter=delimiter)
    assert list(rows("excel/trailing.csv", delimiter=";")[0]) == ["text", "answer", "confidence", "label"]
    assert [row["label"] for row in rows("excel/spaces.csv")] == ["pos", "neg"]


def test_folder_of_everything():
    with pytest.raises(SourceError, match=r"3 files of 3 kinds .*test, parquet: .*train, parquet: .*sample, jsonl: "):
        rows("folder_of_everything/repo")
    assert [row["label"] for row in rows("folder_of_everything/repo/data/train-*.parquet")] == ["x", "y"]


def test_prodigy():
    found = rows("prodigy/export.jsonl")
    assert len(found) == 10 and {row["accept"] for row in found} <= {"pos", "neg"} and "answer" not in found[0]


def test_label_studio():
    for name, label in (("export.json", "label"), ("export_min.jsonl", "sentiment")):
        found = rows(f"label_studio/{name}")
        assert (len(found), found[0]["text"], found[0][label]) == (100, "game 0 was great", "pos")
    assert rows("label_studio/multi.csv")[2]["sentiment"] == ["pos", "mixed"]


def test_hive():
    found = rows("hive/d")
    assert len(found) == 200 and {row["label"] for row in found} == {"pos", "neg"}


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"cannot be looked at .*correct the path or URL, or see that its store"):
        discover(SourceConfig(path="hf://datasets/none/none/data.parquet"))
