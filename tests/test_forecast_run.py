"""A forecast, and what the run then uses; a probe leaves nothing in the run directory or an object store."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from curation import run
from curation.cli import main
from curation.config.load import load_config
from curation.storage.paths import to_place
from tests.object_store import object_store

NUM_ROWS = 900


def written(directory: Path, **changes: Any) -> Path:
    """A run over sums whose files are sorted by length, with a teacher that takes a while to start."""
    for number, words in enumerate((2, 20, 60)):
        rows = [{"problem": f"Sum {row}: " + "and " * words, "answer": "1"} for row in range(NUM_ROWS // 3)]
        (directory / f"sums-{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "name": "sums",
        "run_dir": str(directory / "run"),
        "domain": "math",
        "sources": {"sums": {"path": str(directory / "sums-*.jsonl")}},
        "splits": {"source": {"from": "sums", "rows": 300}, "pool": {"from": "sums"}},
        "teacher": {
            "backend": "scripted",
            "chunk_rows": 50,
            "scripted": {
                "completions": [" \\boxed{1}", " \\boxed{2}"],
                "start_seconds": 2.0,
                "seconds_per_token": 0.0002,
            },
        },
        "selection": {"budget": {"n": 50}, "arms": ["naive", "self_consistency"]},
        "prices": {"currency": "EUR", "per_million_output_tokens": 1.0},
        "ray": {"num_cpus": 2},
        **changes,
    }
    path = directory / "sums.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_the_run_uses_what_was_forecast(local_ray, tmp_path: Path):
    path = written(tmp_path)
    planned = CliRunner().invoke(main, ["plan", str(path), "--json", "--probe", "300"], catch_exceptions=False)
    assert planned.exit_code == 0 and not (tmp_path / "run").exists()
    forecast = json.loads(planned.stdout)["forecast"]
    assert {stage["name"] for stage in forecast["stages"]} == {"gen-0/label-source", "gen-0/label-pool"}

    report = run(load_config(path))
    spent = report["spent"]["total"]
    # The signal's rollouts are tokens of the teacher, too: more than one answer a row.
    assert spent["output_tokens"] > 1.5 * NUM_ROWS
    money = spent["output_tokens"] / 1e6
    for name, used in {**spent, "money": money}.items():
        if name in ("prompt_tokens", "output_tokens", "money"):
            assert forecast["total"][name]["low"] <= used <= forecast["total"][name]["high"], (name, used, forecast)
    assert spent["bytes"] < forecast["total"]["bytes"]["high"], "stored rows are compressed"
    actors = spent["actor_seconds"] / 3600 * forecast["workforce"]["each"]["CPU"]
    assert actors / 5 < forecast["total"]["cpu_hours"]["value"] < actors, "without the starts of models"

    done = CliRunner().invoke(main, ["plan", str(path), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["forecast"] is None  # nothing is left to do, and nothing is probed


@pytest.mark.slow
def test_a_probe_leaves_nothing_in_an_object_store(tmp_path: Path):
    with object_store() as store:
        path = written(tmp_path, run_dir=store.url("runs/sums"))
        command = [sys.executable, "-m", "curation.cli", "plan", str(path), "--probe", "64", "--json"]
        planned = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
        forecast = json.loads(planned.stdout)["forecast"]
        assert forecast["total"]["bytes"]["low"] > 0
        assert list(to_place(store.url("runs")).iterdir()) == []
