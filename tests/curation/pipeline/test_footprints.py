"""The least memory of a run's actors and workers: what is refused, and what a plan prints."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from curation import memory
from curation.cli import main
from curation.config import ModelConfig, RunConfig
from curation.config.load import load_config
from curation.errors import ConfigError
from curation.pipeline.outlook import (
    Checkpoint,
    iter_memory_lines,
    iter_processes,
    read_checkpoint,
)

ROOT = Path(__file__).parents[3]
BILLION = 10**9


def paper(name: str) -> RunConfig:
    return load_config(str(ROOT / "examples" / "paper" / f"{name}.yaml"))


def needs(name: str) -> dict[str, float]:
    """GB by process, where each checkpoint has a billion parameters in bfloat16."""
    found = iter_processes(paper(name), lambda _: Checkpoint(BILLION, "bfloat16"))
    return {process.who: process.needs / BILLION for process in found}


def test_frozen_parameters_take_their_types_bytes_and_trained_ones_sixteen() -> None:
    lora, grpo = needs("chess-qwen3-14b"), needs("math-8b-8b")
    assert lora["an actor with the teacher"] == lora["a worker in the training of student 0"] == 2
    assert grpo["a worker in the training of student 0"] == (16 + 2) / 4, "with a reference, in four shards"


def test_what_cannot_fit_is_refused_with_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(str(ROOT / "examples" / "own_data" / "own.yaml"), [f"run_dir={tmp_path / 'run'}"])
    there = memory.read_usable_memory()
    monkeypatch.setattr(memory, "read_usable_memory", lambda: there._replace(total=10 * 2**30))
    small = list(iter_memory_lines(config, lambda _: Checkpoint(BILLION, "float32")))
    assert small and all("at least 3.7 GiB of 10.0 GiB" in line for line in small if "an actor" in line)
    with pytest.raises(ConfigError, match=r"at least 37\.3 GiB of 10\.0 GiB, which cannot fit: set teacher\.dtype"):
        list(iter_memory_lines(config, lambda _: Checkpoint(10 * BILLION, "float32")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_files", [1, 2])
def test_the_parameters_of_a_local_model_are_those_of_its_headers(tmp_path: Path, dtype: str, num_files: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "bfloat16"}))
    weights = {"a": torch.zeros(6, 4), "b": torch.zeros(5), "places": torch.zeros(9, dtype=torch.int64)}
    weights = {
        name: tensor.to(getattr(torch, dtype)) if name != "places" else tensor for name, tensor in weights.items()
    }
    if num_files == 1:
        save_file(weights, tmp_path / "model.safetensors")
    else:
        names = {name: f"model-{number}.safetensors" for number, name in enumerate(weights)}
        for name, file in names.items():
            save_file({name: weights[name]}, tmp_path / file)
        index = {"metadata": {"total_size": 4096}, "weight_map": names}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = ModelConfig(path=str(tmp_path))
    assert read_checkpoint(model) == Checkpoint(29, "bfloat16"), "whatever the type in the files"


def test_plan_and_validate_print_the_memory_of_a_local_model(tmp_path: Path) -> None:
    config = str(ROOT / "examples" / "own_data" / "own.yaml")
    where = ["--set", f"run_dir={tmp_path / 'run'}"]
    planned = CliRunner().invoke(main, ["plan", config, "--no-probe", *where])
    assert planned.exit_code == 0, planned.output
    assert "memory of an actor with the teacher (" in planned.output
    as_json: Any = json.loads(CliRunner().invoke(main, ["plan", config, "--no-probe", "--json", *where]).stdout)
    assert any("actor with the teacher" in line for line in as_json["memory"])
    checked = CliRunner().invoke(main, ["validate", config, *where])
    assert checked.exit_code == 0 and "memory of an actor with the teacher (" in checked.output
