"""A selection as the select stage exports it trains a model by plain TRL where this project cannot be imported."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from curation.extras.hub.exports import write_data
from curation.models import create
from curation.refs import ModelRef
from curation.tables import schemas

pytestmark = pytest.mark.whole_run

SCRIPT = Path(__file__).parents[1] / "examples" / "plain_trl.py"
NUM_ROWS = 24
WITHOUT_US = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("curation", "train", "tune"):
            raise ModuleNotFoundError(f"{name} is not to be had here")

sys.meta_path.insert(0, Blocked())
for name in ("curation", "train.sft", "tune"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} can be imported")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script; the project is installed so that its own folder is on the path, so its imports are refused."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    path = tmp_path_factory.mktemp("plain") / "base"
    return create(path, family="qwen3", shape=shape, words=tuple("01234"), pattern="[0-4]", seed=0)


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the exports, by format: the digit of the prompt is to be repeated; one label could not be read."""
    rows = [
        {
            "row_id": row,
            "arm": "naive",
            "rank": row,
            "trust": 1 - row / NUM_ROWS,
            "prompt": f"{row % 5} ?",
            "completion": f" {row % 5}",
            "label": None if row == 3 else str(row % 5),
            "label_source": "weak",
            "completion_source": "weak",
            "teacher": None,
            "generation": 0,
        }
        for row in range(NUM_ROWS)
    ]
    folder = tmp_path_factory.mktemp("select")
    for form in ("parquet", "jsonl"):
        (folder / form / "data").mkdir(parents=True)
        write_data(pa.Table.from_pylist(rows, schema=schemas.SELECTION).to_reader(), folder / form / "data", form)
    return folder


@pytest.mark.parametrize(
    ("method", "ending", "arguments", "num_rows"),
    [
        ("sft", "jsonl", ["--epochs", 3, "--learning-rate", 1e-2, "--lora", 0], NUM_ROWS),
        ("grpo", "parquet", ["--learning-rate", 1e-2, "--lora", 4, "--group", 4, "--max-tokens", 1], NUM_ROWS - 1),
    ],
)
def test_a_selection_trains_by_plain_trl(base, selection, tmp_path: Path, method, ending, arguments, num_rows):
    command = [sys.executable, "-I", "-c", WITHOUT_US, SCRIPT, selection / ending, base.base]
    command += ["--method", method, "--batch", 8, "-o", "student", *arguments]
    done = subprocess.run([str(part) for part in command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = 3 * 3 if method == "sft" else 2  # GRPO leaves out the prompts that do not fill a step
    told = re.search(r"(\w+): (\d+) rows, (\d+) steps, \w+ ([\d.]+) to ([\d.]+); saved to student", done.stdout)
    assert told is not None and told.groups()[:3] == (method, str(num_rows), str(steps)), done.stdout[-500:]
    if method == "sft":
        assert float(told[5]) < float(told[4])
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
    assert AutoTokenizer.from_pretrained(tmp_path / "student")("3 ?")["input_ids"]
    before = AutoModelForCausalLM.from_pretrained(base.base)
    prompts = torch.tensor([[3, 4, 5]])
    assert not torch.allclose(trained(prompts).logits, before(prompts).logits, atol=1e-4)
