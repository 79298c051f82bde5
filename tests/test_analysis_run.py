"""``curate analyze`` and ``curate explain`` on a finished run of puzzles: killed, resumed, cached, in the report."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.recorded import recorded
from curation.refs import TableRef
from curation.tables import io

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "tests" / "material_engine.py"
pytestmark = [pytest.mark.slow, pytest.mark.long]
BATCH = {"global_batch_size": 16, "micro_batch_size": 16}


def curate(*arguments: object) -> str:
    command = [sys.executable, "-m", "curation.cli", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two students, whose engine counts pieces."""
    folder = tmp_path_factory.mktemp("analysed")
    program = folder / "material"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    raw = {
        "name": "analysed",
        "run_dir": str(folder / "run"),
        "domain": "chess",
        "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
        "splits": {
            "adapt": {"from": "puzzles", "rows": 1500},
            "source": {"from": "puzzles", "rows": 600},
            "test": {"from": "puzzles", "rows": 30},
            "pool": {"from": "puzzles", "rows": 400},
            "overlap": "drop",
            "audit": True,
        },
        "teacher": {
            "model": {"path": str(ROOT / "examples/bases/teacher")},
            "adapt": {"preset": "scratch", "epochs": 2, "learning_rate": 5e-4, **BATCH},
            "decoding": {"max_tokens": 4},
        },
        "selection": {"budget": {"n": 60}, "arms": ["naive", "trust", "ground_truth"]},
        "student": {"preset": "scratch", "epochs": 1, **BATCH},
        "generations": [{"student": {"path": str(ROOT / "examples/bases/student")}}],
        "evaluation": {"decoding": {"max_tokens": 4}},
        "ray": {"num_cpus": 2},
        "analyze": {"engine": {"path": str(program), "nodes": 10}, "gradients": {"rows": 60}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(raw))
    curate("run", path)
    return path


def manifest(config: Path) -> dict[str, Any]:
    return recorded(config.parent / "run")


def test_an_analysis_is_killed_resumed_cached_and_shown(config: Path) -> None:
    run = config.parent / "run"
    before = {name: record["started"] for name, record in manifest(config).items()}
    command = [sys.executable, "-m", "curation.cli", "analyze", str(config)]
    driver = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 240
    while "gen-0/advantages" not in manifest(config) and driver.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    first = manifest(config)["gen-0/advantages"]
    told = curate("analyze", config)
    stages = manifest(config)
    assert stages["gen-0/advantages"] == first  # it was done before the kill
    assert {name: stages[name]["started"] for name in before} == before  # the run itself is as it was
    assert "by Material 1, 10 nodes" in told and "gradients of 60 rows of each arm" in told
    report = json.loads((run / "report.json").read_text())
    found = report["generations"][0]["features"]["analyze"]
    assert set(found) == {"advantages", "coherence"} and "Why it works" in (run / "report.html").read_text()
    assert {"gen-0/advantages", "gen-0/coherence"} <= {stage["name"] for stage in report["stages"]}

    selection = TableRef.from_json(stages["gen-0/select"]["outputs"]["arms"]["trust"]["table"])
    grades = TableRef.from_json(stages["gen-0/grade-pool"]["outputs"]["grades"])
    rows, right = io.read(selection, columns=["row_id", "label"]), io.read(grades, filter="correct = true")
    wrong = [
        row["row_id"]
        for row in rows.to_pylist()
        if row["label"] is not None and row["row_id"] not in set(right["row_id"].to_pylist())
    ]
    assert found["advantages"]["arms"]["trust"]["num_differing"] == len(wrong) > 0
    table = io.read(TableRef.from_json(stages["gen-0/gradients-naive"]["outputs"]["gradients"]))
    singular = np.linalg.svd(np.stack(table["gradient"].to_numpy()).astype(np.float64), compute_uv=False)[:32]
    np.testing.assert_allclose(found["coherence"]["arms"]["naive"]["singular_values"], singular, rtol=1e-6)

    page = (run / "report.html").stat().st_mtime_ns
    assert "gradients of 60 rows" in curate("analyze", run)  # the run directory, with the settings that were saved
    curate("run", config)
    assert (run / "report.html").stat().st_mtime_ns == page  # nothing was to be done, and the report has it still
    assert {name: record["started"] for name, record in manifest(config).items()} == {
        name: record["started"] for name, record in stages.items()
    }


def test_a_row_is_explained(config: Path) -> None:
    run = config.parent / "run"
    rows = json.loads(curate("inspect", run, "gen-0/select/trust", "--rows", 60, "--json"))["sample"]
    assert len(rows) == 60
    row = json.loads(curate("explain", run, rows[0]["row_id"], "--json"))
    arm = row["generations"][0]["arms"]["trust"]
    assert (arm["rank"], arm["place"], arm["completion"]) == (0, 1, rows[0]["completion"])
    assert row["prompt"] == rows[0]["prompt"] and row["gold"] is not None
    assert row["generations"][0]["correct"] == (row["gold"] == arm["label"])
