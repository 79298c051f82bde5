"""A signal of a user's own whose code was wrong, and was mended: ``--redo`` of its stage asks every row again."""

import json
import subprocess
import sys
from pathlib import Path

import lance
import pytest
import yaml

from benchmarks.recorded import planned

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole_run]
ROOT = Path(__file__).parents[1]
NUM_POOL = 60
SIGNAL = """
from curation.arms import Signal
from curation.teachers import Request


class Length:
    name = "length"

    def requests(self, domain, row_id, example, weak):
        return [Request(row_id=row_id, prompt="How long is it?")]

    def decoding(self, base):
        return base

    def value(self, domain, example, weak, answers):
        return {value}


OWN = Signal("length", "length", "own_length:Length", "logit")
"""


def values(folder: Path) -> list[float | None]:
    stages = planned(folder / "run")
    table = stages["gen-0/score-pool"]["outputs"]["labels"]
    found: list[float | None] = lance.dataset(table["uri"], version=table["version"]).to_table()["length"].to_pylist()
    return found


def curate(*words: str, fails: bool = False) -> str:
    command = [sys.executable, "-m", "curation.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert bool(done.returncode) is fails, done.stderr
    return done.stderr


@pytest.mark.parametrize("labels_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_signal_that_was_mended_is_measured_again(tmp_path: Path, labels_too: bool) -> None:
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(40 + NUM_POOL)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "name": "mended",
        "run_dir": str(tmp_path / "run"),
        "domain": "math",
        "sources": {"sums": {"path": str(tmp_path / "sums.jsonl")}},
        "splits": {"source": {"from": "sums", "rows": 40}, "pool": {"from": "sums", "rows": NUM_POOL}},
        "teacher": {"backend": "scripted", "scripted": {"completions": ["\\boxed{1}", "\\boxed{2}"]}},
        "selection": {"budget": {"n": 10}, "arms": ["naive", "own_length:OWN"]},
        "generations": [],
        "ray": {"num_cpus": 2},
    }
    path = tmp_path / "mended.yaml"
    path.write_text(yaml.safe_dump(config))
    (tmp_path / "own_length.py").write_text(SIGNAL.replace("{value}", "None"))
    assert "the arm own_length:OWN cannot be measured" in curate("run", str(path), fails=True)
    assert values(tmp_path) == [None] * NUM_POOL

    (tmp_path / "own_length.py").write_text(SIGNAL.replace("{value}", "float(len(answers[0].completion))"))
    curate("run", str(path), "--redo", "gen-0/signal-length-pool")
    assert values(tmp_path) == [float(len("\\boxed{1}"))] * NUM_POOL

    if not labels_too:
        return
    # Labels that are made again are measured by the code of then, as they are labelled.
    (tmp_path / "own_length.py").write_text(SIGNAL.replace("{value}", "7.0"))
    curate("run", str(path), "--redo", "gen-0/label-pool")
    assert values(tmp_path) == [7.0] * NUM_POOL
