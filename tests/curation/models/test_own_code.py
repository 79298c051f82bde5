"""Python code that a model brings is never run: not asked for, not on a `y` on standard input, not for any role."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from benchmarks.hostile_models import CODE
from curation import models
from curation.cli import main
from curation.config import ModelConfig
from curation.config.load import load_config, parse_config
from curation.errors import ConfigError, ModelError
from curation.models import loading
from curation.models.own_code import check_code
from curation.pipeline.roles import check_models
from curation.refs import ModelRef
from curation.teachers.vllm_engine import check_arguments


def brings_code(tiny_model: ModelRef, folder: Path, *, tokenizer_only: bool = False) -> Path:
    """A model whose module writes ``ran`` beside it when it is imported."""
    path = folder / "own"
    shutil.copytree(tiny_model.base, path)
    (path / "modeling_own.py").write_text(CODE.format(ran=str(folder / "ran")))
    name = "tokenizer_config.json" if tokenizer_only else "config.json"
    content = json.loads((path / name).read_text())
    if tokenizer_only:
        change(path / "config.json", model_type="gpt_neox_japanese_unknown")
        content |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "modeling_own.OwnTokenizer"]}}
    else:
        auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
        content |= {"model_type": "own", "architectures": ["Own"], "auto_map": auto_map}
    (path / name).write_text(json.dumps(content))
    return path


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_config(folder: Path, puzzles: list[dict], teacher: dict, student: Path | None = None) -> Path:
    pq.write_table(pa.Table.from_pylist(puzzles[:40]), folder / "puzzles.parquet")
    config = {
        "name": "own",
        "run_dir": str(folder / "run"),
        "sources": {"puzzles": {"path": "puzzles.parquet"}},
        "splits": {
            "source": {"from": "puzzles", "rows": 15},
            "test": {"from": "puzzles", "rows": 5},
            "pool": {"from": "puzzles"},
        },
        "teacher": teacher,
        "selection": {"budget": {"n": 5}, "arms": ["naive"]},
        "generations": [] if student is None else [{"student": {"path": str(student)}}],
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(config))
    return folder / "own.yaml"


AT_WORK = r"(?m)^\d\d:\d\d:\d\d curate run: at work for \d+ s \(.*\)\n"
"""The line of a command that has said nothing for 7 s, which it may on a busy machine before its imports are done."""


def curate(verb: str, config: str) -> tuple[int, str, str]:
    """Exit code and what is said, with ``y`` on standard input; a run in a process of its own, as users start it."""
    if verb != "run":
        told = CliRunner().invoke(main, [verb, config], input="y\n" * 20, catch_exceptions=False)
        return told.exit_code, told.stdout, told.stderr
    command = [sys.executable, "-m", "curation.cli", verb, config]
    done = subprocess.run(
        command, input="y\n" * 20, capture_output=True, text=True, cwd=Path(config).parent, timeout=120
    )
    return done.returncode, done.stdout, re.sub(AT_WORK, "", done.stderr)


@pytest.mark.long
@pytest.mark.parametrize("role", ["teacher", "student"])
@pytest.mark.parametrize("verb", ["validate", "plan", "run"])
def test_a_models_own_code_is_refused_and_never_run(verb: str, role: str, puzzles, tiny_model, tmp_path: Path) -> None:
    path = brings_code(tiny_model, tmp_path)
    if role == "teacher":
        config = write_config(tmp_path, puzzles, {"model": {"path": str(path)}})
    else:
        config = write_config(tmp_path, puzzles, {"backend": "scripted"}, path)
    code, out, err = curate(verb, str(config))
    assert not (tmp_path / "ran").exists()
    assert code == 2, out + err
    (line,) = err.splitlines()
    assert line.startswith(
        f"curate: model {str(path)!r} brings its own code (auto_map of config.json names modeling_own"
    )
    assert "transformers' own architectures" in line and "trust_remote_code" not in line
    assert "y/N" not in out + err


def test_every_load_refuses_it_by_itself(tiny_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the directory was not checked before, as on a worker."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    ref = ModelRef(base=str(brings_code(tiny_model, tmp_path)))
    for load in (models.load_model, models.load_configuration, lambda ref: models.get_state_size(ref, ())):
        with pytest.raises(ModelError, match=r"brings its own code \(auto_map of config\.json names modeling_own"):
            load(ref)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizers_own_code_is_refused(tiny_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    path = brings_code(tiny_model, tmp_path, tokenizer_only=True)
    with pytest.raises(ModelError, match=r"auto_map of tokenizer_config\.json names modeling_own\.OwnTokenizer\)"):
        check_code(ModelRef(base=str(path)))
    with pytest.raises(ModelError, match=r"brings its own code"):
        models.load_tokenizer(ModelRef(base=str(path)))
    assert not (tmp_path / "ran").exists()


def test_a_family_that_transformers_knows_needs_none(tiny_model, tmp_path: Path) -> None:
    """Many models name a module that stands in transformers by now: that one is taken, theirs is not run."""
    path = brings_code(tiny_model, tmp_path)
    change(path / "config.json", model_type="qwen3")
    ref = models.resolve(str(path))
    assert type(models.load_model(ref)).__module__.startswith("transformers.models.qwen3")
    assert models.load_tokenizer(ref).pad_token_id is not None
    assert not (tmp_path / "ran").exists()


def test_the_only_way_in_is_the_switch_with_the_revision_of_the_code(puzzles, tiny_model, tmp_path: Path) -> None:
    """The refusal names the digest, the code that has it runs, and other code is refused again."""
    path = brings_code(tiny_model, tmp_path)
    config = write_config(tmp_path, puzzles, {"model": {"path": str(path), "allow_remote_code": True}})
    code, _, err = curate("validate", str(config))
    assert code == 2 and "needs the digest of the code that you have read as revision; found None" in err
    digest = err.split()[-1]
    model = {"path": str(path), "allow_remote_code": True, "revision": digest}
    settings = load_config(write_config(tmp_path, puzzles, {"model": model}))
    assert settings.runs_code == {"teacher": f"{path} at {digest}"}
    code, out, err = curate("validate", str(config))
    assert code == 0 and f"its own code runs, {digest}" in out, err
    assert not (tmp_path / "ran").exists()  # to validate runs nothing
    ref = models.pin_model(settings.teacher.model)
    assert ref.code == digest and ModelRef.from_json(ref.to_json()) == ref
    assert type(models.load_model(ref)).__name__ == "Own" and (tmp_path / "ran").exists()
    saved = loading.make_saved_ref(ref, path)
    assert saved.code == digest and type(models.load_configuration(saved)).__name__ == "OwnConfig"
    with pytest.raises(ModelError, match="brings its own code"):
        models.load_model(replace(ref, code=None))
    (path / "modeling_own.py").write_text("raise SystemExit")
    with pytest.raises(ModelError, match=r"its code changed: .* read it again"):
        models.load_model(ref)


def test_a_model_that_needs_none_has_the_same_reference_as_before(tiny_model) -> None:
    """So that no stage of an older run is done again."""
    assert set(tiny_model.to_json()) == {"base", "revision", "adapter"}


def test_a_reward_models_head_is_never_replaced_in_silence(puzzles, tiny_model, tmp_path: Path) -> None:
    """transformers would take a class of its own, with another head, where it knows the family."""
    path = brings_code(tiny_model, tmp_path)
    change(path / "config.json", model_type="qwen3")
    raw = yaml.safe_load(write_config(tmp_path, puzzles, {"backend": "scripted"}).read_text())
    reward = {"model": {"path": str(path)}, "kind": "classifier"}
    with pytest.raises(ModelError, match=r"reward model .* brings its own code \(modeling_own"):
        check_models(parse_config({**raw, "signals": {"reward": reward}}))
    check_models(parse_config({**raw, "signals": {"reward": {**reward, "kind": "verifier"}}}))


def test_a_hub_id_is_pinned_to_its_commit(tiny_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--org--tiny"
    shutil.copytree(tiny_model.base, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ref = models.resolve("org/tiny")
    assert ref.revision == commit and models.load_model(ref).config.hidden_size == 32
    allowed = ModelConfig(path="org/tiny", revision=commit, allow_remote_code=True)
    assert models.pin_model(allowed) == replace(ref, code=commit)
    with pytest.raises(ModelError, match="'org/gone' is neither a local directory nor a reachable hub id"):
        models.pin_model(allowed.model_copy(update={"path": "org/gone"}))
    (cached / "snapshots" / commit / "model.safetensors").unlink()
    (cached / "snapshots" / commit / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="no weights in safetensors") as refused:
        models.load_model(ref)
    assert "use_safetensors" not in str(refused.value)
    index = cached / "snapshots" / commit / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "pytorch_model.bin"}}))
    with pytest.raises(ModelError, match=r"names 'pytorch_model\.bin', and weights are only read from safetensors"):
        models.load_model(ref)


def test_vllm_is_not_asked_to_trust_either(tiny_model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"teacher\.vllm\.engine\.trust_remote_code: True cannot be used"):
        check_arguments({"trust_remote_code": True})
    with pytest.raises(ConfigError, match=r"teacher\.vllm\.engine\.load_format: 'pt' may open pickles"):
        check_arguments({"load_format": "pt"})
    told = loading.make_engine_arguments(tiny_model)
    assert told["trust_remote_code"] is False and told["load_format"] == "safetensors"
    with pytest.raises(ModelError, match="brings its own code"):
        loading.make_engine_arguments(ModelRef(base=str(brings_code(tiny_model, tmp_path))))
