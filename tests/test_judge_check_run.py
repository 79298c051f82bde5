"""A run over sums whose answers a judge grades: every label of every graded split, by the likelier of two words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.special import log_softmax

from benchmarks.recorded import planned
from curation.cli import main
from curation.models import load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from curation.tables import io

pytestmark = pytest.mark.whole_run

BASES = Path(__file__).parents[1] / "examples" / "bases"
NUM = 60


def curate(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def logprob(model: Any, tokenizer: Any, prompt: str, option: str) -> float:
    """The log-probability of an option after a prompt, from one plain pass over the whole text."""
    ids, start = tokenizer(prompt + option)["input_ids"], len(tokenizer(prompt)["input_ids"])
    with torch.inference_mode():
        logits_TV = model(torch.tensor([ids])).logits[0].float().numpy()
    return float(log_softmax(logits_TV, axis=-1)[range(start - 1, len(ids) - 1), ids[start:]].sum())


def test_a_judge_grades_every_label_and_another_prompt_labels_nothing_again(local_ray: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{"problem": f"{a} + {b} = ?", "answer": str(a + b)} for a, b in rng.integers(10, 90, (2 * NUM, 2))]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ask = "{{ prompt }} {{ reference }} {{ answer[-8:] }} ="
    domain = {"name": "text", "prompt": "{{ problem }}", "reference": "answer"}
    config = {
        "name": "judged",
        "run_dir": str(tmp_path / "run"),
        "domain": {**domain, "check": {"judge": {"prompt": ask, "right": "1", "wrong": "2"}}},
        "sources": {"sums": {"path": str(tmp_path / "sums.jsonl")}},
        "splits": {"source": {"from": "sums", "rows": NUM}, "pool": {"from": "sums", "rows": NUM}},
        "teacher": {"model": {"path": str(BASES / "sums_teacher")}, "decoding": {"max_tokens": 16, "stop": []}},
        "judge": {"model": {"path": str(BASES / "sums_teacher")}},
        "selection": {"budget": {"n": 10}, "arms": ["naive", "internal_confidence"]},
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config))
    curate("validate", str(path))
    plan = curate("plan", str(path), "--no-probe")
    assert "judge-source" in plan
    curate("run", str(path))

    def outputs(stage: str) -> dict[str, Any]:
        stages = planned(tmp_path / "run")
        found: dict[str, Any] = stages[f"gen-0/{stage}"]["outputs"]
        return found

    def table(ref: Any) -> dict[int, dict[str, Any]]:
        return {row["row_id"]: row for row in io.read(TableRef.from_json(ref)).to_pylist()}

    labels, grades = table(outputs("label-source")["labels"]), table(outputs("judge-source")["grades"])
    (prepared,) = (tmp_path / "run").glob("prepare-*/source.lance")
    examples = {row["row_id"]: row for row in io.read(io.find_latest(str(prepared))).to_pylist()}
    asked = {row_id for row_id, row in labels.items() if row["label"] is not None}
    assert set(grades) == set(examples) and outputs("judge-source")["num_asked"] == len(asked) > NUM / 2

    reference = ModelRef(base=str(BASES / "sums_teacher"))
    model, tokenizer = load_model(reference), load_tokenizer(reference)
    for row_id in asked:
        example, label = examples[row_id], labels[row_id]["label"]
        prompt = f"{example['question']} {example['gold']} {label[-8:]} ="
        margin = logprob(model, tokenizer, prompt, " 1") - logprob(model, tokenizer, prompt, " 2")
        assert abs(margin) < 1e-4 or grades[row_id]["correct"] is (margin > 0), (prompt, margin)
    right = {row["correct"] for row in grades.values()}
    assert right == {True, False}, "the words are chosen by row"

    # Another prompt of the judge: it grades again, and nothing is labelled again. A package brings no judge's model.
    before = {stage: outputs(stage) for stage in ("label-source", "label-pool", "judge-source")}
    config["domain"] = {**domain, "check": {"judge": {"prompt": ask, "right": "2", "wrong": "1"}}}
    path.write_text(json.dumps(config))
    curate("run", str(path))
    assert outputs("label-source") == before["label-source"] and outputs("label-pool") == before["label-pool"]
    other = table(outputs("judge-source")["grades"])
    assert all(other[row_id]["correct"] is not grades[row_id]["correct"] for row_id in asked)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["generations"][0]["arms"]
    curate("export-trust", str(tmp_path / "run"), "-o", str(tmp_path / "package"))
    described = (tmp_path / "package" / "package.json").read_text()
    assert "judge" in described and "model" not in json.loads(described)["description"]["domain"]
