"""Small inputs after public reports, each with its right value (``shared/cases``; skipped where that is absent)."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from curation.cli import main
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


@pytest.mark.parametrize("repeats", ["one", "all"])
def test_copies_in_the_selection(local_ray, tmp_path, repeats):
    """60 of 460 pool rows are one text: one of them is selected, or many with a finding."""
    case, run = CASES / "copies_in_the_selection", tmp_path / "run"
    sets = {"run_dir": run, "selection.repeats": repeats, "selection.keep": "[]"}
    sets |= {f"sources.{name}.path": case / f"{name}.csv" for name in ("labelled", "pool")}
    arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(main, ["run", str(case / "dup.yaml"), *arguments])
    assert result.exit_code == 0, result.output
    (table,) = run.glob("gen-0/select-*/trust.parquet")
    prompts = pq.read_table(table, columns=["prompt"])["prompt"].to_pylist()
    rules = [finding["rule"] for finding in json.loads((run / "report.json").read_text())["verdict"]["findings"]]
    assert len(prompts) == 100
    if repeats == "one":
        assert len(set(prompts)) == 100 and "copies" not in rules
    else:
        assert len(set(prompts)) < 50 and "copies" in rules


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
