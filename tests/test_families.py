"""Whole runs in each family of models: adapt, label, fit, select, fine-tune, evaluate, and one chain of two."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.recorded import planned
from benchmarks.taught import write_pairs
from curation import run
from curation.config import SftConfig
from curation.config.load import load_config
from curation.models import load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from curation.tables import io
from tests.families import FAMILIES, LLAMA, Family, pairs, sums
from train.models import read_saved
from train.sft import fine_tune

pytestmark = pytest.mark.whole_run

FORMED = SftConfig(preset="scratch", global_batch_size=16, micro_batch_size=16, learning_rate=5e-3, epochs=8)
LORA = {
    "lora": {"rank": 4, "alpha": 8},
    "epochs": 1,
    "global_batch_size": 16,
    "micro_batch_size": 16,
    "learning_rate": 2e-3,
    "max_length": 160,
    "gradient_checkpointing": False,
}
METHODS = {
    "sft": LORA,
    "grpo": LORA
    | {"method": "grpo", "preset": "scratch", "group_size": 4, "global_batch_size": 8, "micro_batch_size": 32}
    | {"rollouts": {"max_tokens": 16}},
}
"""The section ``student`` of each method by which every family is trained end to end."""
ASKED = {"temperature": 0, "max_tokens": 16, "stop": []}


@pytest.fixture(
    scope="module",
    params=("gemma3_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "olmo2", "llama"))),
)
def family(request: pytest.FixtureRequest) -> Family:
    """One of the families; the others take as long, and are trained in ``tests/train/test_family_training.py`` too."""
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def base(family: Family, family_model: ModelRef, tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    """The family's model, which knows the form of an answer, and guesses."""
    path = tmp_path_factory.mktemp("families") / "formed"
    formed = FORMED.model_copy(update={"chat_template": family.template is not None})
    fine_tune(family_model, write_pairs(pairs(96), path.with_suffix(".lance")), formed, seed=0, output=path)
    return read_saved(family_model, FORMED.lora, path).model


def config(directory: Path, family: Family, base: ModelRef, student: dict[str, object], generations: int):
    if not (directory / "sums.jsonl").exists():  # a run refuses files that change
        (directory / "sums.jsonl").write_text("\n".join(map(json.dumps, sums(320, start=64))))
    chat = {"chat_template": family.template is not None}
    described = {
        "name": family.name,
        "run_dir": str(directory / "run"),
        "domain": {"name": "math", "instruction": ""},
        "sources": {"sums": {"path": str(directory / "sums.jsonl")}},
        "splits": {
            "adapt": {"from": "sums", "rows": 32},
            "source": {"from": "sums", "rows": 100},
            "test": {"from": "sums", "rows": 24},
            "pool": {"from": "sums"},
            "audit": True,
        },
        "teacher": {
            "model": {"path": base.base},
            "adapt": LORA | chat,
            "states": ["prompt_last", "output_last"],
            "decoding": ASKED,
            "chunk_rows": 200,
            "actors": {"min": 1, "max": 1},
            **chat,
        },
        "trust": {"states": ["prompt_last", "output_last"]},
        "selection": {"budget": {"n": 24}, "arms": ["trust"]},
        "student": student | chat,
        "generations": [{"student": {"path": base.base}}] * generations,
        "chain": {"shares": generations, "stop": None},
        "evaluation": {"decoding": ASKED, **chat},
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(described))
    return load_config(path, ())


@pytest.mark.timeout(600)
def test_a_run_of_each_family_by_each_method(local_ray, tmp_path, family: Family, base: ModelRef) -> None:
    """Both methods in one run directory: the second keeps the teacher's labels and the trust function."""
    generations = 2 if family is LLAMA else 1
    for method, student in METHODS.items():
        report = run(config(tmp_path, family, base, student, generations))
        stages = planned(tmp_path / "run")
        assert len(report["generations"]) == generations
        (arm,) = report["arms"]
        assert arm["purity"]["n"] == 24 and arm["accuracy"]["n"] == 24 and 0 < report["teacher"]["pool"]["value"] < 1
        assert arm["format"] == {"sft": "answer", "grpo": "label"}[method]
        for index in range(generations):
            ref = TableRef.from_json(stages[f"gen-{index}/label-pool"]["outputs"]["labels"])
            labels = io.read(ref, ["completion", "num_prompt_tokens", "truncated", "error", "state_output_last"])
            assert labels["error"].null_count == labels.num_rows and not any(labels["truncated"].to_pylist())
            assert labels["state_output_last"].type.list_size == 64
            trained = stages[f"gen-{index}/student-trust"]["outputs"]
            learnt, curves = ModelRef.from_json(trained["model"]), trained["training"]["curves"]
            assert load_model(learnt) and load_tokenizer(learnt).eos_token == family.eos
            assert ("reward" in curves) == (method == "grpo")
            print(
                f"\n{family.name}, {method}, generation {index}:", labels["completion"].to_pylist()[:3], learnt, curves
            )
        print(f"{family.name}: teacher {report['teacher']['pool']}, student {arm['accuracy']}, purity {arm['purity']}")
