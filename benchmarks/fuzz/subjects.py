"""The runs whose directories are damaged: one without Ray, and a real one over sums."""

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import click
import yaml

from benchmarks.fuzz import sealed_run
from benchmarks.fuzz.rundirs import CURATE, Subject
from benchmarks.fuzz.worker import Worker
from curation.cli import main
from curation.rundir.graph import find_dependents
from curation.rundir.manifest import Manifest
from curation.tables import commits

NUM_ROWS = 60


@click.group(cls=type(main))
def sealed() -> None:
    """Run commands on the run without Ray, with the errors of `curate`."""


@sealed.command("run")
@click.argument("directory", type=Path)
@click.option("--redo", multiple=True)
def run_sealed(directory: Path, redo: tuple[str, ...]) -> None:
    """Do what is missing."""
    if redo:
        Manifest.load(directory).redo(find_dependents(redo, sealed_run.stages()))
    sealed_run.run(directory)


def impatient() -> None:
    """Let a worker try a commit again at once."""
    commits.RETRY_SECONDS = 1e-3


def with_ray() -> ExitStack:
    """Start Ray in a worker, for all its commands."""
    from curation.cluster.session import local_or_cluster
    from curation.config import RayConfig

    stack = ExitStack()
    stack.enter_context(local_or_cluster(RayConfig(num_cpus=2)))
    return stack


def directories(folder: Path) -> Subject:
    """Return the run without Ray."""
    home, states = folder / "run", [folder / "broken off", folder / "whole"]
    home.mkdir()
    sealed_run.break_off(home)
    shutil.copytree(home, states[0])
    sealed_run.run(home)
    shutil.copytree(home, states[1])
    looks = [["verify", str(home)], ["inspect", str(home)], ["inspect", str(home), "gen-0/label"]]
    subject = Subject(
        kind="directories",
        home=home,
        states=states,
        command=f"{__name__}:sealed",
        run=["run", str(home)],
        looks=looks,
        worker=Worker(impatient),
    )
    return _expecting(subject)


def runs(folder: Path) -> Subject:
    """Return a real run, killed in the middle of labelling and resumed."""
    home, states, config = folder / "run", [folder / "broken off", folder / "whole"], folder / "fuzz.yaml"
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(2 * NUM_ROWS)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _write_config(folder, config, home, seconds_per_row=0.2)
    with subprocess.Popen([sys.executable, "-m", "curation.cli", "run", str(config)], stderr=subprocess.DEVNULL) as run:
        while run.poll() is None and not list(home.glob("gen-0/label-pool-*/labels.lance/data/*")):
            time.sleep(0.1)
        time.sleep(2)
        run.send_signal(signal.SIGKILL)
    shutil.copytree(home, states[0])
    _write_config(folder, config, home, seconds_per_row=0)
    subject = Subject(
        kind="runs",
        home=home,
        states=states,
        command=CURATE,
        run=["run", str(config)],
        looks=[
            ["status", str(config)],
            ["status", str(home), "--json"],
            ["plan", str(config), "--no-probe"],
            ["verify", str(home)],
            ["inspect", str(home)],
            ["inspect", str(home), "gen-0/label-pool"],
            ["inspect", str(home), "gen-0/select/trust"],
            ["report", str(config)],
        ],
        worker=Worker(with_ray),
    )
    told = subject.go()
    assert told.code == 0, told
    shutil.copytree(home, states[1])
    return _expecting(subject)


SUBJECTS = {"directories": directories, "runs": runs}


def _expecting(subject: Subject) -> Subject:
    found = subject.content()
    assert isinstance(found, dict) and found, found
    subject.expected = found
    return subject


def _write_config(folder: Path, path: Path, home: Path, *, seconds_per_row: float) -> None:
    scripted = {"completions": [" \\boxed{1}", " \\boxed{2}"], "seconds_per_row": seconds_per_row}
    config = {
        "name": "fuzz",
        "run_dir": str(home),
        "domain": "math",
        "sources": {"sums": {"path": str(folder / "sums.jsonl")}},
        "splits": {
            "source": {"from": "sums", "rows": NUM_ROWS},
            "pool": {"from": "sums", "rows": NUM_ROWS},
            "audit": True,
        },
        "teacher": {"backend": "scripted", "chunk_rows": 10, "actors": {"min": 1, "max": 1}, "scripted": scripted},
        "selection": {"budget": {"n": 15}, "arms": ["naive", "trust"]},
        "commit_seconds": 0.2,
    }
    path.write_text(yaml.safe_dump(config))
