"""Models and settings that a stranger may give: refused in one line before any work, and no pickle is ever opened."""

import ast
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from benchmarks.hostile_case import RAN, Case, write_config
from benchmarks.hostile_models import MODELS, Payload
from benchmarks.hostile_settings import SETTINGS
from curation.cli import main
from curation.errors import ModelError
from curation.models import load_model, resolve
from curation.refs import ModelRef

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def good(tiny_model, tmp_path_factory) -> Path:
    """A model and an adapter for it."""
    folder = tmp_path_factory.mktemp("good")
    shutil.copytree(tiny_model.base, folder / "model")
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(load_model(tiny_model), config).save_pretrained(folder / "adapter")
    return folder


def refused(verb: str, case: Case, good: Path, folder: Path, rows: Path) -> None:
    shutil.copytree(good, folder, dirs_exist_ok=True)
    path = write_config(folder, case.make(folder), rows=rows)
    told = CliRunner().invoke(main, [verb, str(path)], input="y\n" * 20)
    assert told.exit_code == 2, (told.exception, told.output)
    (line,) = told.stderr.splitlines()
    assert re.search(case.says, line), line
    assert "planted" not in told.output and "use_safetensors" not in line and "trust_remote_code" not in line
    assert not (folder / RAN).exists() and not (folder / "run").exists()


@pytest.mark.parametrize("case", [*MODELS, *SETTINGS], ids=lambda case: case.name)
def test_validate_refuses_it_in_a_line(case: Case, good: Path, tmp_path: Path, puzzle_file: Path) -> None:
    refused("validate", case, good, tmp_path, puzzle_file)


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize("name", ["pickled weights", "weights cut by a byte", "pickled adapter", "missing shard"])
def test_plan_and_run_refuse_it_before_any_work(
    verb: str, name: str, good: Path, tmp_path: Path, puzzle_file: Path
) -> None:
    (case,) = [case for case in MODELS if case.name == name]
    refused(verb, case, good, tmp_path, puzzle_file)


def test_the_good_ones_are_valid(good: Path, tmp_path: Path, puzzle_file: Path) -> None:
    model = {"path": str(good / "model"), "adapter": str(good / "adapter")}
    path = write_config(tmp_path, {"teacher": {"model": model}}, rows=puzzle_file)
    told = CliRunner().invoke(main, ["validate", str(path)], catch_exceptions=False)
    assert told.exit_code == 0 and "is valid" in told.output


def test_no_load_reaches_a_pickle(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load by itself, as in a worker that got a reference; the same pickle runs where it is opened."""
    opened: list[object] = []
    told: list[str] = []
    monkeypatch.setattr(torch, "load", lambda *args, **_: opened.append(args))
    for case in MODELS:
        if "pickle" in case.name:
            folder = tmp_path / case.name
            shutil.copytree(good, folder)
            given = case.make(folder)["teacher"]["model"]
            with pytest.raises(ModelError) as caught:
                load_model(ModelRef(base=given["path"], adapter=given.get("adapter")))
            told.append(str(caught.value))
            assert not (folder / RAN).exists()
    assert not opened and any("its weights are pickled" in line for line in told)
    pickle.loads(pickle.dumps(Payload(tmp_path)))
    assert (tmp_path / RAN).exists()


def test_weights_that_are_missing_are_not_made_up(good: Path, tmp_path: Path) -> None:
    """transformers fills them with random numbers, and only logs it."""
    shutil.copytree(good / "model", tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    tensors = load_file(file)
    removed = "model.layers.1.mlp.down_proj.weight"
    save_file({name: tensor for name, tensor in tensors.items() if name != removed}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks 1 of its weights, the first {removed}"):
        load_model(resolve(str(tmp_path / "model")))


def _calls(path: Path) -> set[str]:
    """What a file calls that may read a model's files: ``Class.from_pretrained``, ``torch.load``, an engine of vLLM."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            loads = {"from_pretrained", "snapshot_download", "hf_hub_download", "cached_file", "load_adapter"}
            own = name in ("from_pretrained", "load_adapter")  # the functions of curation.models.loading
            if (last in loads and not own) or name in ("torch.load", "pickle.load"):
                found.add(name)
            if last in ("LLM", "EngineArgs") and "engine_arguments" not in path.read_text():
                found.add(name)
    return found


@pytest.mark.long
def test_models_are_loaded_in_one_place() -> None:
    files = [
        path
        for folder in ("curation", "train", "tune", "deploy", "examples")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    found = {str(path.relative_to(ROOT)): calls for path in files if (calls := _calls(path))}
    assert found == {
        "curation/models/loading.py": {
            "loader.from_pretrained",
            "PeftConfig.from_pretrained",
            "PeftModel.from_pretrained",
            "loaded.load_adapter",
        },
        "curation/models/own_code.py": {"transformers.utils.hub.cached_file"},
        # bases of this repository; it stands for itself
        "examples/one_file.py": {"AutoModelForCausalLM.from_pretrained", "AutoTokenizer.from_pretrained"},
    }
