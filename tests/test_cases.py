"""Small inputs after public reports, each with its right value (``shared/cases``; skipped where that is absent)."""

import json
import runpy
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import yaml
from click.testing import CliRunner

from curation.cli import main
from curation.commands.validate import check
from curation.config import DomainConfig, RunConfig, SourceConfig
from curation.config.external import GivenConfig
from curation.config.load import load_config
from curation.domains import Domain, attempt, get_domain
from curation.errors import ConfigError, SourceError
from curation.pipeline.opened import open_run
from curation.sources import discover, read_rows, to_raw_rows

CASES = Path(__file__).parents[2] / "shared" / "cases"
pytestmark = [pytest.mark.skipif(not CASES.is_dir(), reason="shared/cases is not here"), pytest.mark.long]


def rows(name: str, **options: str) -> list[dict]:
    """Return the rows of a case's file."""
    files = discover(SourceConfig(path=str(CASES / name), **options))
    return [row for file in files for batch in read_rows(file) for row in to_raw_rows(batch)]


def configured(folder: Path, name: str, domain: dict[str, Any]) -> RunConfig:
    """Return a run whose labelled split is a case's file, and whose pool is that file's rows in another place."""
    file, pool = CASES / name, folder / f"pool{Path(name).suffix}"
    pool.write_bytes(file.read_bytes())
    config = {
        "name": "case",
        "run_dir": str(folder / "runs"),
        "domain": domain,
        "sources": {"labelled": {"path": str(file)}, "unlabelled": {"path": str(pool)}},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "unlabelled"}, "overlap": "report"},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 1}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return load_config(folder / "run.yaml")


def validated(folder: Path, name: str, domain: dict[str, Any]) -> Domain:
    """Return the domain of a case's labelled rows as a run has it, once `validate` has passed."""
    config = configured(folder, name, domain)
    list(check(config))
    return get_domain(open_run(config).config.domain_of("source"))


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
        found = [domain.read(row)["text"] for row in rows("messages_as_text/labelled.parquet")]
        assert "user: hi" in found and all(text.startswith("user: ") for text in found)


def test_tsv_quotes():
    with pytest.raises(SourceError, match=r"record 2 .*quoting: none"):
        rows("tsv_quotes/labelled.csv", delimiter="\t")
    found = rows("tsv_quotes/labelled.csv", delimiter="\t", quoting="none")
    assert [row["label"] for row in found] == ["pos", "neg", "pos", "neg"]


def test_copies_in_the_selection(local_ray, tmp_path):
    """60 of 460 pool rows are one text: one of them is selected."""
    case, run = CASES / "copies_in_the_selection", tmp_path / "run"
    config = tmp_path / "dup.yaml"
    config.write_text((case / "dup.yaml").read_text().replace(", keep: [id]", ""))  # a key that there was
    sets = {"run_dir": run}
    sets |= {f"sources.{name}.path": case / f"{name}.csv" for name in ("labelled", "pool")}
    arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(main, ["run", str(config), *arguments])
    assert result.exit_code == 0, result.output
    (table,) = run.glob("gen-0/select-*/trust.lance")
    prompts = lance.dataset(str(table)).to_table(columns=["prompt"])["prompt"].to_pylist()
    findings = json.loads((run / "report.json").read_text())["verdict"]["findings"]
    assert "hidden states" not in json.dumps(findings), "no model is asked here"
    assert len(prompts) == len(set(prompts)) == 100


def test_labels_given_in_another_case_are_read(tmp_path):
    """Of Good, good., "bad", Label: bad and BAD the case alone differs in the first and the last."""
    given = GivenConfig(completion="answer")
    domain = get_domain(DomainConfig(name="classification", classes=["good", "bad"], given_labels=given))
    found = rows("given_variants/labelled.csv")
    stated = [domain.parse(domain.given_completion(domain.read(row)), row) for row in found]
    right = [row["label"] for row in found]
    assert [stated[place] == right[place] for place in range(6)] == [True, True, False, False, False, True]
    pa_csv.write_csv(
        pa.table(
            {
                "text": [f"{row['text']} {number}" for number in range(50) for row in found],
                **{name: [row[name] for row in found] * 50 for name in ("answer", "label")},
                "sure": np.linspace(0, 1, 50 * len(found)),
            }
        ),
        tmp_path / "labelled.csv",
    )
    config = {
        "name": "given",
        "run_dir": str(tmp_path / "run"),
        "domain": {"name": "classification", "classes": ["good", "bad"]},
        "sources": {"labelled": {"path": str(tmp_path / "labelled.csv")}},
        "splits": {name: {"from": "labelled", "rows": 150} for name in ("source", "pool")},
        "teacher": {"backend": "given", "completion": "answer", "confidence": "sure"},
        "selection": {"budget": {"n": 20}},
        "generations": [],
    }
    told = [line.text for line in check(RunConfig.model_validate(config)) if "cannot be read" in line.text]
    assert len(told) == 2 and all("'good.'" in text and "'Good'" not in text for text in told)


def test_rewards_of_the_plain_example_know_the_rows_own_completions():
    path = Path(__file__).parents[1] / "examples" / "plain_trl.py"
    script = runpy.run_path(str(path))
    selected = [json.loads(line) for line in (CASES / "grpo_reward" / "trust.jsonl").read_text().splitlines()]
    completions, labels = [row["completion"] for row in selected], [row["label"] for row in selected]
    rewarded = script["exact_match"]
    assert rewarded(completions, labels) == rewarded(completions, labels, completion=completions) == [1.0] * 3
    assert rewarded([" card", " class 001", " B"], labels, completion=completions) == [0.0] * 3
    own = "2 + 2 is 4, so the answer is \\boxed{4}."
    texts = ["\\boxed{4}", "\\boxed{5}, no 4", "so 4", own]
    assert rewarded(texts, ["4"] * 4, completion=[own] * 4) == [1.0, 0.0, 1.0, 1.0]
    several = "x: yes\n y: no\n"
    assert rewarded([several, "x: no\n y: no\n"], ["x"] * 2, completion=[several] * 2) == [1.0, 0.0]


def test_excel():
    for name, delimiter, message in (
        ("sep.csv", ";", "'sep=;' is Excel's hint, not a header; delete line 1"),
        ("mac.csv", ";", "line ends are carriage returns"),
        ("utf16.csv", "\t", "the file is UTF-16"),
    ):
        with pytest.raises(SourceError, match=message):
            rows(f"excel/{name}", delimiter=delimiter)
    assert list(rows("excel/trailing.csv", delimiter=";")[0]) == ["text", "answer", "confidence", "label"]
    with pytest.raises(SourceError, match="has a space before the quote that opens a field"):
        rows("excel/spaces.csv")


def test_number_or_text(tmp_path: Path):
    options = ["option1", "option2", "option3", "option4"]
    domain = validated(tmp_path, "number_or_text/labelled.csv", {"name": "mcqa", "choices": options})
    assert [domain.gold(row) for row in rows("number_or_text/labelled.csv")] == ["A", "B", "D", "A"]


def test_letters_for_lists(tmp_path: Path):
    domain = validated(tmp_path, "letters_for_lists/labelled.jsonl", {"name": "mcqa"})
    assert [domain.gold(row) for row in rows("letters_for_lists/labelled.jsonl")] == ["A", "B"] * 20


def test_one_based(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"answer_is .* number_from_0 or number_from_1"):
        validated(tmp_path, "one_based/mmlu_three.jsonl", {"name": "mcqa"})
    said = {"name": "mcqa", "answer_is": "number_from_1"}
    domain = validated(tmp_path, "one_based/mmlu_three.jsonl", said)
    assert [domain.gold(row) for row in rows("one_based/mmlu_three.jsonl")][:3] == ["A", "A", "A"]


def test_math_gold_text(tmp_path: Path):
    domain = validated(tmp_path, "math_gold_text/labelled.jsonl", {"name": "math"})
    for row, gold in zip(rows("math_gold_text/labelled.jsonl"), ["4", "7", "5"], strict=True):
        assert domain.gold(row) == gold and domain.is_correct(domain.parse(rf"So \boxed{{{gold}}}.", {}), gold)
    _, problem = attempt(domain.gold, {"problem": "p", "answer": "It follows by adding both of the numbers."})
    assert problem.startswith("bad_value: the answer 'It follows by adding both of the numbers.' is prose")


@pytest.mark.parametrize("name", ["math_numbers", "math_units"])
def test_math_pairs_of_a_case(name: str):
    domain = get_domain(DomainConfig(name="math", timeout=30))
    for row in rows(f"{name}/pairs.csv"):
        raw = {"problem": "p", "answer": row["gold"]}
        label = domain.parse(domain.answer(row["label"], {}), {})
        assert domain.is_correct(label, domain.gold(raw)) == (row["right"] == "1"), row
        assert domain.gold_problem(domain.gold(raw), {}) == ""


def test_a_gold_label_that_no_answer_equals_is_refused_with_its_row(tmp_path: Path):
    lines = [json.dumps({"q": f"q{row}", "r": str(row) if row != 3 else "about 7"}) for row in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
    domain = {"name": "text", "prompt": "{{ q }}", "reference": "r", "check": "number"}
    with pytest.raises(SourceError, match=r"bad_reference 1.*the first: row 4 of .*'about 7' is not a number"):
        list(check(configured(tmp_path, str(tmp_path / "rows.jsonl"), domain)))


def test_labels_look_alike(tmp_path: Path):
    name, domain = "labels_look_alike/labelled.csv", {"name": "classification"}
    with pytest.raises(ConfigError, match=r"'bar' and 'bar\\u200b' are the same but for U\+200B ZERO WIDTH SPACE"):
        validated(tmp_path, name, domain)
    read = validated(tmp_path, name, {**domain, "classes": ["caf\xe9", "bar"]})
    assert [read.gold(row) for row in rows(name)] == ["caf\xe9", "caf\xe9", "bar", "bar"] * 10


def test_yaml_words(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"c\.yaml: line 2: 'no' is false to YAML; put it in quotes"):
        load_config(CASES / "yaml_words" / "c.yaml")
    text = (CASES / "yaml_words" / "c.yaml").read_text()
    for word in ("01", "12:30"):
        (tmp_path / "c.yaml").write_text(text.replace("{neg: no, pos: yes}", f"[{word}, x]"))
        assert load_config(tmp_path / "c.yaml").domain.options["classes"] == [word, "x"]
    (tmp_path / "c.yaml").write_text(text.replace("no, pos: yes", '"no", pos: "yes"'))
    assert load_config(tmp_path / "c.yaml").domain.options["classes"] == {"neg": "no", "pos": "yes"}
    for word in ("null", "true", "~"):
        with pytest.raises(ConfigError, match=r"classes: (None|True): Input should be a valid string"):
            validated(tmp_path, "yaml_words/d.csv", {"name": "classification", "classes": [yaml.safe_load(word), "x"]})
    domain = validated(tmp_path, "yaml_words/d.csv", {"name": "classification", "classes": {"neg": "no", "pos": "yes"}})
    assert domain.options({"text": "t"}) == (" no", " yes")


def test_folder_of_everything():
    with pytest.raises(SourceError, match=r"3 files of 3 kinds .*test, parquet: .*train, parquet: .*sample, jsonl: "):
        rows("folder_of_everything/repo")
    assert [row["label"] for row in rows("folder_of_everything/repo/data/train-*.parquet")] == ["x", "y"]


def test_prodigy():
    with pytest.raises(SourceError, match="is a task of Prodigy"):
        rows("prodigy/export.jsonl")


def test_label_studio():
    for name in ("export_min.jsonl", "multi.csv"):
        with pytest.raises(SourceError, match="has choices as Label Studio writes them; write the label there"):
            rows(f"label_studio/{name}")
    with pytest.raises(SourceError, match="is an array, and each line is an object; write one object on each line"):
        rows("label_studio/export.json")


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"cannot be looked at .*correct the path or URL, or see that its store"):
        discover(SourceConfig(path="hf://datasets/none/none/data.parquet"))
