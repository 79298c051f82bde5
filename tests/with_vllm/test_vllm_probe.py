"""The probe of ``backend: auto`` that starts a small engine, which it does by itself on GPUs alone."""

import json
import shutil
from pathlib import Path

from curation.models import resolve
from curation.teachers.vllm_choice import probe


def test_a_small_engine_starts(model) -> None:
    found = probe({}, model, gpus=False, starts=True)
    assert list(found) == ["runs"] and found["runs"].endswith("on cpu, where a small engine started")
    assert "small engine" not in probe({}, model, gpus=False)["runs"]  # not asked for on a CPU


def test_an_engine_that_does_not_start_is_what_vllm_lacks(model, tmp_path: Path) -> None:
    shutil.copytree(model.base, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"head_dim": 6}))  # no kernel has it
    ref = resolve(str(tmp_path / "model"))
    assert "runs" in probe({}, ref, gpus=False)  # by its names all is well
    found = probe({}, ref, gpus=False, starts=True)
    assert found["lacks"].startswith("a small engine did not start: ")
