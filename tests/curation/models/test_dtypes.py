"""What ``dtype: auto`` stands for: by configuration and checkpoint alone, settled before a key is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from curation.config import AskConfig
from curation.config.load import parse_config
from curation.config.teacher import AnswersConfig
from curation.errors import ModelError
from curation.models.dtypes import choose_dtype, read_own_dtype, resolve_dtype
from curation.pipeline.chain import describe
from curation.pipeline.extending import describe_analysis
from curation.pipeline.outlook import iter_type_lines
from curation.refs import ModelRef, fingerprint
from curation.rundir.graph import order_stages, to_plain_json, with_outs
from curation.sources import discover

ROOT = Path(__file__).parents[3]
BASES = {name: str(ROOT / "examples/bases" / name) for name in ("teacher", "student")}


def checkpoint(folder: Path, name: str, **config: Any) -> ModelRef:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config))
    return ModelRef(base=str(folder / name), adapter="/nowhere/adapter")


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"text_config": {"torch_dtype": "bfloat16"}}, "bfloat16"),  # of a model that sees
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float64"}, "float64"),
        ({"dtype": None, "text_config": 3}, None),
        ({}, None),
    ],
)
def test_the_type_is_the_checkpoints_own_half_precision_on_a_gpu_and_float32_else(
    tmp_path: Path, config: dict[str, Any], own: str | None
) -> None:
    model = checkpoint(tmp_path, "model", **config)
    assert read_own_dtype(model) == own
    half = own if own in ("bfloat16", "float16") else "float32"
    assert choose_dtype("auto", model, on_gpu=True) == half
    assert choose_dtype("auto", model, on_gpu=True, half=("bfloat16",)) == (half if half == "bfloat16" else "float32")
    assert choose_dtype("auto", model, on_gpu=False) == choose_dtype("auto", None, on_gpu=True) == "float32"
    assert choose_dtype("float16", model, on_gpu=False) == "float16"  # a type that is named is taken


def test_a_checkpoint_that_cannot_be_read_is_refused_only_where_it_decides(tmp_path: Path) -> None:
    model = ModelRef(base=str(tmp_path / "none"))
    (tmp_path / "none").mkdir()
    assert choose_dtype("auto", model, on_gpu=False) == choose_dtype("float32", model, on_gpu=True) == "float32"
    with pytest.raises(ModelError, match=r"config\.json cannot be read.* name a type, e\.g\. teacher\.dtype: bfloat16"):
        choose_dtype("auto", model, on_gpu=True)


def test_a_package_names_a_type() -> None:
    assert AskConfig().dtype == "auto" and AnswersConfig().dtype == "float32"
    with pytest.raises(ValueError, match="dtype"):
        AnswersConfig(dtype="auto")
    gone = AskConfig.model_validate({"actors": {"num_gpus": 0}})
    assert resolve_dtype(gone, None).answers.dtype == "float32"


def keys(folder: Path, overrides: dict[str, Any], base: dict[str, str]) -> dict[str, Any]:
    config = parse_config(configuration(folder, overrides, base))
    chain = describe(config, {name: discover(source) for name, source in config.sources.items()})
    stages = [*chain.stages, *order_stages(describe_analysis(config, chain.tables, chain.generations))]
    return {stage.name: to_plain_json(with_outs(stage.inputs, str), {}) for stage in stages}


def configuration(folder: Path, overrides: dict[str, Any], base: dict[str, str]) -> dict[str, Any]:
    teacher = {"model": {"path": base["teacher"]}, "adapt": {"preset": "scratch"}, **overrides.get("teacher", {})}
    return {
        "name": "types",
        "run_dir": str(folder / "run"),
        "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
        "splits": {
            **{name: {"from": "puzzles", "rows": 20} for name in ("adapt", "source", "test")},
            "pool": {"from": "puzzles", "rows": 80},
            "audit": True,
        },
        "teacher": teacher,
        "signals": {"reward": {"model": {"path": base["student"]}}},
        "selection": {"budget": {"n": 10}, "arms": ["trust", "verbalized_confidence", "reward"]},
        "generations": [{"student": {"path": base["student"]}}, {"student": {"path": base["teacher"]}}],
        **{key: value for key, value in overrides.items() if key != "teacher"},
    }


def test_on_cpus_auto_has_the_keys_of_float32(tmp_path: Path) -> None:
    named = {"teacher": {"dtype": "float32"}, "analyze": {"gradients": {"dtype": "float32"}}}
    auto = {"teacher": {"dtype": "auto"}, "analyze": {"gradients": {"dtype": "auto"}}}
    named["student"] = {"compute_dtype": "float32"}
    found = [keys(tmp_path, overrides, BASES) for overrides in (named, auto, {})]
    assert found[0] == found[1] == found[2]
    assert found[0]["gen-0/label-pool"]["ask"]["dtype"] == "float32"


def test_on_gpus_each_model_is_asked_in_its_own_type(tmp_path: Path) -> None:
    # Copies of the bases whose config.json names other types: what is described reads no weight.
    base = {}
    for role, dtype in (("teacher", "bfloat16"), ("student", "float16")):
        (tmp_path / role).mkdir()
        for file in Path(BASES[role]).iterdir():
            (tmp_path / role / file.name).symlink_to(file)
        (tmp_path / role / "config.json").unlink()
        config = json.loads((Path(BASES[role]) / "config.json").read_text()) | {"dtype": dtype}
        (tmp_path / role / "config.json").write_text(json.dumps(config))
        base[role] = str(tmp_path / role)
    gpus = {
        "teacher": {
            "actors": {"num_gpus": 1},
            "adapt": {"preset": "scratch", "gpus_per_worker": 1},
        },
        "student": {"gpus_per_worker": 1},
        "analyze": {"gradients": {"gpus": 1}},
    }
    found = keys(tmp_path, gpus, base)
    asked = {name: key["ask"]["dtype"] for name, key in found.items() if "ask" in key}
    # The adapted teacher, and the student of the first generation that teaches the second: the type of their bases.
    assert asked["gen-0/label-pool"] == asked["gen-0/signal-verbalized_confidence-pool"] == "bfloat16"
    assert asked["gen-1/label-pool"] == asked["gen-1/signal-verbalized_confidence-pool"] == "float16"
    assert asked["gen-0/test-trust"] == asked["gen-0/test-base"] == asked["gen-0/signal-reward-pool"] == "float16"
    assert asked["gen-1/test-trust"] == "bfloat16"
    # Trainings and gradients take bfloat16 alone.
    assert found["gen-0/teacher"]["recipe"]["compute_dtype"] == "bfloat16"
    assert found["gen-0/student-trust"]["recipe"]["compute_dtype"] == "float32"
    assert found["gen-1/student-trust"]["recipe"]["compute_dtype"] == "bfloat16"
    assert [found[f"gen-{at}/gradients-trust"]["gradients"]["dtype"] for at in (0, 1)] == ["float32", "bfloat16"]
    assert fingerprint(found) == fingerprint(keys(tmp_path, gpus, base))

    config = parse_config(configuration(tmp_path, gpus, base))
    assert [*iter_type_lines(config)] == [
        "teacher.dtype: auto is bfloat16 (teacher, student 1); float16 (student 0, reward model) (actors.num_gpus: 1)",
    ]
    lines = [*iter_type_lines(parse_config(configuration(tmp_path, {}, BASES)))]
    roles = "teacher, student 0, student 1, reward model"
    assert lines[0] == f"teacher.dtype: auto is float32 ({roles}) (actors.num_gpus: 0)"
    assert len(lines) == 1
