"""Secrets that stand around a whole run are in no file of its directory and in no output."""

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
TRACKER = """
import os

class MlflowClient:
    def __init__(self):
        raise ConnectionError(f"cannot reach {os.environ['MLFLOW_TRACKING_URI']}")
"""
"""A tracker that is away, and whose error names its address with all that is in it."""
REFUSED = (
    "tracking.mlflow=postgresql://me:s3cr3t-config@localhost/mlflow",
    "sources.puzzles.path=https://me:s3cr3t-url@localhost/x.parquet",
    "sources.puzzles.path=https://localhost/x.parquet?X-Amz-Signature=s3cr3t-signature",
    "sources.puzzles.path=s3://bucket/x.parquet?AWSSecretAccessKey=s3cr3t-query",
    "run_dir=s3://AKIA:s3cr3t-run@bucket/run",
    "teacher.model={path: 'https://s3cr3t-model@huggingface.co/org/model'}",
    "teacher.vllm={engine: {hf_token: s3cr3t-engine}}",
    "judge={model: {path: 'https://me:s3cr3t-judge@localhost/model'}}",
)
"""Overrides that hold a credential, which no run takes."""


def test_secrets_around_a_run_are_nowhere(tmp_path: Path) -> None:
    """In eight variables, two files of a home directory, a tracker's address and error, and refused overrides."""
    home, package = tmp_path / "home", tmp_path / "packages/mlflow"
    (home / ".aws").mkdir(parents=True)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tracking.py").write_text(TRACKER)
    (home / ".aws/credentials").write_text("[default]\naws_access_key_id = AKIA\naws_secret_access_key = s3cr3t-aws\n")
    (home / ".netrc").write_text("machine localhost login me password s3cr3t-netrc\n")
    env = os.environ | {name: f"s3cr3t-{name}" for name in VARIABLES}
    env |= {"HOME": str(home), "PYTHONPATH": f"{package.parent}:{Path.cwd()}"}
    env |= {"MLFLOW_TRACKING_URI": "http://me:s3cr3t-tracker@localhost:1"}
    env |= {"AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws/credentials")}
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums(600)))
    settings = {
        "domain": "math",
        "tracking": {"mlflow": "ours"},
        "splits": {"source": {"rows": 300}, "pool": {"rows": 200}},
        "teacher": {"scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
        "selection": {"arms": ["naive", "trust"]},
    }
    config = str(write_config(tmp_path, settings, rows=tmp_path / "sums.jsonl"))
    run = str(tmp_path / "run")
    said = []
    for arguments in (
        ["validate", config], ["plan", config, "--no-probe"], ["run", config],
        ["status", config], ["status", run], ["inspect", run], ["report", config, "--json"], ["verify", run],
        *(["run", config, "--set", refused] for refused in REFUSED),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "curation.cli", *arguments], env=env, capture_output=True, timeout=300, check=False
        )
        assert done.returncode == (2 if arguments[-1] in REFUSED else 0), (arguments, done.stderr.decode())
        said.append(done.stdout + done.stderr)
    assert any(b"cannot reach http://***@localhost:1" in text for text in said)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]
    assert not [text.decode() for text in said if b"s3cr3t" in text]
