"""A forecast that is saved, the run, and both side by side in the report; a probe leaves nothing in an object store."""

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
        "prices": {"currency": "EUR", "cpu_hour": 1.0, "storage_gb_month": 0.02},
        "ray": {"num_cpus": 2},
        **changes,
    }
    path = directory / "sums.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_the_report_sets_the_forecast_against_what_the_run_used(local_ray, tmp_path: Path):
    path = written(tmp_path)
    planned = CliRunner().invoke(main, ["plan", str(path), "--save", "--probe", "300"], catch_exceptions=False)
    assert planned.exit_code == 0 and "forecast.json" in planned.stdout
    assert [item.name for item in (tmp_path / "run").iterdir()] == ["forecast.json"]

    report = run(load_config(path))
    costs = report["costs"]
    lines = {line["name"]: line for line in costs["lines"]}
    assert costs["not_run"] == [] and set(costs["stages"]) == {"gen-0/label-source", "gen-0/label-pool"}
    # The signal's rollouts are tokens of the teacher, too: more than one answer a row.
    assert lines["output_tokens"]["actual"] > 1.5 * NUM_ROWS
    assert all(lines[name]["inside"] for name in ("prompt_tokens", "output_tokens", "bytes")), lines
    assert all(lines[name]["inside"] for name in ("hours", "cpu_hours", "money")), lines
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Forecast against actual" in page and "EUR together, with a month of storage" in page

    done = CliRunner().invoke(main, ["plan", str(path), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["forecast"] is None  # nothing is left to do, and nothing is probed
    changed = load_config(path, ["teacher.scripted.seconds_per_token=0.0001"])
    assert run(changed)["costs"]["changed"] == ["teacher.scripted.seconds_per_token was 0.0002, is 0.0001"]


@pytest.mark.slow
def test_a_probe_leaves_nothing_in_an_object_store(tmp_path: Path):
    with object_store() as store:
        path = written(tmp_path, run_dir=store.url("runs/sums"))
        command = [sys.executable, "-m", "curation.cli", "plan", str(path), "--probe", "64", "--json"]
        planned = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
        forecast = json.loads(planned.stdout)["forecast"]
        assert forecast["total"]["bytes"]["low"] > 0
        assert list(to_place(store.url("runs")).iterdir()) == []
