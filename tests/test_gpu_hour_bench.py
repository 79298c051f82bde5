"""The hour on a GPU: each step leaves a line whatever becomes of it, and a second call does what is left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_hour
from benchmarks.gpu.steps import FUNCTIONS
from benchmarks.gpu_hour import STEPS, Step, done_steps, keep, run_step

pytestmark = pytest.mark.long


def test_the_limits_fit_an_hour_and_each_step_can_run() -> None:
    assert {name for name, step in STEPS.items() if step.command is None} == set(FUNCTIONS)
    assert next(iter(STEPS)) == "versions" and max(step.limit for step in STEPS.values()) <= 330
    for step in STEPS.values():
        if step.command is not None:
            assert (Path(__file__).parents[1] / f"{step.command[1].replace('.', '/')}.py").is_file()


@pytest.mark.parametrize(
    ("program", "ok", "words"),
    [
        ("print('fast')", True, "fast"),
        ("print('first'); raise SystemExit(3)", False, "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", False, "exit code -9"),
        ("import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)", False, "ran past its limit"),
    ],
)
def test_a_step_that_fails_hangs_or_is_killed_leaves_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, ok: bool, words: str
) -> None:
    monkeypatch.setattr(gpu_hour, "STEPS", {"step": Step(limit=1, command=("-c", program))})
    line = run_step("step", tmp_path, tiny=True, limit=3.0)
    assert line["ok"] is ok and words in str(line["found"] if ok else line["error"])
    assert not ok or "fast" in line["found"]
    keep({**line, "device": "cpu"}, tmp_path / "out.jsonl")
    assert done_steps(tmp_path / "out.jsonl", "cpu") == ({"step"} if ok else set())
    assert done_steps(tmp_path / "out.jsonl", "NVIDIA H100") == set()


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_hour", "--out", str(tmp_path / "out.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "no GPU answers nvidia-smi" in done.stderr and not (tmp_path / "out.jsonl").exists()


def test_the_first_step_on_a_cpu(tmp_path: Path) -> None:
    line = run_step("versions", tmp_path, tiny=True, limit=120.0)
    assert line["ok"], line
    assert json.loads((tmp_path / "versions.json").read_text()) == line["found"]
    assert {"torch", "ray", "lance"} <= set(line["found"])
