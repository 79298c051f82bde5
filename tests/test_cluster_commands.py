"""The pages' commands for object stores and clusters, against an S3 server and a Ray cluster of this machine.

The run of the commands is small, with a teacher that makes up its answers and two students. What stands for another
place on the pages is one here: ``my-bucket`` is the server's bucket, port 8265 that of the cluster's dashboard.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from object_store import ObjectStore, object_store
from page_commands import STAND_IN, STORE
from test_docs import split
from test_ray_job import head

from curation.storage.paths import to_place, write_atomically

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BIN = Path(sys.executable).parent
SECTIONS = {
    "name": "my",
    "domain": "math",
    "splits": {
        "source": {"from": "sums", "rows": 150},
        "test": {"from": "sums", "rows": 40},
        "pool": {"from": "sums", "rows": 300},
        "audit": True,
    },
    "teacher": {"backend": "scripted", "chunk_rows": 50, "actors": {"max": 1},
                "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
    "selection": {"budget": {"n": 50}, "arms": ["naive", "trust"]},
    "student": {"preset": "scratch", "epochs": 1, "global_batch_size": 16, "micro_batch_size": 16},
    "generations": [{"student": {"init": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "max_positions": 256}}}],
    "evaluation": {"num_runs": 1, "decoding": {"temperature": 0, "max_tokens": 8}},
}  # fmt: skip


class Shell:
    """Gives commands of the pages, with the places of this test put in."""

    def __init__(self, folder: Path, store: ObjectStore, dashboard: str) -> None:
        run = store.url("runs/my")
        self.places = {
            "http://localhost:8265": dashboard,
            "s3://my-bucket/my.yaml": store.url("my.yaml"),
            "CONFIG": store.url("my.yaml"),
            "...": "auto",
            "s3://bucket/my-run": run,
            "runs/my-run": run,
            "RUN_DIR": run,
            "DIR": "student-2",
            "s3://bucket/models/naive": store.url("models/naive"),
            "s3://bucket/trust/mine": store.url("trust/mine"),
            "packages/chess": store.url("trust/mine"),
            "s3://bucket/pool/*.parquet": store.url("pool/*.parquet"),
            "s3://bucket/filtered": store.url("filtered"),
        }
        self.folder = folder
        self.given: set[str] = set()

    def give(self, command: str, *more: str) -> str:
        """What a command prints; it has to succeed. ``more`` are options for this machine."""
        words = [self.places.get(word, word) for word in split(command)]
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = more
        program = shutil.which(words[0], path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
        assert program is not None, f"{words[0]} is not installed"
        done = subprocess.run([program, *words[1:]], cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (command, done.stdout[-1500:], done.stderr[-1500:])
        self.given.add(command)
        return done.stdout


def rows(numbers: range) -> list[dict[str, str]]:
    return [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in numbers]


def until_up(dashboard: str) -> None:
    ends = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(dashboard, timeout=5).close()
            return
        except urllib.error.HTTPError:  # it answers, and asks for the token
            return
        except OSError:
            assert time.monotonic() < ends, "the dashboard does not come up"
            time.sleep(0.5)


def until_done(shell: Shell, directory: str) -> None:
    """Wait for the run that a job went away to do."""
    ends = time.monotonic() + 240
    while not (to_place(directory) / "report.json").is_file():
        assert time.monotonic() < ends, "the job does not end"
        time.sleep(1)


def test_commands_with_an_object_store_and_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    with object_store() as store:
        Shell(tmp_path, store, "").give("ray get-auth-token --generate")  # the head asks for it
        assert (tmp_path / ".ray" / "auth_token").is_file()
        with head() as dashboard:
            shell = Shell(tmp_path, store, dashboard)
            until_up(dashboard)
            shell.given.add("ray get-auth-token --generate")
            write_atomically(to_place(store.url("sums.jsonl")), "\n".join(map(json.dumps, rows(range(490)))))
            pq.write_table(pa.Table.from_pylist(rows(range(1000, 1200))), tmp_path / "new.parquet")
            write_atomically(to_place(store.url("pool/new.parquet")), (tmp_path / "new.parquet").read_bytes())
            config = {
                **SECTIONS,
                "run_dir": store.url("runs/my"),
                "sources": {"sums": {"path": store.url("sums.jsonl")}},
            }
            (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
            shell.give("aws s3 cp my.yaml s3://my-bucket/my.yaml")
            submit = "ray job submit --address http://localhost:8265"
            shell.give(f"{submit} --no-wait -- curate run s3://my-bucket/my.yaml")
            until_done(shell, store.url("runs/my"))
            for command, test in STAND_IN.items():
                if test == STORE and command not in shell.given:
                    shell.give(command)
    assert shell.given == {command for command, test in STAND_IN.items() if test == STORE}
    assert (tmp_path / "student" / "model.safetensors").is_file()
