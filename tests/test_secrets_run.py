"""Secrets that stand around a run are in no file of its directory and in no output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_package import sums

from benchmarks.hostile_case import write_config

pytestmark = pytest.mark.slow

VARIABLES = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD",
    "GOOGLE_API_KEY", "DATABASE_URL", "ANYTHING",
)  # fmt: skip


def test_secrets_around_a_run_are_nowhere(tmp_path: Path) -> None:
    """In eight variables, two files of a home directory, the configuration, and an override on the command line."""
    home, package = tmp_path / "home", tmp_path / "packages/mlflow"
    (home / ".aws").mkdir(parents=True)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")  # found, and never asked
    (home / ".aws/credentials").write_text("[default]\naws_access_key_id = AKIA\naws_secret_access_key = s3cr3t-aws\n")
    (home / ".netrc").write_text("machine localhost login me password s3cr3t-netrc\n")
    env = os.environ | {name: f"s3cr3t-{name}" for name in VARIABLES}
    env |= {"HOME": str(home), "PYTHONPATH": f"{package.parent}:{Path.cwd()}"}
    env |= {"AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws/credentials")}
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums(600)))
    settings = {
        "domain": "math",
        "tracking": {"mlflow": {"uri": "postgresql://me:s3cr3t-config@localhost/mlflow"}},
        "splits": {"source": {"rows": 300}, "pool": {"rows": 200}},
        "teacher": {"scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
    }
    config = str(write_config(tmp_path, settings, rows=tmp_path / "sums.jsonl"))
    override = "tracking.mlflow.uri=http://me:s3cr3t-override@localhost:1"
    run = str(tmp_path / "run")
    said = []
    until = ["--until", "gen-0/label-pool"]
    for arguments in (
        ["validate", config],
        ["run", config, *until, "--set", override],
        ["status", config],
        ["status", run],
        ["inspect", run],
        ["run", config, "--set", "sources.puzzles.path=https://me:s3cr3t-url@localhost/x.parquet"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "curation.cli", *arguments], env=env, capture_output=True, timeout=300, check=False
        )
        assert done.returncode == (2 if "s3cr3t-url" in arguments[-1] else 0), done.stderr.decode()
        said.append(done.stdout + done.stderr)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]
    assert not [text.decode() for text in said if b"s3cr3t" in text]
