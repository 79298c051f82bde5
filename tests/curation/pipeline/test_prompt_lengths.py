"""Rows whose prompts are longer than the teacher's context are counted before anything runs."""

from pathlib import Path

import pytest

from curation.config import RunConfig
from curation.models import load_tokenizer
from curation.pipeline.outlook import iter_long_prompts
from curation.refs import ModelRef


@pytest.mark.parametrize("domain", ["classification", "text"])
def test_long_prompts_are_counted_with_the_longest(tmp_path: Path, tiny_model, domain: str) -> None:
    sections = {
        "classification": {"name": "classification", "classes": ["a1 Rook", "c1 Bishop"]},
        "text": {"name": "text", "prompt": "{{ text }}", "reference": "label"},
    }
    config = RunConfig.model_validate(
        {
            "name": "long",
            "run_dir": str(tmp_path / "run"),
            "domain": sections[domain],
            "sources": {name: {"path": str(tmp_path / "rows.csv")} for name in ("one", "two")},
            "splits": {"source": {"from": "one"}, "pool": {"from": "two"}},
            "teacher": {"model": {"path": tiny_model.base}, "decoding": {"max_tokens": 8}},
            "selection": {"budget": {"n": 20}},
            "generations": [],
        }
    )
    tokenizer = load_tokenizer(ModelRef(base=tiny_model.base))
    text = "White: a1 Rook; c1 Bishop " * 200
    texts = [text if row % 20 == 7 else "a1 Rook" for row in range(100)]
    rows = [{"text": of_row, "question": of_row} for of_row in texts]
    (line,) = iter_long_prompts(config, {"pool": rows, "source": [row for row in rows if row["text"] != text]})
    assert line.startswith("splits.pool: 5.0 % of 100 rows seen cannot be asked")
    assert "truncate(4000)" in line and "decoding.max_tokens" in line
    num_tokens = int(line.partition("up to ")[2].partition(" tokens")[0].replace(",", ""))
    own = len(tokenizer(text)["input_ids"])
    assert own <= num_tokens <= own + 40
